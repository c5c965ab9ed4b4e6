import type pg from 'pg'
import { Reject } from '../../../src/index.ts'
import { saga } from '../../../src/saga/index.ts'

/** What each of the three services keeps: what is in effect under a key, and what was undone. */
export const SERVICES = ['stock', 'money', 'carrier'] as const
export type Service = (typeof SERVICES)[number]

export const SCHEMA = SERVICES.map(
  (service) => `
    CREATE TABLE ${service} (key text PRIMARY KEY, saga text NOT NULL, amount int NOT NULL, undone boolean NOT NULL DEFAULT false);
    CREATE INDEX ON ${service} (saga);
    CREATE TABLE ${service}_effects (key text NOT NULL, amount int NOT NULL);`,
).join('\n')

export interface Trouble {
  /** In [0, 1). */
  next(): number
  /** What of the calls fail, and take too long. */
  readonly fails: number
  readonly hangs: number
  /** What becomes of an order whose carrier may or may not be booked; undone unless said otherwise. */
  readonly unknown?: 'undo' | 'retry'
  /** Of each step. Short unless said otherwise: on a crowded machine that is trouble too. */
  readonly timeout?: '5s'
}

/** How long a call may take: on a busy machine most of them must still succeed. In milliseconds. */
const TIMEOUT = 800

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

/** A small service with tables of its own: does the work of a key once, undoes it once, and not the work after the undo. */
class Remote {
  readonly #pool: pg.Pool
  readonly #name: Service
  readonly #trouble: Trouble

  constructor(pool: pg.Pool, name: Service, trouble: Trouble) {
    this.#pool = pool
    this.#name = name
    this.#trouble = trouble
  }

  do(key: string, id: string, amount: number, signal: AbortSignal): Promise<number> {
    return this.#troubled(signal, () => this.#do(key, id, amount))
  }

  undo(key: string, id: string, signal: AbortSignal): Promise<void> {
    return this.#troubled(signal, () => this.#undo(key, id))
  }

  async find(key: string): Promise<number | undefined> {
    const { rows } = await this.#pool.query(`SELECT amount FROM ${this.#name} WHERE key = $1 AND NOT undone`, [key])
    return rows[0]?.amount
  }

  async #do(key: string, id: string, amount: number): Promise<number> {
    const text = `WITH done AS (
      INSERT INTO ${this.#name} (key, saga, amount) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING key
    ), effect AS (
      INSERT INTO ${this.#name}_effects SELECT key, $3 FROM done
    ) SELECT undone FROM ${this.#name} WHERE key = $1`
    const { rows } = await this.#locked(key, text, [key, id, amount])
    if (rows[0]?.undone === true) throw new Reject('it was undone before')
    return amount
  }

  async #undo(key: string, id: string): Promise<void> {
    const text = `WITH before AS (
      SELECT amount FROM ${this.#name} WHERE key = $1 AND NOT undone FOR UPDATE
    ), undone AS (
      INSERT INTO ${this.#name} AS old (key, saga, amount, undone) VALUES ($1, $2, 0, true)
      ON CONFLICT (key) DO UPDATE SET undone = true, amount = 0
    ) INSERT INTO ${this.#name}_effects SELECT $1, -amount FROM before`
    await this.#locked(key, text, [key, id])
  }

  /** One at a time for a key: what is late may come together with its undo. */
  async #locked(key: string, text: string, values: unknown[]): Promise<pg.QueryResult> {
    const client = await this.#pool.connect()
    let broken = true
    try {
      await client.query('BEGIN')
      await client.query('SELECT pg_advisory_xact_lock(hashtextextended($1, 0))', [key])
      const result = await client.query(text, values)
      await client.query('COMMIT')
      broken = false
      return result
    } finally {
      client.release(broken)
    }
  }

  /** Fails before the work or after it; or takes too long, and half of those do their work late. */
  async #troubled<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const { next, fails, hangs } = this.#trouble
    const luck = next()
    if (luck < fails / 2) throw new Error('the service failed')
    if (luck < fails) {
      await work()
      throw new Error('the answer was lost')
    }
    if (luck >= fails + hangs) return work()
    if (next() < 0.5)
      pause(TIMEOUT + 150)
        .then(work)
        .catch(() => {})
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }))
  }
}

/** The order saga: reserve stock, charge the card, book a carrier, who refuses one order in ten. */
export function orderSaga(pool: pg.Pool, trouble: Trouble) {
  const [stock, money, carrier] = SERVICES.map((name) => new Remote(pool, name, trouble)) as [Remote, Remote, Remote]
  const quick = {
    timeout: trouble.timeout ?? `${TIMEOUT}ms`,
    backoff: { min: '50ms', max: '500ms', jitter: '50ms' },
  } as const
  return saga<{ n: number; kills?: boolean }>('order', { version: 1, aggregate: ({ n }) => String(n) })
    .step(
      'reserve',
      (c) => {
        if (c.input.kills) process.kill(process.pid, 'SIGKILL')
        return stock.do(c.key, c.id, 1, c.signal)
      },
      { ...quick, undo: (c) => stock.undo(c.key, c.id, c.signal) },
    )
    .step('charge', (c) => money.do(c.key, c.id, 30, c.signal), {
      ...quick,
      undo: (c) => money.undo(c.key, c.id, c.signal),
      check: (c) => money.find(c.key),
    })
    .step(
      'book',
      (c) => {
        if (c.input.n % 10 === 0) throw new Reject('no carrier goes there')
        return carrier.do(c.key, c.id, 1, c.signal)
      },
      { ...quick, undo: (c) => carrier.undo(c.key, c.id, c.signal), unknown: trouble.unknown ?? 'undo' },
    )
}

/** What does not add up; nothing, if all does. */
export async function problems(pool: pg.Pool): Promise<string[]> {
  const found: string[] = []
  const { rows } = await pool.query(
    `SELECT status, count(*)::int AS n FROM saga_executions WHERE status NOT IN ('completed', 'compensated') GROUP BY status`,
  )
  for (const { status, n } of rows) found.push(`${n} sagas are ${status}`)
  for (const [service, amount] of [
    ['stock', 1],
    ['money', 30],
    ['carrier', 1],
  ] as const) {
    const checks = {
      'a completed saga without its effect': `SELECT count(*)::int AS n FROM saga_executions e WHERE status = 'completed'
        AND (SELECT COALESCE(sum(amount), 0) FROM ${service} s WHERE s.saga = e.id::text AND NOT undone) <> ${amount}`,
      'a compensated saga with an effect': `SELECT count(*)::int AS n FROM saga_executions e WHERE status = 'compensated'
        AND EXISTS (SELECT 1 FROM ${service} s WHERE s.saga = e.id::text AND NOT undone)`,
      'an effect twice': `SELECT count(*)::int AS n FROM (SELECT key FROM ${service}_effects GROUP BY key
        HAVING count(*) FILTER (WHERE amount > 0) > 1 OR count(*) FILTER (WHERE amount < 0) > 1) AS twice`,
      'a sum that is wrong': `SELECT (COALESCE((SELECT sum(amount) FROM ${service}_effects), 0)
        <> ${amount} * (SELECT count(*) FROM saga_executions WHERE status = 'completed'))::int AS n`,
    }
    for (const [what, text] of Object.entries(checks)) {
      const { n } = (await pool.query(text)).rows[0] as { n: number }
      if (n > 0) found.push(`${service}: ${what}: ${n}`)
    }
  }
  return found
}
