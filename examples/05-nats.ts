// From an outbox through NATS JetStream to a consumer; a repeat that is stored once; a dead letter, and its way back.
//
//   npm run build && NATS_URL=nats://localhost npx tsx examples/05-nats.ts
//
// It makes two streams whose names begin with waybill-example-5, and deletes them at the end.

import { jetstreamManager } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { event, Reject, Relay, Router } from 'waybill'
import { encodeData } from 'waybill/cloudevents'
import { memory } from 'waybill/memory'
import { nats } from 'waybill/nats'

const servers = process.env['NATS_URL']
if (servers === undefined) {
  console.error('set NATS_URL to a NATS server with JetStream, 2.9 or later')
  process.exit(2)
}

const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')

const stream = `waybill-example-5-${process.pid}`
const broker = nats({
  connection: () => connect({ servers }),
  stream,
  create: { subjects: [`${stream}.>`] },
})

// ── the shop: events are enqueued with the order, and relayed when the transaction is committed ──
const db = memory()
await db.withTransaction((tx) =>
  db.outbox.enqueue(tx, [
    OrderPlaced({ orderId: 'A-1', total: 30 }),
    OrderPlaced({ orderId: 'B-2', total: 12 }),
    OrderPlaced({ orderId: 'C-3', total: -5 }),
  ]),
)
const publisher = broker.publisher({ subject: ({ type }) => `${stream}.${type}` })
const relay = new Relay({ from: db.outbox, to: publisher })
console.log('relay    ', await relay.runOnce())

// ── billing: its consumer is made with the first session, and reads from the beginning ──
const invoiced = new Set<string>()
let refunds = false
const billing = new Router('billing').on(OrderPlaced, ({ data: { orderId, total } }, { attempt }) => {
  if (orderId === 'B-2' && attempt === 1) throw new Error('the printer is busy')
  if (total < 0 && !refunds) throw new Reject('a negative total')
  console.log(`billing   ${orderId}: invoice over ${total}, attempt ${attempt}`)
  invoiced.add(orderId)
})
const source = broker.source({ group: 'billing', create: true, subject: `${stream}.order.*` })
const consumer = billing.consume(source, { concurrency: 1, retry: { backoff: { min: '200ms' } } })
await consumer.start()
await until(async () => invoiced.has('A-1') && invoiced.has('B-2') && (await source.stats()).dead === 1)

// ── the same event once more, as after a lost answer: it is not stored again ──
const placed = encodeData(OrderPlaced({ orderId: 'D-4', total: 7 }))
await publisher.publish([placed, placed])
await until(async () => invoiced.has('D-4') && (await source.stats()).pending === 0)
console.log('stored   ', (await source.stats()).length)

// ── what cannot be handled is kept, with the reason, until a person decides ──
const [letter] = await source.deadLetters()
console.log(`dead      ${letter!.message!.type}, attempt ${letter!.attempts}: ${letter!.reason}`)
refunds = true
const sentBack = await source.rearm(letter!.id)
await until(async () => invoiced.has('C-3') && (await source.stats()).pending === 0)
console.log('sent back', sentBack)

// ── in this order: consumers, relays, connections ──
await consumer.stop()
await relay.stop()
const { lag, pending, dead } = await source.stats()
console.log('left     ', { lag, pending, dead })
await broker.close()

const connection = await connect({ servers })
const manager = await jetstreamManager(connection)
for (const name of [stream, `${stream}-dead`]) await manager.streams.delete(name)
await connection.close()

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 50))
}
