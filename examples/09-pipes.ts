// Pipes: from a list through a handler into a function that writes batches, with retries and backpressure, no broker.
//
//   npm run build && npx tsx examples/09-pipes.ts

import { event, Reject, Router } from 'waybill'
import { fromIterable, sink } from 'waybill/pipes'
import { z } from 'zod'

const Line = event('import.line', z.object({ number: z.number(), text: z.string() }))
const Customer = event('customer.imported', z.object({ name: z.string(), city: z.string() }))

// Where it comes from: anything that can be iterated, here lines of a file. It is read no faster than lines are handled.
const file = ['Ada,London', 'Grace,New York', 'no comma here', 'Edsger,Rotterdam']
function* lines() {
  for (const [index, text] of file.entries()) yield Line({ number: index + 1, text })
}
const source = fromIterable('customers.csv', lines())

// What happens to each: a handler, as in any router. A line that can never be read is given up; the others go on.
let busy = true
const reader = new Router('reader').on(Line, ({ data }) => {
  const [name, city] = data.text.split(',')
  if (name === undefined || city === undefined) throw new Reject(`line ${data.number} has no comma`)
  if (name === 'Grace' && busy) {
    busy = false
    throw new Error('the lookup is busy')
  }
  return Customer({ name, city })
})

// Where it goes: a function that gets what is ready together. When it returns, all of it has arrived.
const stored: string[] = []
const table = sink(
  (messages) => {
    for (const { data } of messages) stored.push(JSON.parse(Buffer.from(data).toString()).name)
  },
  { name: 'table' },
)

const importing = reader.consume(source, { to: table, retry: { backoff: { min: '10ms', max: '10ms' } } })
await importing.start()
await source.ended
await importing.stop()

console.log(`stored   ${stored.sort().join(', ')}`)
for (const { message, reason } of source.dead) console.log(`given up ${message.type}: ${reason}`)
