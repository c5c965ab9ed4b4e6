// An engine: two inputs, one router, two outputs. Orders are handled; audit records pass through as they are.
//
//   npm run build && npx tsx examples/10-engine.ts

import { Engine, event, Router } from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { z } from 'zod'

const OrderPlaced = event('order.placed', z.object({ orderId: z.string(), total: z.number() }))
const InvoiceSent = event('invoice.sent', z.object({ orderId: z.string(), amount: z.number() }))
const Audited = event('audit.record', z.object({ who: z.string() }))

// Two brokers, such as RabbitMQ inside and Kafka outside.
const inside = new InProcessBroker({ name: 'inside' })
const outside = new InProcessBroker({ name: 'outside' })
const invoices = outside.source('invoices', { topics: ['invoice.*'] })
const archive = outside.source('archive', { topics: ['audit.*'] })

const router = new Router('bridge').on(OrderPlaced, ({ data }) =>
  InvoiceSent({ orderId: data.orderId, amount: data.total }),
)

// What a handler returns, and what passes through, goes to the first output that matches.
const engine = new Engine('bridge', { router })
  .output('invoices', outside.publisher(), { match: 'invoice.*' })
  .output('rest', outside.publisher())
await engine.input('orders', inside.source('orders', { topics: ['order.*'] }))
await engine.input('audit', inside.source('audit', { topics: ['audit.*'] }), { passThrough: true })
await engine.start()

await inside.publish([OrderPlaced({ orderId: 'A-1', total: 30 }), Audited({ who: 'ada' })])

const show = (name: string) => new Router(name).on(InvoiceSent, print).on(Audited, print)
function print({ type, data }: { type: string; data: unknown }) {
  console.log(`outside  ${type} ${JSON.stringify(data)}`)
}
const waiting = () => outside.stats('invoices').ready === 0 || outside.stats('archive').ready === 0
while (waiting()) await new Promise((resolve) => setTimeout(resolve, 5))
await show('invoices').consume(invoices).runOnce()
await show('archive').consume(archive).runOnce()
await engine.stop()
