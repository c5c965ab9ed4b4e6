import { checkOptions, oneOf, WaybillError, warnOnce } from '../core/index.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import type { TableName } from '../drivers/sql/identifiers.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import type { Migrated } from '../store/store.ts'
import { explainedMigration, notMigrated, oldSchema, refuseOldServer, refuseRepartition } from './errors.ts'
import {
  DISCARDS,
  type Discard,
  type MigrationsOptions,
  type TableSchema,
  tablesOf,
  versionsTable,
} from './migrate-tables.ts'
import { statements } from './statements.ts'

/** Migrations of one database go one at a time. The two numbers keep clear of other people's advisory locks. */
const LOCK = 'SELECT pg_advisory_xact_lock(1463897678, 0)'
/** A table that somebody keeps locked must not make every writer queue up behind us. */
const LOCK_TIMEOUT = `SET LOCAL lock_timeout = '10s'`

/** What may be lost when the tables are dropped. */
export interface DownOptions {
  /** What may be lost: `pending`, events that are not published; `archive`, what is not archived yet, and the archive table. */
  discard?: Discard | readonly Discard[]
}

/** What `waybill_schema` says of a table. */
interface RecordedVersion {
  readonly version: number
  readonly options: Record<string, unknown>
}

/**
 * The tables, created and brought up to date on request, never by themselves. Versions are kept in `waybill_schema`,
 * which stands in the same schema as the table.
 */
export class Migrations {
  readonly #db: Database
  readonly #tables: readonly TableSchema[]

  constructor(db: Database, options: MigrationsOptions) {
    this.#db = db
    this.#tables = tablesOf(options, db.single)
  }

  /** All of it in one transaction, behind one lock: two processes may do it at once. Done twice, it changes nothing. */
  async migrate(): Promise<Migrated[]> {
    return this.#explained(async () => {
      await refuseOldServer(this.#db)
      return this.#db.transaction(async (tx) => {
        const connection = sqlOf(tx)
        await connection.query(LOCK_TIMEOUT)
        await connection.query(LOCK)
        const done: Migrated[] = []
        for (const table of this.#tables) done.push(await this.#migrateOne(connection, table))
        return done
      })
    })
  }

  /**
   * Drops the tables with all that is in them. Refuses while events are not published, or not archived where there is an
   * archive, unless it is said by name that they may be lost: `down({ discard: 'pending' })`.
   */
  async down(options: DownOptions = {}): Promise<void> {
    const { down } = this.sql({ discard: discardsOf(options) })
    await this.#explained(() =>
      this.#db.transaction(async (tx) => {
        const connection = sqlOf(tx)
        await connection.query(LOCK_TIMEOUT)
        await connection.query(LOCK)
        for (const statement of statements(down)) await connection.query(statement)
      }),
    )
  }

  /**
   * The SQL that `migrate` and `down` run, for a migration tool of one's own. `from`: the version that is there already.
   * Each text is meant for one transaction. `down` refuses as the call does, unless `discard` says what may be lost.
   */
  sql(options: { from?: number } & DownOptions = {}): { readonly up: string; readonly down: string } {
    const { from = 0, ...rest } = options
    const discard = discardsOf(rest)
    const up = this.#tables.flatMap((table) => upSql(table, from))
    const down = [...this.#tables].reverse().flatMap((table) => downSql(table, discard))
    return { up: `${up.join('\n\n')}\n`, down: `${down.join('\n\n')}\n` }
  }

  /** The version each table is of; 0 where there is none. */
  async version(): Promise<Readonly<Record<string, number>>> {
    return this.#explained(async () => {
      const versions: Record<string, number> = {}
      for (const { table } of this.#tables) versions[table.text] = (await recorded(this.#db, table)).version
      return versions
    }, true)
  }

  /** Throws when a table is missing or of a version that this code cannot use, or the server is too old. */
  async check(): Promise<void> {
    await this.#explained(async () => {
      await refuseOldServer(this.#db)
      for (const schema of this.#tables) checkOne(schema, await recorded(this.#db, schema.table))
    }, true)
  }

  /** Tables beside ours, of whatever version, whose names begin so. */
  async recorded(prefix: string): Promise<readonly string[]> {
    return this.#explained(async () => {
      const [first] = this.#tables
      if (first === undefined || (await recorded(this.#db, first.table)).version === 0) return []
      const { rows } = await this.#db.query(
        `SELECT name FROM ${versionsTable(first.table)} WHERE starts_with(name, $1)`,
        [prefix],
      )
      return rows.map((row) => row['name'] as string)
    }, true)
  }

  async #migrateOne(connection: Sql, schema: TableSchema): Promise<Migrated> {
    const { version: from, options } = await recorded(connection, schema.table)
    if (from > 0) refuseRepartition(schema, options)
    const to = Math.max(from, schema.versions.length)
    const chosen = schema.chosen.filter(({ option }) => options[option] !== schema.options[option])
    const missing = { ...schema, chosen, options: merge(options, schema.options) }
    // An index that is there already would still be locked against writers, to find that out.
    const same = Object.entries(missing.options).every(([name, value]) => options[name] === value)
    if (from === to && chosen.length === 0 && same) return { table: schema.table.text, from, to }
    for (const text of upSql(missing, from)) {
      for (const statement of statements(text)) await connection.query(statement)
    }
    return { table: schema.table.text, from, to }
  }

  async #explained<T>(fn: () => Promise<T>, reads = false): Promise<T> {
    try {
      return await fn()
    } catch (error) {
      throw explainedMigration(error, this.#tables.map(({ table }) => table.text).join(', '), reads)
    }
  }
}

