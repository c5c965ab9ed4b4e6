import type { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { afterAll, beforeAll, describe } from 'vitest'
import { type Postgres, type PostgresOptions, postgres, sqlOf } from '../../src/postgres/index.ts'
import {
  barrierSuite,
  inboxStoreSuite,
  leadershipSuite,
  logSuite,
  outboxAdminSuite,
  outboxReaderSuite,
  outboxStoreSuite,
  type Suite,
  sagaStoreSuite,
  unitOfWorkSuite,
} from '../../src/testing/index.ts'
import { freshPGlite } from '../support/pglite.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { runSuite } from '../support/suite.ts'

type Pool = pg.Pool | PGlite

/** One database for all cases, and tables of its own for each. */
let made = 0

type More = Pick<PostgresOptions<Pool>, 'sagas' | 'leadership'>

async function migrated(pool: Pool, n: number, more: More = {}): Promise<Postgres> {
  const names = { outbox: { table: `outbox_${n}` }, inbox: { table: `inbox_${n}` } }
  const db = postgres({ pool: pool as pg.Pool, ...names, ...more }) as unknown as Postgres
  await db.migrate()
  return db
}

function factory(pool: () => Pool) {
  return async () => {
    const n = ++made
    const given = pool()
    const db = await migrated(given, n)
    await db.database.query(`CREATE TABLE words_${n} (word text)`)
    return {
      work: db,
      outbox: db.outbox,
      inbox: db.inbox,
      pool: given,
      async write(tx: unknown, word: string) {
        await sqlOf(tx).query(`INSERT INTO words_${n} VALUES ($1)`, [word])
      },
      async words() {
        const { rows } = await db.database.query(`SELECT word FROM words_${n}`)
        return rows.map((row) => row['word'] as string)
      },
      close: async () => {},
    }
  }
}

function sagaFactory(pool: () => Pool) {
  return async () => {
    const n = ++made
    const db = await migrated(pool(), n, { sagas: { table: `sagas_${n}` } })
    return { work: db, sagas: db.sagas, close: async () => {} }
  }
}

function leadershipFactory(pool: () => Pool, one: string, other: string) {
  return async () => {
    const db = await migrated(pool(), ++made, { leadership: true })
    return { leadership: db.leadership(one), other: db.leadership(other), close: async () => {} }
  }
}

/** A log of its own for each case. */
function logFactory(pool: () => Pool) {
  let made = 0
  return async () => {
    const options = { outbox: { table: `log_${++made}`, log: true }, inbox: { table: `log_inbox_${made}` } }
    const db = postgres({ pool: pool() as pg.Pool, ...options })
    await db.migrate()
    return { log: db.log, outbox: db.outbox as never, work: db as never, close: async () => {} }
  }
}

/** A barrier of its own for each case. */
function barrierFactory(pool: () => Pool) {
  let made = 0
  return async () => {
    const db = postgres({ pool: pool() as pg.Pool, barrier: { table: `barriers_${++made}` } })
    await db.migrate()
    return { barriers: db.barriers as never, work: db as never, close: async () => {} }
  }
}

export type Skips = Partial<Record<'store' | 'inbox' | 'work' | 'sagas', readonly string[]>>

/** All suites. `skips` are cases that cannot be run, for the one reason given. */
function suites(name: string, pool: () => Pool, skips: Skips = {}, reason = ''): void {
  const create = factory(pool)
  const spared = (names: readonly string[] = []) => ({ skips: Object.fromEntries(names.map((one) => [one, reason])) })
  // One session has one case at a time.
  const concurrent = name !== 'pglite'
  const run = (title: string, suite: Suite, options = { concurrent }) =>
    describe(title, () => {
      runSuite(suite, options)
    })
  const reader = { owner: true, lease: true, shards: true, wakes: true, probes: true }
  const store = { receipts: true, refusesPool: true }
  run('outbox store', outboxStoreSuite({ name, features: store, create }, spared(skips.store)))
  run('outbox reader', outboxReaderSuite({ name, features: reader, create }))
  run('outbox admin', outboxAdminSuite({ name, create }))
  run('inbox store', inboxStoreSuite({ name, features: { refusesPool: true }, create }, spared(skips.inbox)))
  run('unit of work', unitOfWorkSuite({ name, create }, spared(skips.work)))
  run('saga store', sagaStoreSuite({ name, create: sagaFactory(pool) }, spared(skips.sagas)))
  run('barrier', barrierSuite({ name, create: barrierFactory(pool) }))
  const leadership = (one: string, other: string) =>
    leadershipSuite({ name, features: { scopes: true }, create: leadershipFactory(pool, one, other) })
  run('leadership', leadership('outbox', 'projection/orders'))
  run('leadership of a scope', leadership('projection/orders', 'projection/invoices'))
  // Open transactions, also those of other cases, hold a log back.
  const log = logSuite({ name, features: { concurrent }, create: logFactory(pool) })
  run('log', log, { concurrent: false })
}

export function onServer(server: string): void {
  describeWith([server], `conformance on ${server}`, () => {
    let database: FreshDatabase
    let pool: pg.Pool
    beforeAll(async () => {
      database = await freshDatabase(server)
      pool = new pg.Pool({ connectionString: database.url, max: 20 })
      pool.on('error', () => {})
    })
    afterAll(async () => {
      await pool.end()
      await database.drop()
    })
    suites(server, () => pool)
  })
}

export function embedded(skips: Skips, reason: string): void {
  describe('conformance on PGlite', () => {
    let pglite: PGlite
    beforeAll(async () => {
      pglite = await freshPGlite()
    })
    afterAll(() => pglite.close())
    suites('pglite', () => pglite, skips, reason)
  })
}
