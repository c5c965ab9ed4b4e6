// A small service in one process: orders come in, invoices go out, and what cannot be handled is put aside.
//
//   npm run build && npx tsx examples/01-router.ts

import { correlation, event, Reject, Router, repeat, run, timeout } from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { z } from 'zod'

// Both ends share the definitions: a name and a schema.
const OrderPlaced = event('order.placed', z.object({ orderId: z.string(), total: z.number() }))
const InvoiceSent = event('invoice.sent', z.object({ orderId: z.string(), amount: z.number() }))

const broker = new InProcessBroker()

// Billing: the first middleware is the outermost. An order is acked when its handler has returned and its invoice has
// arrived at the broker.
let cardReaderBusy = true
const billing = new Router('billing')
  .use(repeat({ attempts: 3 }))
  .use(timeout('5s'))
  .use(correlation())
  .on(OrderPlaced, async ({ data }) => {
    if (data.total <= 0) throw new Reject('an order needs a total above zero')
    if (data.orderId === 'B-2' && cardReaderBusy) {
      cardReaderBusy = false
      console.log(`billing  ${data.orderId}: the card reader is busy, once more`)
      throw new Error('the card reader is busy')
    }
    console.log(`billing  ${data.orderId}: ${data.total} charged`)
    return InvoiceSent({ orderId: data.orderId, amount: data.total })
  })

const mail = new Router('mail').on(InvoiceSent, ({ data, extensions }) => {
  console.log(`mail     ${data.orderId}: invoice over ${data.amount}, because of ${extensions['causationid']}`)
})

// Two workers. Each subscription exists from here on, so nothing published below is missed.
const workers = [
  billing.consume(broker.source('billing', { topics: ['order.*'] }), { to: broker.publisher() }),
  mail.consume(broker.source('mail', { topics: ['invoice.*'] })),
]

// In a service `signal` is shutdownSignal(), which hears SIGTERM and SIGINT.
const stop = new AbortController()
const running = run(workers, { signal: stop.signal })

await broker.publish([
  OrderPlaced({ orderId: 'A-1', total: 30 }, { id: 'order-1' }),
  OrderPlaced({ orderId: 'B-2', total: 12 }, { id: 'order-2' }),
  OrderPlaced({ orderId: 'C-3', total: 0 }, { id: 'order-3' }),
])

const unsettled = (name: string) => {
  const { dead, ...open } = broker.stats(name)
  return Object.values(open).reduce((sum, count) => sum + count, 0)
}
while (unsettled('billing') + unsettled('mail') > 0) await new Promise((resolve) => setTimeout(resolve, 10))

// Stops taking, lets what is in flight finish, and ends the workers in order.
stop.abort()
await running

for (const { message, reason } of broker.dead('billing')) console.log(`dead     ${message.id}: ${reason}`)
console.log('stopped')