/** What was chosen once stays, until it is taken away by `down`. */
function merge(before: Record<string, unknown>, now: TableSchema['options']): TableSchema['options'] {
  const merged: Record<string, string | boolean> = { ...now }
  for (const name in now) if (now[name] === false && before[name] !== undefined) merged[name] = before[name] as string
  return merged
}

function checkOne(schema: TableSchema, { version, options }: RecordedVersion): void {
  const needed = schema.versions.length
  const { text } = schema.table
  if (version === 0) throw notMigrated(text)
  if (version < needed) throw oldSchema(text, version, needed)
  if (version > needed) {
    warnOnce(
      'migrations',
      `${text} is of version ${version}, and this code knows ${needed}: it is older than the table`,
    )
  }
  if (options['dedup'] === true && schema.options['dedup'] === false) {
    const advice = `${schema.table.text} keeps event ids, and this process is not set up for that: what it enqueues is not remembered; give dedup: true`
    warnOnce('migrations', advice)
  }
  if (options['log'] === true && schema.options['log'] !== true) {
    const why = 'its relays must keep what is published, and its events must not be delayed'
    throw new WaybillError(
      'INVALID_OPTION',
      `${text} is a log, and this process is not set up for that: ${why}; give log: true`,
    )
  }
  for (const name in schema.options) {
    const wanted = schema.options[name]
    // Files need nothing of the table.
    if (wanted === false || options[name] === wanted || wanted === 'files') continue
    throw new WaybillError(
      'OLD_SCHEMA',
      `${text} was created without ${name}: ${JSON.stringify(wanted)}; run migrate() with it`,
    )
  }
}

export async function recorded(on: Sql, table: TableName): Promise<RecordedVersion> {
  const there = await on.query('SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL AS there', [
    table.sql,
    versionsTable(table),
  ])
  if (there.rows[0]?.['there'] !== true) return { version: 0, options: {} }
  const { rows } = await on.query(
    `SELECT version::text AS version, options::text AS options FROM ${versionsTable(table)} WHERE name = $1`,
    [table.table],
  )
  const row = rows[0]
  if (row === undefined) return { version: 0, options: {} }
  return { version: Number(row['version']), options: JSON.parse(row['options'] as string) }
}

function upSql(schema: TableSchema, from: number): string[] {
  const { table, versions, chosen, options } = schema
  const versionsName = versionsTable(table)
  const texts: string[] = []
  if (table.schema !== undefined) {
    texts.push(
      `DO $$ BEGIN IF to_regnamespace('"${table.schema}"') IS NULL THEN CREATE SCHEMA "${table.schema}"; END IF; END $$;`,
    )
  }
  texts.push(
    `CREATE TABLE IF NOT EXISTS ${versionsName} (
  name        text        NOT NULL PRIMARY KEY,
  version     int         NOT NULL,
  options     jsonb       NOT NULL DEFAULT '{}',
  migrated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);`,
  )
  for (let version = from; version < versions.length; version++) {
    texts.push(`-- ${table.text}: version ${version + 1}\n${versions[version]}`)
  }
  texts.push(
    ...chosen.map((choice) => choice.sql),
    `INSERT INTO ${versionsName} AS known (name, version, options)
VALUES ('${table.table}', ${versions.length}, '${JSON.stringify(options)}')
ON CONFLICT (name) DO UPDATE
  SET version = GREATEST(known.version, excluded.version), options = excluded.options, migrated_at = clock_timestamp();`,
  )
  return texts
}

function discardsOf(options: DownOptions): readonly Discard[] {
  checkOptions('down', options, { discard: true })
  const discard = options.discard ?? []
  return (typeof discard === 'string' ? [discard] : discard).map((name) => oneOf('down: discard', name, DISCARDS))
}

function downSql(schema: TableSchema, discard: readonly Discard[]): string[] {
  const versionsName = versionsTable(schema.table)
  return [
    ...(schema.guard === undefined ? [] : [schema.guard(discard)]),
    schema.drop,
    `DO $$ BEGIN
  IF to_regclass('${versionsName}') IS NOT NULL THEN
    DELETE FROM ${versionsName} WHERE name = '${schema.table.table}';
    IF NOT EXISTS (SELECT 1 FROM ${versionsName}) THEN DROP TABLE ${versionsName}; END IF;
  END IF;
END $$;`,
  ]
}
