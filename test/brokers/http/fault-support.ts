import pg from 'pg'
import { freePort } from '../../../scripts/services/ports.ts'
import type { ReaderKind } from '../../../src/adapter.ts'
import { type Message, Relay, type RelayOptions } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type RunningScript, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { freshDatabase } from '../../support/services.ts'
import { message, sender, until } from './support.ts'

const script = (name: string, args: string[], timeout: number) =>
  runScript({ script: bundled(new URL(`./${name}.ts`, import.meta.url)), args, timeout })

/** A database with an outbox, an inbox and effects; receivers and relays in processes of their own. */
export async function site(timeout = 600_000) {
  const database = await freshDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool })
  await db.migrate()
  await pool.query('CREATE TABLE effects (id text NOT NULL)')
  // For a receiver that comes back under the same address.
  const port = await freePort()
  const url = `http://127.0.0.1:${port}/hooks`
  const children: RunningScript[] = []
  const relays: Relay[] = []
  const to = sender(url)
  const start = async (name: string, args: string[]) => {
    const child = script(name, args, timeout)
    children.push(child)
    await child.line('ready', 100_000)
    return child
  }
  return {
    db,
    url,
    startReceiver: (delay = 0) => start('receiver-child', [database.url, String(port), String(delay)]),
    startRelay: (reader: ReaderKind) => start('relay-child', [database.url, url, reader]),
    relay(options: Partial<RelayOptions> = {}): Relay {
      const quick = { poll: '10ms', maxPoll: '50ms', outage: { min: 10, max: 100 }, batch: 50, maxBatch: 50 } as const
      const relay = new Relay({ from: db.outbox, to, ...quick, ...options })
      relays.push(relay)
      return relay
    },
    async fill(count: number): Promise<readonly Message[]> {
      const all = Array.from({ length: count }, (_, n) =>
        message(`{"n":${n}}`, { extensions: { partitionkey: `k${n % 50}` } }),
      )
      for (let from = 0; from < count; from += 500) {
        await db.withTransaction((tx) => db.outbox.enqueue(tx, all.slice(from, from + 500)))
      }
      return all
    },
    async effects(): Promise<number> {
      return (await pool.query('SELECT count(*)::int AS n FROM effects')).rows[0].n
    },
    /** What was lost, what happened twice, what nobody had asked for. */
    async problems(sent: readonly Message[]) {
      const { rows } = await pool.query('SELECT id, count(*)::int AS n FROM effects GROUP BY id')
      const counts = new Map(rows.map(({ id, n }) => [id as string, n as number]))
      return {
        lost: sent.filter(({ id }) => !counts.has(id)).length,
        twice: rows.filter(({ n }) => n > 1).length,
        invented: counts.size - sent.filter(({ id }) => counts.has(id)).length,
      }
    },
    async waiting(): Promise<number> {
      const { rows } = await pool.query(`SELECT count(*)::int AS n FROM outbox WHERE state <> 'published'`)
      return rows[0].n
    },
    async attempts(): Promise<number> {
      return (await pool.query('SELECT coalesce(max(attempts), 0)::int AS n FROM outbox')).rows[0].n
    },
    async end(): Promise<void> {
      await Promise.all(relays.map((relay) => relay.stop()))
      for (const child of children) child.kill()
      await Promise.allSettled(children.map((child) => child.finished))
      await to.close()
      await pool.end()
      await database.drop()
    },
    until,
  }
}

export const CLEAN = { lost: 0, twice: 0, invented: 0 }
