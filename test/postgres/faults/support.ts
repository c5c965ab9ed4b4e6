import pg from 'pg'
import { afterAll } from 'vitest'
import type { OutboxReader } from '../../../src/adapter.ts'
import { type Message, Relay, type RelayOptions } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type RunningScript, runScript, type ScriptOptions } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { WAIT_LIMIT } from '../../support/limits.ts'
import { type FreshDatabase, freshDatabase, type Service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { commit, Placed } from './business.ts'
import { Journal, type JournalPublisherOptions, journalPublisher } from './journal.ts'
import type { RelayJob } from './relay-child.ts'
import { type Expected, gather, problems } from './verify.ts'

/** A database with an outbox, and tables of the business: what was committed, counters to lock keys by, effects. */
export async function world(on?: Service, options: { wake?: 'off' } = {}) {
  const database = on === undefined ? await freshSchema() : await freshDatabase(on)
  const pool = new pg.Pool({ connectionString: database.url, max: 40 })
  pool.on('error', () => {}).on('connect', (client) => client.on('error', () => {}))
  const db = postgres({ pool, outbox: options })
  await db.migrate()
  await pool.query('CREATE TABLE ledger (event_id uuid PRIMARY KEY, key text, n int NOT NULL)')
  await pool.query('CREATE TABLE counters (key text PRIMARY KEY, n int NOT NULL)')
  await pool.query('CREATE TABLE effects (event_id uuid NOT NULL)')
  const journal = new Journal()
  const children: RunningScript[] = []
  const relays: Relay[] = []
  let made = 0
  let numbers = 0
  const it = {
    database,
    pool,
    db,
    journal,
    /** A relay in this process, which publishes into the journal. */
    relay(given: Partial<RelayOptions & JournalPublisherOptions> = {}): Relay {
      const { delay, during, inner, ...settings } = given
      const name = settings.name ?? `relay ${++made}`
      const to = journalPublisher(journal, { relay: name, delay, during, inner })
      const relay = new Relay({ from: db.outbox as OutboxReader, to, poll: '20ms', maxPoll: '50ms', ...settings, name })
      relays.push(relay)
      return relay
    },
    /** A relay in a process of its own. */
    async child(job: Partial<RelayJob> = {}, options: Partial<ScriptOptions> = {}): Promise<Child> {
      const name = job.name ?? `child ${++made}`
      const full: RelayJob = { url: database.url, journal: journal.path, relay: {}, ...job, name }
      const env = { JOB: JSON.stringify(full) }
      const child = runScript({
        script: bundled(new URL('./relay-child.ts', import.meta.url)),
        timeout: 1_200_000,
        ...options,
        env,
      })
      children.push(child)
      child.finished.then(
        () => journal.write({ what: 'died', relay: name }),
        () => {},
      )
      return Object.assign(child, { name })
    },
    /** Commits so many events, `keys` of them keyed in turn, a hundred in a transaction. */
    async fill(count: number, keys = 0): Promise<Message[]> {
      const all: Message[] = []
      for (let from = 0; from < count; from += 100) {
        const events = Array.from({ length: Math.min(100, count - from) }, () => {
          const n = ++numbers
          return keys === 0 ? Placed({ n }) : Placed({ n }, { key: `key ${n % keys}` })
        })
        await commit(db, events)
        all.push(...events)
      }
      return all
    },
    /** Goes on committing events until the answer is called, and not much faster than they arrive: a backlog takes its time. */
    writing(keys: number, pause = 5): () => Promise<void> {
      let going = true
      const loop = (async () => {
        while (going) {
          if (numbers - journal.arrived() < 500) await it.fill(10, keys)
          await new Promise((resolve) => setTimeout(resolve, pause))
        }
      })()
      loop.catch(() => {}) // told to whoever stops it
      return () => {
        going = false
        return loop
      }
    },
    /** Resolves when nothing is left to be published. */
    async settled(limit = WAIT_LIMIT): Promise<void> {
      await until(
        async () => (await pending(pool)) === 0,
        limit,
        async () => `${await pending(pool)} are pending`,
      )
    },
    async problems(expected: Expected = {}): Promise<string[]> {
      return problems(await gather(pool, journal), expected)
    },
    async end(): Promise<void> {
      for (const child of children) child.kill('SIGKILL')
      await Promise.all(children.map((child) => child.finished.catch(() => {})))
      await Promise.all(relays.map((relay) => relay.stop()))
      // A test that failed has not given back all of its connections.
      await Promise.race([pool.end(), new Promise((resolve) => setTimeout(resolve, 2000))])
      await database.drop()
      journal.remove()
    },
  }
  return it
}

let shared: Promise<FreshDatabase> | undefined
let schemas = 0

/** A schema of its own does for most, and costs less than a database: these tests need many. */
async function freshSchema(): Promise<Pick<FreshDatabase, 'url' | 'drop'> & Partial<FreshDatabase>> {
  shared ??= freshDatabase()
  const { url } = await shared
  const schema = `world_${++schemas}`
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query(`CREATE SCHEMA ${schema}`)
  await client.end()
  return { url: `${url}?options=${encodeURIComponent(`-c search_path=${schema}`)}`, drop: async () => {} }
}

afterAll(async () => (await shared)?.drop())

export type Child = RunningScript & { readonly name: string }

export type World = Awaited<ReturnType<typeof world>>

async function pending(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query(`SELECT count(*)::int AS n FROM outbox WHERE state NOT IN ('published', 'dead')`)
  return rows[0].n
}

/** Waits for a condition, looking often; fails when it has not come true in time. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  limit = WAIT_LIMIT,
  what: () => string | Promise<string> = () => condition.toString(),
): Promise<void> {
  await eventually(condition.toString(), condition, { limit }).catch(async (error: Error) => {
    throw new Error(`${error.message}: ${await what()}`)
  })
}
