import { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { afterAll, beforeAll, describe } from 'vitest'
import { type Postgres, postgres, sqlOf } from '../../src/postgres/index.ts'
import {
  inboxStoreSuite,
  leadershipSuite,
  outboxAdminSuite,
  outboxReaderSuite,
  outboxStoreSuite,
  type Suite,
  sagaStoreSuite,
  unitOfWorkSuite,
} from '../../src/testing/index.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { runSuite } from '../support/suite.ts'

type Pool = pg.Pool | PGlite

/** One database for all cases, and tables of its own for each. */
function factory(pool: () => Pool) {
  let made = 0
  return async () => {
    const n = ++made
    const given = pool()
    const names = {
      outbox: { table: `outbox_${n}` },
      inbox: { table: `inbox_${n}` },
      sagas: { table: `sagas_${n}` },
      leadership: true,
    }
    const db = (given instanceof PGlite
      ? postgres({ pool: given, ...names })
      : postgres({ pool: given, ...names })) as unknown as Postgres
    await db.migrate()
    await db.database.query(`CREATE TABLE words_${n} (word text)`)
    return {
      db,
      work: db,
      outbox: db.outbox,
      inbox: db.inbox,
      sagas: db.sagas,
      leadership: db.leadership('outbox'),
      other: db.leadership('projection/orders'),
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

export type Skips = Partial<Record<'store' | 'inbox' | 'work' | 'sagas', readonly string[]>>

/** All suites. `skips` are cases that cannot be run, for the one reason given. */
function suites(name: string, pool: () => Pool, skips: Skips = {}, reason = ''): void {
  const create = factory(pool)
  const spared = (names: readonly string[] = []) => ({ skips: Object.fromEntries(names.map((one) => [one, reason])) })
  const run = (title: string, suite: Suite) =>
    describe(title, () => {
      runSuite(suite)
    })
  const reader = { owner: true, lease: true, shards: true, wakes: true, notes: true }
  const store = { receipts: true, refusesPool: true }
  run('outbox store', outboxStoreSuite({ name, features: store, create }, spared(skips.store)))
  run('outbox reader', outboxReaderSuite({ name, features: reader, create }))
  run('outbox admin', outboxAdminSuite({ name, create }))
  run('inbox store', inboxStoreSuite({ name, features: { refusesPool: true }, create }, spared(skips.inbox)))
  run('unit of work', unitOfWorkSuite({ name, create }, spared(skips.work)))
  run('saga store', sagaStoreSuite({ name, create }, spared(skips.sagas)))
  run('leadership', leadershipSuite({ name, features: { scopes: true }, create }))
  const scoped = async () => {
    const { db, ...made } = await create()
    return { ...made, leadership: made.other, other: db.leadership('projection/invoices') }
  }
  run('leadership of a scope', leadershipSuite({ name, features: { scopes: true }, create: scoped }))
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
      pglite = await PGlite.create()
    })
    afterAll(() => pglite.close())
    suites('pglite', () => pglite, skips, reason)
  })
}
