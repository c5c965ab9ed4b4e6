import pg from 'pg'
import postgres from 'postgres'
import { databaseOf } from '../../src/drivers/sql/database.ts'
import type { Database } from '../../src/drivers/sql/sql.ts'
import { freshPGlite } from '../support/pglite.ts'
import { freshDatabase, without } from '../support/services.ts'

/** One way to reach a PostgreSQL, for tests that run on each of them. */
export interface Driver {
  readonly name: string
  /** One session: nothing runs beside a transaction. */
  readonly single: boolean
  open(): Promise<Opened>
}

export interface Opened {
  readonly db: Database
  /** What was handed to `databaseOf`. */
  readonly client: unknown
  readonly url: string | undefined
  /** A session of another program on the same database; of one that has a single session, that one. */
  sql(text: string, values?: readonly unknown[]): Promise<Record<string, unknown>[]>
  close(): Promise<void>
}

async function onServer(server: string, connect: (url: string) => { client: unknown; end(): Promise<unknown> }) {
  const database = await freshDatabase(server)
  const other = new pg.Pool({ connectionString: database.url, max: 4 })
  other.on('error', () => {})
  const { client, end } = connect(database.url)
  return {
    db: databaseOf(client),
    client,
    url: database.url,
    sql: async (text: string, values?: readonly unknown[]) => (await other.query(text, values as unknown[])).rows,
    close: async () => {
      await Promise.allSettled([end(), other.end()])
      await database.drop()
    },
  }
}

function pgPool(url: string) {
  const client = new pg.Pool({ connectionString: url, max: 12 })
  return { client, end: () => client.end() }
}

function postgresJs(url: string) {
  const client = postgres(url, { max: 12, onnotice: () => {} })
  return { client, end: () => client.end({ timeout: 1 }) }
}

async function pglite(): Promise<Opened> {
  const client = await freshPGlite()
  return {
    db: databaseOf(client),
    client,
    url: undefined,
    sql: async (text, values) => (await client.query(text, values as unknown[])).rows as Record<string, unknown>[],
    close: () => client.close(),
  }
}

const all: Driver[] = [
  { name: 'pg', single: false, open: () => onServer('postgres', pgPool) },
  { name: 'postgres.js', single: false, open: () => onServer('postgres', postgresJs) },
  { name: 'pg, PostgreSQL 15', single: false, open: () => onServer('postgres15', pgPool) },
  { name: 'postgres.js, PostgreSQL 15', single: false, open: () => onServer('postgres15', postgresJs) },
  { name: 'pglite', single: true, open: pglite },
]

export const drivers = all.filter(({ name }) => {
  if (name === 'pglite') return true
  return !without(name.endsWith('15') ? 'postgres15' : 'postgres')
})
