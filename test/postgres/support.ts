import pg from 'pg'
import { event, type Message } from '../../src/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector } from '../../src/testing/index.ts'
import { WAIT_LIMIT } from '../support/limits.ts'
import { type FreshDatabase, freshDatabase } from '../support/services.ts'

export const Placed = event<{ n: number }>('order.placed')

/** An outbox in a database of its own, a relay maker and a collector; SQL of the tests goes through `pool`. */
export async function outboxOn(on: string | Parameters<typeof freshDatabase>[0] = 'postgres', max = 20) {
  const database: FreshDatabase = await freshDatabase(on)
  const pool = new pg.Pool({ connectionString: database.url, max })
  pool.on('error', () => {})
  const db = postgres({ pool })
  await db.migrate()
  const relays: Relay[] = []
  const sink = collector()
  const arrived = sink.arrived.bind(sink)
  sink.arrived = (count, limit = WAIT_LIMIT) => arrived(count, limit)
  return {
    database,
    pool,
    db,
    outbox: db.outbox,
    sink,
    relay(options: Partial<RelayOptions> = {}): Relay {
      const retry = { backoff: { min: 0, jitter: 0 }, ...options.retry }
      const relay = new Relay({ from: db.outbox, to: sink, ...options, retry })
      relays.push(relay)
      return relay
    },
    /** In a transaction of its own. */
    async enqueue(events: Message | readonly Message[], options = {}): Promise<void> {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, events as Message, options))
    },
    /** Event numbers by key, in the order they arrived. */
    arrivals(): Record<string, number[]> {
      const byKey: Record<string, number[]> = {}
      for (const message of sink.messages) {
        const key = message.key ?? ''
        byKey[key] = [...(byKey[key] ?? []), number(message)]
      }
      return byKey
    },
    /** How many rows are in each state, counted by the test itself. */
    async states(): Promise<Record<string, number>> {
      const { rows } = await pool.query('SELECT state, count(*)::int AS n FROM outbox GROUP BY state')
      return Object.fromEntries(rows.map((row) => [row.state, row.n]))
    },
    async end(): Promise<void> {
      await Promise.all(relays.map((relay) => relay.stop()))
      await pool.end()
      await database.drop()
    },
  }
}

export type TestOutbox = Awaited<ReturnType<typeof outboxOn>>

export function number(message: Message): number {
  return JSON.parse(message.data as string).n
}

/** Runs rounds until one takes nothing. */
export async function untilEmpty(relay: Relay, most = 100): Promise<number> {
  let done = 0
  for (let round = 0; round < most; round++) {
    const tally = await relay.runOnce()
    done += tally.done
    if (tally.taken === 0) return done
  }
  throw new Error(`still not empty after ${most} rounds`)
}
