// The order service: a database of its own (PostgreSQL inside this process, in a folder), its outbox, and a relay.
// The demo kills it without warning, and starts it again on the same folder.

import { PGlite } from '@electric-sql/pglite'
import { Relay, telemetry } from 'waybill'
import { postgres } from 'waybill/postgres'
import { serve } from './child.ts'
import { OrderPlaced } from './events.ts'
import { postTo } from './http.ts'

const pglite = await PGlite.create(process.argv[2]!)
await pglite.exec('CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, customer text NOT NULL, total int NOT NULL)')

const db = postgres({ pool: pglite })
await db.migrate()

const counts = { orders: 0, refused: 0 }
let relay: Relay | undefined
let stopped = false

/** The order and its event, in one transaction: both, or neither. */
async function place(id: number): Promise<void> {
  const order = { orderId: id, customer: `customer-${id % 20}`, total: 10 + (id % 90) }
  await pglite.transaction(async (tx) => {
    await tx.query('INSERT INTO orders VALUES ($1, $2, $3)', [id, order.customer, order.total])
    await db.outbox.enqueue(tx, OrderPlaced(order), { key: order.customer })
    if (id % 9 === 0) throw new CardRefused()
  })
  counts.orders++
}

class CardRefused extends Error {}

/** Goes on where the process before was killed. */
async function takeOrders(until: number): Promise<void> {
  const { rows } = await pglite.query<{ last: number }>('SELECT COALESCE(max(id), 0) AS last FROM orders')
  for (let id = rows[0]!.last + 1; id <= until && !stopped; id++) {
    try {
      await place(id)
    } catch (error) {
      if (!(error instanceof CardRefused)) throw error
      counts.refused++
    }
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

telemetry['flow.paused'].subscribe(({ failures }) => {
  if (failures === 1) tell({ paused: true })
})
telemetry['flow.resumed'].subscribe(({ pausedFor }) => tell({ resumedAfter: pausedFor }))

const { tell } = serve({
  start: async (url) => {
    const { rows } = await pglite.query<{ count: number }>('SELECT count(*)::int AS count FROM orders')
    counts.orders = rows[0]!.count
    // A short lease, so that the next relay need not wait for a minute after a kill.
    const outage = { min: '100ms', max: '400ms' } as const
    relay = new Relay({ from: db.outbox, to: postTo(url as string), lease: '2s', outage })
    await relay.start()
  },
  takeOrders: (until) => takeOrders(until as number),
  counts: () => counts,
  /** Asked of the tables, not of anything that counts along. */
  books: async () => {
    const orders = await pglite.query<{ id: number }>('SELECT id FROM orders')
    const events = await pglite.query<{ order: number; state: string }>(
      `SELECT (payload->>'orderId')::int AS order, state FROM outbox`,
    )
    return { orders: orders.rows.map(({ id }) => id), events: events.rows }
  },
  pending: async () => {
    const { rows } = await pglite.query<{ n: number }>('SELECT count(*)::int AS n FROM outbox_state WHERE pending')
    return rows[0]!.n
  },
  stop: async () => {
    stopped = true
    await relay?.stop()
    await pglite.close()
  },
})
