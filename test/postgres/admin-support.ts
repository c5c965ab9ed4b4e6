import { randomUUID } from 'node:crypto'
import type { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { afterAll } from 'vitest'
import { databaseOf } from '../../src/drivers/sql/database.ts'
import type { Database } from '../../src/drivers/sql/sql.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import type { OutboxSchemaOptions } from '../../src/postgres/migrate-tables.ts'
import { OutboxNames } from '../../src/postgres/names.ts'
import { freshPGlite } from '../support/pglite.ts'
import { freshDatabase } from '../support/services.ts'

export const KINDS = ['postgres', 'postgres15', 'pglite'] as const
export type Kind = (typeof KINDS)[number]

// biome-ignore lint/suspicious/noExplicitAny: rows of any query.
export type Rows = Record<string, any>[]

export interface TestDatabase {
  readonly db: Database
  /** SQL of the test's own. */
  query(text: string, values?: unknown[]): Promise<Rows>
  /** Many statements at once. */
  script(text: string): Promise<void>
  /** A connection string; PGlite has none. */
  readonly url: string
  end(): Promise<void>
}

/** One for all tests of a file, emptied after each: its start takes seconds. */
let embedded: Promise<PGlite> | undefined

afterAll(async () => (await embedded)?.close())

export async function testDatabase(kind: Kind): Promise<TestDatabase> {
  if (kind === 'pglite') {
    embedded ??= freshPGlite()
    const lite = await embedded
    return {
      db: databaseOf(lite as never),
      query: async (text, values) => (await lite.query(text, values)).rows as Rows,
      script: async (text) => void (await lite.exec(text)),
      url: '',
      end: async () => {
        await lite.exec('DROP SCHEMA IF EXISTS billing CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public')
      },
    }
  }
  const database = await freshDatabase(kind)
  const pool = new pg.Pool({ connectionString: database.url, max: 12 })
  return {
    db: databaseOf(pool as never),
    query: async (text, values) => (await pool.query(text, values)).rows,
    script: async (text) => void (await pool.query(text)),
    url: database.url,
    async end() {
      await pool.end()
      await database.drop()
    },
  }
}

export interface Event {
  id?: string
  state?: string
  key?: string | null
  tenant?: string
  topic?: string
  type?: string
  payload?: unknown
  /** SQL of a time. */
  created?: string
  available?: string | null
  published?: string | null
  attempts?: number
}

/** An outbox whose rows the test writes itself. */
export async function testOutbox(kind: Kind, options: OutboxSchemaOptions & { table?: string } = {}) {
  const { table = 'outbox', ...schema } = options
  const database = await testDatabase(kind)
  const names = new OutboxNames(table)
  const migrations = new Migrations(database.db, { outbox: names, ...schema })
  await migrations.migrate()
  return {
    ...database,
    names,
    migrations,
    /** Answers their ids. */
    async insert(...events: Event[]): Promise<string[]> {
      const ids: string[] = []
      for (const event of events) {
        const {
          id = randomUUID(),
          state = 'ready',
          key = null,
          tenant = '',
          topic = 'orders',
          type = 'order.placed',
        } = event
        const { created = 'clock_timestamp()', attempts = 0 } = event
        const timed = ['scheduled', 'retrying', 'leased'].includes(state)
        const available = event.available ?? (timed ? 'clock_timestamp()' : 'NULL')
        const published = event.published ?? (state === 'published' ? 'clock_timestamp()' : 'NULL')
        await database.query(
          `INSERT INTO ${names.table.sql} (event_id, state, key, tenant_id, topic, source, event_type, attributes, payload,
             attempts, created_at, available_at, published_at)
           VALUES ($1, $2, $3, $4, $5, '/test', $6, '{}', $7, $8, ${created}, ${available}, ${published})`,
          [id, state, key, tenant, topic, type, JSON.stringify(event.payload ?? { n: ids.length }), attempts],
        )
        ids.push(id)
      }
      return ids
    },
    /** How many rows are in each state, counted by the test itself. */
    async states(): Promise<Record<string, number>> {
      const rows = await database.query(`SELECT state, count(*)::int AS n FROM ${names.table.sql} GROUP BY state`)
      return Object.fromEntries(rows.map((row) => [row['state'], row['n']]))
    },
  }
}

export type TestOutbox = Awaited<ReturnType<typeof testOutbox>>

/** All that makes up the tables of a database, as text. */
export async function catalog(database: TestDatabase): Promise<string[]> {
  const rows = await database.query(`
    WITH own AS (SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema')
    SELECT format('%s.%s %s %s default %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
      pg_get_expr(d.adbin, d.adrelid)) || ' ' || COALESCE(col_description(c.oid, a.attnum), '') AS line
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace IN (SELECT oid FROM own) AND c.relkind IN ('r', 'v', 'p')
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL SELECT c.conrelid::regclass || ' ' || c.conname || ' ' || pg_get_constraintdef(c.oid) FROM pg_constraint c
      WHERE c.connamespace IN (SELECT oid FROM own)
    UNION ALL SELECT c.relname || ' ' || COALESCE(c.reloptions::text, '') || ' ' || COALESCE(obj_description(c.oid), '') FROM pg_class c
      WHERE c.relnamespace IN (SELECT oid FROM own)
    ORDER BY 1`)
  return rows.map((row) => row['line'] as string)
}
