import type pg from 'pg'
import { event } from '../../../src/index.ts'
import { saga } from '../../../src/saga/index.ts'

/** Three services, each with its own tables, outbox, inbox and barrier, and a process of its own. */
export const PARTICIPANTS = ['bank', 'stock', 'carrier'] as const
export type Participant = (typeof PARTICIPANTS)[number]

export const eventsOf = (name: Participant) => ({
  wanted: event<{ n: number }>(`${name}.wanted`),
  done: event<{ n: number }>(`${name}.done`),
  refused: event<object>(`${name}.refused`),
  undo: event<{ n: number }>(`${name}.undo`),
  undone: event<object>(`${name}.undone`),
})

export const tablesOf = (name: Participant) => ({
  outbox: { table: `${name}_outbox` },
  inbox: { table: `${name}_inbox` },
  barrier: { table: `${name}_barriers` },
})

export const SCHEMA = PARTICIPANTS.map(
  (name) => `CREATE TABLE ${name} (key text NOT NULL, saga text NOT NULL, amount int NOT NULL);`,
).join('\n')

/** Every one in ten is refused by the carrier. The bank confirms its undo; a carrier that does not answer is asked again. */
export function orderSaga() {
  const [bank, stock, carrier] = PARTICIPANTS.map(eventsOf)
  const common = (events: NonNullable<typeof bank>) => ({
    send: (c: { input: { n: number } }) => events.wanted({ n: c.input.n }),
    reply: events.done,
    refused: events.refused,
    undo: (c: { input: { n: number } }) => events.undo({ n: c.input.n }),
  })
  return saga<{ n: number }>('order', { version: 1 })
    .request('pay', { ...common(bank!), undone: bank!.undone, within: '2s' })
    .request('reserve', { ...common(stock!), within: '2s' })
    .request('ship', { ...common(carrier!), within: '2s', unknown: 'retry', budget: '1m' })
}

/** What does not add up: each completed saga is in effect once at each, each compensated one nowhere. */
export async function problems(pool: pg.Pool): Promise<string[]> {
  const found: string[] = []
  for (const name of PARTICIPANTS) {
    const { rows } = await pool.query(
      `SELECT saga.id, saga.status, COALESCE(sum(amount), 0)::int AS sum, count(amount)::int AS writes
       FROM saga_executions AS saga LEFT JOIN ${name} ON ${name}.saga = saga.id::text GROUP BY saga.id, saga.status`,
    )
    for (const { id, status, sum, writes } of rows) {
      const expected = status === 'completed' ? 1 : status === 'compensated' ? 0 : undefined
      if (sum !== expected || writes > 2) found.push(`${name}: saga ${id} is ${status}, sum ${sum} of ${writes} writes`)
    }
  }
  return found
}
