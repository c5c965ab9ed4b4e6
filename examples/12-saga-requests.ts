// An asynchronous saga: the order, its saga and the first request are one transaction; the shipping service answers by a
// message. The second order is answered too late: it was undone by then, and so the late success is undone again.
//
//   npm run build && npx tsx examples/12-saga-requests.ts
//
// PostgreSQL runs inside this process. Every worker is run by hand here, so that the order of things is the same each time;
// a service gives them to `run([…])`.

import { PGlite } from '@electric-sql/pglite'
import { EventCollector, event, Relay, Router, saveEvents, transactional } from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { postgres } from 'waybill/postgres'
import { SagaRunner, saga, sagaReplies } from 'waybill/saga'
import { z } from 'zod'

const Order = z.object({ id: z.string() })
const OrderPlaced = event('order.placed', Order)
const ShipOrder = event('ship.wanted', Order)
const CancelShipment = event('ship.cancel', Order)
const Shipped = event('ship.done', z.object({ parcel: z.string() }))

const pglite = new PGlite()
const broker = new InProcessBroker()

// ── the order service ──
const db = postgres<Queryable>({ pool: pglite, sagas: true })
await db.migrate()
await pglite.exec('CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL)')

const fulfilment = saga('fulfilment', { version: 1, input: Order, aggregate: (order) => order.id })
  .request('ship', {
    send: (c) => ShipOrder({ id: c.input.id }),
    reply: Shipped,
    within: '300ms', // minutes, in a real one
    undo: (c) => CancelShipment({ id: c.input.id }),
  })
  .onEnd((c, tx: Queryable) => tx.query('UPDATE orders SET status = $2 WHERE id = $1', [c.input.id, c.status]))

const runner = new SagaRunner({ store: db, sagas: [fulfilment] })
const sagas = runner.client(fulfilment)
const placed = broker.source('watch', { topics: ['order.placed'] })
const watching = new Router('watch').on(OrderPlaced, ({ data }) => console.log(`event    ${data.id} was placed`))
const watch = watching.consume(placed)
// One router for the replies of all sagas of this service.
const replies = sagaReplies({ store: db, sagas: [fulfilment] }).consume(
  broker.source('replies', { topics: ['ship.done'] }),
)
const relay = new Relay({ from: db.outbox, to: broker })

async function place(id: string): Promise<void> {
  const order = new EventCollector()
  order.record(OrderPlaced({ id }))
  await db.withTransaction(async (tx) => {
    await tx.query(`INSERT INTO orders VALUES ($1, 'pending')`, [id])
    await sagas.start(tx, { id }) // the saga and its first request
    await saveEvents(db, db.outbox, order) // what the entity has to tell; forgotten after the commit only
  })
}

// ── the shipping service, with an outbox, an inbox and a barrier of its own ──
const depot = postgres<Queryable>({
  pool: pglite,
  outbox: { table: 'depot_outbox' },
  inbox: { table: 'depot_handled' },
  barrier: { table: 'depot_barriers' },
})
await depot.migrate()
await pglite.exec('CREATE TABLE parcels (order_id text PRIMARY KEY)')

const shipping = new Router('shipping')
  .use(transactional(depot))
  .on(ShipOrder, (message, { tx }) =>
    depot.barrier(tx, message, async () => {
      await tx.query('INSERT INTO parcels VALUES ($1)', [message.data.id])
      console.log(`depot    ${message.data.id} is shipped`)
      return Shipped({ parcel: `parcel of ${message.data.id}` })
    }),
  )
  .on(CancelShipment, (message, { tx }) =>
    depot.barrier(tx, message, async ({ ran }) => {
      await tx.query('DELETE FROM parcels WHERE order_id = $1', [message.data.id])
      console.log(`depot    ${message.data.id} is called back; it ${ran ? 'was' : 'was not'} on its way`)
    }),
  )
const participant = shipping.consume(broker.source('shipping', { topics: ['ship.*'] }), { concurrency: 1 })
const depotRelay = new Relay({ from: depot.outbox, to: broker })

// ── an order that goes well ──
await place('A-1')
await show('A-1') // pending: nobody waits, and no runner holds the saga
await relay.runOnce()
await watch.runOnce()
await participant.runOnce()
await depotRelay.runOnce()
await replies.runOnce()
await until('A-1', 'completed')

// ── one whose participant is away for longer than `within` ──
await place('B-2')
await relay.runOnce()
await watch.runOnce()
await until('B-2', 'compensated')

// It is back, and finds the request in its queue: the parcel goes out, and its reply comes after the end.
await participant.runOnce()
await depotRelay.runOnce()
await replies.runOnce()
await until('B-2', 'compensated')

// Both undos arrive. The first calls the parcel back; the barrier knows that the second has nothing to do.
await relay.runOnce()
await participant.runOnce()

const [books] = await rows('SELECT array_agg(order_id) AS parcels FROM parcels')
console.log('books   ', { ...books })
const [undone] = await sagas.find({ aggregate: 'B-2' })
console.log(`saga     B-2 was undone ${undone!.steps[0]!.undos} times`)
for (const worker of [participant, replies, watch, relay, depotRelay, runner]) await worker.stop()
await pglite.close()

async function rows(text: string, values: unknown[] = []) {
  return (await pglite.query<Record<string, unknown>>(text, values)).rows
}

async function show(id: string): Promise<void> {
  const [order] = await rows('SELECT status FROM orders WHERE id = $1', [id])
  const [found] = await sagas.find({ aggregate: id })
  const reason = found!.error === undefined ? '' : `: ${found!.error}`
  console.log(`order    ${id} is ${order!['status']}, its saga ${found!.status}${reason}`)
}

/** Lets the runner look until the saga is where it should be. */
async function until(id: string, status: string): Promise<void> {
  for (;;) {
    await runner.runOnce()
    const [found] = await sagas.find({ aggregate: id })
    if (found!.status === status) return show(id)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** What both kinds of transaction can do: ours, and that of PGlite. */
interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}
