import type pg from 'pg'
import { event, type Message } from '../../../src/index.ts'
import type { Postgres } from '../../../src/postgres/index.ts'

/** What processes of a test share. It imports no test runner: children cannot. */
export const Placed = event<{ n: number }>('order.placed')
export const Invoiced = event<{ of: number; part: number }>('order.invoiced')

/** The tables of the consuming service: what it sends is kept apart from what it receives. */
export const BILLING = { outbox: { table: 'billing_outbox' } }

/** Events and the business's own record of them, in one transaction. */
export async function commit(db: Postgres<pg.PoolClient>, events: readonly Message[]): Promise<void> {
  await db.withTransaction(async (tx) => {
    await db.outbox.enqueue(tx, events)
    await record(tx, events)
  })
}

export async function record(tx: pg.ClientBase, events: readonly Message[]): Promise<void> {
  await tx.query('INSERT INTO ledger SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])', [
    events.map((event) => event.id),
    events.map((event) => event.key ?? null),
    events.map((event) => (event.data as { n: number }).n),
  ])
}
