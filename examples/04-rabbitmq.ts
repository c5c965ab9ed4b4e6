// From an outbox through RabbitMQ to a consumer; a retry after a delay; a dead letter, and its way back.
//
//   npm run build && RABBITMQ_URL=amqp://guest:guest@localhost npx tsx examples/04-rabbitmq.ts
//
// It declares an exchange and queues whose names begin with waybill-example-4, and deletes them at the end.

import amqplib from 'amqplib'
import { event, Reject, Relay, Router } from 'waybill'
import { memory } from 'waybill/memory'
import { rabbitmq } from 'waybill/rabbitmq'

const url = process.env['RABBITMQ_URL']
if (url === undefined) {
  console.error('set RABBITMQ_URL to a RabbitMQ server, 3.10 or later')
  process.exit(2)
}

const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')

const name = `waybill-example-4-${process.pid}`
const broker = rabbitmq({ client: amqplib, url, exchange: name, declare: true })
const queue = broker.source({ queue: `${name}.billing`, topics: ['order.*'] })

// ── billing: declares its queue, which then gets what is published, whether or not billing is there ──
const invoiced = new Set<string>()
let refunds = false
const billing = new Router('billing').on(OrderPlaced, ({ data: { orderId, total } }, { attempt }) => {
  if (orderId === 'B-2' && attempt === 1) throw new Error('the printer is busy')
  if (total < 0 && !refunds) throw new Reject('a negative total')
  console.log(`billing   ${orderId}: invoice over ${total}, attempt ${attempt}`)
  invoiced.add(orderId)
})
const consumer = billing.consume(queue, { concurrency: 1, retry: { backoff: { min: '200ms' } } })
await consumer.runOnce()

// ── the shop: events are enqueued with the order, and relayed when the transaction is committed ──
const db = memory()
await db.withTransaction((tx) =>
  db.outbox.enqueue(tx, [
    OrderPlaced({ orderId: 'A-1', total: 30 }),
    OrderPlaced({ orderId: 'B-2', total: 12 }),
    OrderPlaced({ orderId: 'C-3', total: -5 }),
  ]),
)
const relay = new Relay({ from: db.outbox, to: broker })
console.log('relay    ', await relay.runOnce())
await consumer.start()
await until(async () => invoiced.has('A-1') && invoiced.has('B-2') && (await queue.stats()).dead === 1)

// ── what cannot be handled is kept, with the reason, until a person decides ──
const [letter] = await queue.deadLetters()
console.log(`dead      ${letter!.routingKey}, attempt ${letter!.attempts}: ${letter!.reason}`)
refunds = true
const sentBack = await queue.rearm(letter!.id)
await until(async () => invoiced.has('C-3'))
console.log('sent back', sentBack)

// ── in this order: consumers, relays, connections ──
await consumer.stop()
await relay.stop()
console.log('left     ', await queue.stats())
await broker.close()

const connection = await amqplib.connect(url)
const channel = await connection.createChannel()
for (const part of ['', '.dead', ...[1, 10, 60, 600].map((seconds) => `.retry.${seconds}000ms`)]) {
  await channel.deleteQueue(`${name}.billing${part}`)
}
for (const part of ['', '.dead']) await channel.deleteExchange(name + part)
await connection.close()

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 50))
}
