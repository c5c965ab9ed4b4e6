import { classify, describe, Unavailable, WaybillError } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'
import { isStatementError } from '../drivers/sql/transaction.ts'
import type { TableSchema } from './migrate-tables.ts'

/** What a person should do about an error of PostgreSQL's that has to do with how Waybill was set up. */
const ADVICE: Record<string, (table: string) => [code: string, text: string]> = {
  '42P01': (table) => ['NOT_MIGRATED', missing(table)],
  '42703': (table) => [
    'NOT_MIGRATED',
    `${table} lacks columns that are needed: it is of another version; run migrate()`,
  ],
  '42883': (table) => ['NOT_MIGRATED', `a function ${table} needs does not exist; PostgreSQL 14 or later is needed`],
  '42501': (table) => [
    'NO_PERMISSION',
    table.startsWith('sequence ')
      ? `this role may not use ${table}; grant it USAGE on it`
      : `this role may not use ${table}; grant it what docs/guides/postgres-setup.md lists under Roles, or SELECT, INSERT, UPDATE and DELETE`,
  ],
  '25006': (table) => [
    'READ_ONLY',
    `this connection is read-only, and ${table} must be written; connect to the primary`,
  ],
  '40001': (table) => [
    'CONFLICT',
    `another transaction touched the same event of ${table}; under REPEATABLE READ or SERIALIZABLE run the transaction again`,
  ],
}

function missing(table: string): string {
  return `${table} does not exist; check the name, then run db.migrate(), or the SQL in db.migrations.sql().up`
}

/**
 * The same error, with words about what to do where we know. A table that is missing or may not be written is nobody's
 * message's fault: it is `Unavailable`, so that a flow waits until it is mended. A conflict is over when it is tried again.
 */
export function explained(error: unknown, table: string): unknown {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown }
  const advice = typeof code === 'string' ? ADVICE[code]?.(namedIn(message) ?? table) : undefined
  if (advice === undefined) return error
  const [ours, text] = advice
  if (ours === 'CONFLICT') return new WaybillError(ours, text, { cause: error })
  return new Unavailable(text, { cause: error, code: ours })
}

/** What the server says it is about: a companion of the table, or its sequence. Its words may be in another language. */
function namedIn(message: unknown): string | undefined {
  if (typeof message !== 'string') return undefined
  const denied = /^permission denied for (table|sequence|view|schema|function) "?([^"]{1,200})"?$/.exec(message)
  if (denied !== null) return `${denied[1]} ${denied[2]}`
  const absent = /^relation "([^"]{1,200})" does not exist$/.exec(message)
  return absent === null ? undefined : `table ${absent[1]}`
}

/**
 * The server refuses what a statement would write, and will again: a constraint, a trigger, a limit. Not what passes by
 * itself (conflicts, locks, time limits), nor what is no row's fault.
 */
export function isRefusal(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown }
  if (!isStatementError(error) || typeof code !== 'string' || /^(40|55|57)/.test(code)) return false
  return classify(error) !== 'down'
}

/** The server gave the statement up: for its time (`statement_timeout`), or because somebody asked it to. */
export function isCancelled(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '57014'
}

const OLDEST = 140_000

/** PostgreSQL 14 is the first with all that the SQL uses. */
export async function refuseOldServer(on: Sql): Promise<void> {
  const { rows } = await on.query(`SELECT current_setting('server_version_num') AS number`)
  const number = Number(rows[0]?.['number'])
  if (number >= OLDEST) return
  throw new WaybillError(
    'UNSUPPORTED_SERVER',
    `this server is PostgreSQL ${Math.floor(number / 10_000)}; PostgreSQL 14 or later is needed`,
  )
}

export function notMigrated(table: string): WaybillError {
  return new WaybillError('NOT_MIGRATED', missing(table))
}

export function oldSchema(table: string, version: number, needed: number): WaybillError {
  const text = `${table} is of version ${version}, and this code needs ${needed}; run db.migrate(), or the SQL in db.migrations.sql().up`
  return new WaybillError('OLD_SCHEMA', text)
}

/** A table cannot be turned into one of partitions, nor its partitions into others. */
export function refuseRepartition({ table, options }: TableSchema, before: Record<string, unknown>): void {
  const wanted = options['partition'] ?? false
  const is = before['partition'] ?? false
  if (wanted === false || wanted === is) return
  throw new WaybillError(
    'INVALID_OPTION',
    `${table.text} exists ${is === false ? 'without partitions' : `with partition: ${describe(is)}`} and cannot be changed to partition: ${describe(wanted)}; use another table, and let this one run empty`,
  )
}

/** What Node says when nothing listens at an address, or there is no such host. */
const UNREACHABLE = /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT)$/

const REFUSED = 'the server refuses this role or its password; give the pool others'

/** `reads`: nothing was to be created, so a right that is missing is one to read. */
export function explainedMigration(error: unknown, tables: string, reads = false): unknown {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown }
  const noSuch = /^database ("[^"]{1,200}") does not exist$/.exec(String(message))
  const noDatabase = noSuch === null ? 'the server has no such database' : `the server has no database ${noSuch[1]}`
  const advice: Record<string, [string, string]> = {
    '42501': reads
      ? ADVICE['42501']!(namedIn(message) ?? tables)
      : ['NO_PERMISSION', `this role may not create or change ${tables}; run migrate() as a role that may`],
    '25006': ['READ_ONLY', `this connection is read-only, and ${tables} must be created; connect to the primary`],
    // At start only: while a relay runs, passwords change and databases are away for a while.
    '28000': ['NO_PERMISSION', REFUSED],
    '28P01': ['NO_PERMISSION', REFUSED],
    '3D000': ['INVALID_OPTION', `${noDatabase}; create it, or give the pool the name of one it has`],
    '55P03': ['LOCKED', `something keeps ${tables} locked; look into pg_locks, and run migrate() again`],
  }
  // Raised by our own SQL, with words of its own.
  if (code === 'WB001') return new WaybillError('NOT_EMPTY', String((error as Error).message), { cause: error })
  if (code === 'WB002') return new WaybillError('LOG_UNSAFE', String((error as Error).message), { cause: error })
  if (typeof code === 'string' && UNREACHABLE.test(code)) {
    const text = `the database${placeOf(error)} cannot be reached (${code}); is it running, and are host and port right?`
    return new Unavailable(text, { cause: error })
  }
  const found = typeof code === 'string' ? advice[code] : undefined
  return found === undefined ? explained(error, tables) : new WaybillError(found[0], found[1], { cause: error })
}

/** Where the connection went: the address and port of the system's error, or the name that was not found. */
function placeOf(error: unknown): string {
  // Where a name has several addresses, one error holds those of all.
  const { address, hostname, port } = (error as { errors?: [ToSystem] }).errors?.[0] ?? (error as ToSystem)
  const host = address ?? hostname
  if (typeof host !== 'string') return ''
  const name = host.includes(':') ? `[${host}]` : host
  return ` at ${typeof port === 'number' ? `${name}:${port}` : name}`
}

interface ToSystem {
  readonly address?: unknown
  readonly hostname?: unknown
  readonly port?: unknown
}

/** Somebody else's transaction has locked a row, and went on for longer than `lock_timeout`. */
export function isLocked(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '55P03'
}
