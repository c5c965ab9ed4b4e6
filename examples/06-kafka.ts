// From an outbox through Kafka to a consumer; order per key; a dead letter, and its way back.
//
//   npm run build && KAFKA_URL=kafka://localhost:9092 npx tsx examples/06-kafka.ts
//
// It makes two topics whose names begin with waybill-example-6, and deletes them at the end.

import kafkajs from 'kafkajs'
import { event, Reject, Relay, Router } from 'waybill'
import { kafka } from 'waybill/kafka'
import { memory } from 'waybill/memory'

const url = process.env['KAFKA_URL']
if (url === undefined) {
  console.error('set KAFKA_URL to a Kafka broker, such as kafka://localhost:9092')
  process.exit(2)
}

const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')

const brokers = [new URL(url).host]
const topic = `waybill-example-6-${process.pid}`
const create = { partitions: 3, replication: 1 }
// The class is handed over: nothing is loaded that you do not use, and nothing is logged.
const broker = kafka({ client: kafkajs.Kafka, brokers })

// ── the shop: events are enqueued with the order, and relayed when the transaction is committed ──
const db = memory()
await db.withTransaction((tx) =>
  db.outbox.enqueue(tx, [
    OrderPlaced({ orderId: 'A-1', total: 30 }, { key: 'A' }),
    OrderPlaced({ orderId: 'A-2', total: -5 }, { key: 'A' }),
    OrderPlaced({ orderId: 'A-3', total: 12 }, { key: 'A' }),
  ]),
)
const publisher = broker.publisher({ topic, create })
const relay = new Relay({ from: db.outbox, to: publisher })
console.log('relay    ', await relay.runOnce())

// ── billing: a key is one partition, and one after the other ──
const invoiced = new Set<string>()
let [refunds, busy] = [false, true]
const billing = new Router('billing').on(OrderPlaced, ({ data: { orderId, total } }, { attempt }) => {
  if (total < 0 && !refunds) throw new Reject('a negative total')
  if (orderId === 'A-3' && busy) {
    busy = false
    throw new Error('the printer is busy')
  }
  console.log(`billing   ${orderId}: invoice over ${total}, attempt ${attempt}`)
  invoiced.add(orderId)
})
const source = broker.source({ topic, group: `${topic}-billing`, create, deadLetter: `${topic}-dead`, block: '100ms' })
const consumer = billing.consume(source, { retry: { backoff: { min: '100ms' } } })
await consumer.start()
await until(async () => invoiced.has('A-3') && (await lag()) === 0)

// ── what cannot be handled is kept, with the reason, until a person decides ──
const [letter] = await source.deadLetters()
console.log(`dead      ${letter!.message!.type}, attempt ${letter!.attempts}: ${letter!.reason}`)
refunds = true
const sentBack = await source.rearm(letter!.id)
await until(async () => invoiced.has('A-2') && (await lag()) === 0)
console.log('sent back', sentBack)

// ── in this order: consumers, relays, connections ──
await consumer.stop()
await relay.stop()
console.log('left     ', { lag: await lag(), dead: (await source.deadLetters()).length })
await broker.close()

const admin = new kafkajs.Kafka({ brokers, logLevel: kafkajs.logLevel.NOTHING }).admin()
await admin.connect()
await admin.deleteTopics({ topics: [topic, `${topic}-dead`] })
await admin.disconnect()

async function lag(): Promise<number> {
  return (await source.stats()).reduce((sum, partition) => sum + partition.lag, 0)
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 50))
}
