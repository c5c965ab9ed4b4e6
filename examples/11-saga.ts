// A synchronous saga: reserve, charge, ship. The caller waits for the end; the carrier refuses the second order, and what came
// before is undone in reverse order.
//
//   npm run build && npx tsx examples/11-saga.ts
//
// Sagas are kept in memory here. With `postgres({ pool, sagas: true })` they outlive the process; nothing else changes.

import { Reject } from 'waybill'
import { memory } from 'waybill/memory'
import { SagaRunner, saga } from 'waybill/saga'
import { z } from 'zod'

const Order = z.object({ id: z.string(), total: z.number(), country: z.string() })

// ── three services. A key that is known does nothing again, so a retry after a crash is safe. ──
const reserved = new Map<string, string>()
const charged = new Map<string, number>()

const stock = {
  reserve(order: string, key: string) {
    reserved.set(key, order)
    console.log(`stock    reserved for ${order}`)
    return { shelf: 3 }
  },
  release(key: string) {
    const order = reserved.get(key)
    if (reserved.delete(key)) console.log(`stock    released of ${order}`)
  },
}

let slow = true
const bank = {
  async charge(total: number, key: string) {
    charged.set(key, total)
    console.log(`bank     charged ${total}`)
    // The money is taken and the answer is lost: only `check` can tell.
    if (slow) {
      slow = false
      throw new Error('connection reset')
    }
    return { receipt: charged.size }
  },
  find(key: string) {
    const found = charged.has(key)
    console.log(`bank     asked: ${found ? 'it was charged' : 'nothing was charged'}`)
    return found ? { receipt: charged.size } : undefined
  },
  refund(key: string) {
    const total = charged.get(key)
    if (charged.delete(key)) console.log(`bank     refunded ${total}`)
  },
}

const carrier = {
  ship(country: string) {
    if (country === 'MARS') throw new Reject('we do not go to MARS')
    console.log(`carrier  ships to ${country}`)
    return { parcel: 21 }
  },
}

// ── each step says how to undo it ──
const fulfilment = saga('fulfilment', { version: 1, input: Order, aggregate: (order) => order.id })
  .step('reserve', (c) => stock.reserve(c.input.id, c.key), { undo: (c) => stock.release(c.key) })
  .step('charge', (c) => bank.charge(c.input.total, c.key), {
    undo: (c) => bank.refund(c.key),
    check: (c) => bank.find(c.key),
    backoff: { min: 10, max: 10 },
  })
  .step('ship', (c) => carrier.ship(c.input.country))
  .onEnd((c) => console.log(`order    ${c.input.id} is ${c.status}`))

const db = memory()
const runner = new SagaRunner({ store: db, sagas: [fulfilment] })
await runner.start()
const orders = runner.client(fulfilment)

console.log('results ', await orders.run({ id: 'A-1', total: 30, country: 'FR' }))

await orders.run({ id: 'B-2', total: 12, country: 'MARS' }).catch((error: Error) => {
  console.log(`refused  ${error.message}`)
})

await runner.stop()
for (const id of ['A-1', 'B-2']) {
  const [found] = await orders.find({ aggregate: id })
  console.log(`saga     ${id}`, Object.fromEntries(found!.steps.map(({ name, status }) => [name, status])))
}
