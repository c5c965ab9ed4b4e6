import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { type Postgres, postgres } from 'waybill/postgres'
import { summary } from './measure.ts'

const DEFINITION = 'bench@1#claim'

/** Milliseconds of a claim of 100 that are due, and of one that finds none, in a database full of others. */
export interface ClaimTimes {
  readonly hundred: number
  readonly none: number
  /** What a runner asks before it sleeps. */
  readonly next: number
}

/**
 * Claims as a runner makes them; the store begins behind the last one where dead entries make it worth it. Each round puts what was claimed far away again, so that each claim leaves dead entries behind, as sagas that went on would.
 */
export async function claims(url: string, rounds: number, { snapshot = false } = {}): Promise<ClaimTimes> {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const db = postgres({ pool, sagas: true })
  const holder = snapshot ? await pool.connect() : undefined
  try {
    if (holder !== undefined) {
      await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
      await holder.query('SELECT count(*) FROM saga_steps WHERE saga_id IS NULL')
    }
    const times = { hundred: [] as number[], none: [] as number[], next: [] as number[] }
    for (let i = 0; i < rounds; i++) {
      await pool.query(
        `UPDATE saga_executions SET wake_at = clock_timestamp() - interval '1 ms' WHERE id IN (
        SELECT id FROM saga_executions WHERE definition = $1 AND wake_at > now() + interval '1 hour' AND runner IS NULL LIMIT 100)`,
        [DEFINITION],
      )
      const claimed = await timed(times.hundred, () => claim(db))
      if (claimed.length !== 100) throw new Error(`${claimed.length} were claimed, not 100`)
      await timed(times.none, () => claim(db))
      await timed(times.next, () => db.sagas.nextDue([DEFINITION]))
      const ids = claimed.map(({ saga }) => saga.id)
      await pool.query(
        `UPDATE saga_executions SET runner = NULL, wake_at = now() + interval '1 day' WHERE id = ANY ($1::uuid[])`,
        [ids],
      )
    }
    const last = (values: readonly number[]) => summary(values.slice(-Math.ceil(rounds / 2))).median
    return { hundred: last(times.hundred), none: last(times.none), next: last(times.next) }
  } finally {
    await holder?.query('ROLLBACK')
    holder?.release()
    await pool.end()
  }
}

function claim(db: Postgres<pg.PoolClient>) {
  const asked = { definitions: [DEFINITION], count: 100, takeovers: 1, runner: randomUUID(), lease: 600_000 }
  return db.sagas.claim(asked)
}

async function timed<T>(times: number[], work: () => Promise<T>): Promise<T> {
  const began = performance.now()
  const value = await work()
  times.push(performance.now() - began)
  return value
}
