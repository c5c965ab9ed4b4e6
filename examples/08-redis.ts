// A service on Redis alone: units of work, an inbox without a gap, an outbox in a stream, and its forwarder.
//
//   npm run build && REDIS_URL=redis://127.0.0.1:6379 npx tsx examples/08-redis.ts
//
// All its keys begin with {waybill-example}, and are removed at the end.

import { Redis } from 'ioredis'
import { event, Relay, Router, transactional } from 'waybill'
import { redis, redisFromContext } from 'waybill/redis'
import { redisStreams } from 'waybill/redis-streams'

const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')
const InvoiceSent = event<{ orderId: string; amount: number }>('invoice.sent')

const client = new Redis(process.env['REDIS_URL'] ?? 'redis://127.0.0.1:6379')
const db = redis({ client, tag: 'waybill-example' })
const streams = redisStreams({ client })
await removeAll()

// ── an adapter: knows Redis, and nothing of transactions ──
const orders = {
  save: async (orderId: string, total: number) => {
    await redisFromContext(client).hset(db.key(`order:${orderId}`), 'total', total)
  },
}

// ── the order service: the order and its event in one step, or neither ──
const place = (orderId: string, total: number) =>
  db.withTransaction(async (tx) => {
    await orders.save(orderId, total)
    await db.outbox.enqueue(tx, OrderPlaced({ orderId, total }), { key: orderId, topic: db.key('orders') })
    if (total > 1000) throw new Error('the card was refused')
  })
await place('A-1', 30)
await place('B-2', 12)
await place('C-3', 5000).catch((error: Error) => console.log(`shop     C-3 was never written: ${error.message}`))

// ── the forwarder: a relay from the outbox stream to wherever each entry says ──
const forwarder = new Relay({
  from: streams.source(db.outbox.forwarding),
  to: streams.publisher(),
})
console.log('forward ', await forwarder.runOnce())

// ── billing: inbox, handler, its outputs into the outbox, one commit, and only then the ack ──
const billing = new Router('billing').use(transactional(db)).on(OrderPlaced, async ({ data }, { tx }) => {
  tx.incrby(db.key('revenue'), data.total)
  console.log(`billing  ${data.orderId}: invoice over ${data.total}`)
  return InvoiceSent({ orderId: data.orderId, amount: data.total })
})
const source = streams.source({ stream: db.key('orders'), group: 'billing' })
const consumer = billing.consume(source, { concurrency: 2 })
console.log('billing ', await consumer.runOnce())

// The same entries once more, as after a crash: they are acked, and no handler is called.
for (const [, fields] of await client.xrange(db.key('orders'), '-', '+')) {
  await client.xadd(db.key('orders'), '*', ...fields)
}
console.log('again   ', await consumer.runOnce())

// ── a commit that cannot work is refused before anything is written ──
await client.rpush(db.key('not-a-number'), 'x')
const refused = db.withTransaction(async (tx) => {
  tx.incrby(db.key('revenue'), 1)
  tx.incr(db.key('not-a-number'))
})
await refused.catch((error: Error) => console.log(`refused  ${error.message}`))

for (const worker of [consumer, forwarder]) await worker.stop()
console.log('books   ', {
  orders: (await client.keys(db.key('order:*'))).length,
  revenue: await client.get(db.key('revenue')),
  outbox: await client.xlen(db.outbox.stream),
})
await removeAll()
await Promise.all([streams.close(), db.stop()])
process.exit(0)

async function removeAll() {
  const keys = await client.keys('{waybill-example}:*')
  if (keys.length > 0) await client.unlink(...keys)
}
