import { describe, WaybillError } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'
import { explained } from './errors.ts'
import type { TableSchema } from './migrate-tables.ts'

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
  return new WaybillError('NOT_MIGRATED', `${table} does not exist; run migrate(), or the SQL it prints`)
}

export function oldSchema(table: string, version: number, needed: number): WaybillError {
  const text = `${table} is of version ${version}, and this code needs ${needed}; run migrate(), or the SQL it prints`
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

const REFUSED = 'the server refuses this role or its password; give the pool others'

export function explainedMigration(error: unknown, tables: string): unknown {
  const code = (error as { code?: unknown } | null)?.code
  const advice: Record<string, [string, string]> = {
    '42501': ['NO_PERMISSION', `this role may not create or read ${tables}; run migrate() as a role that may`],
    '25006': ['READ_ONLY', `this connection is read-only, and ${tables} must be created; connect to the primary`],
    // At start only: while a relay runs, passwords change and databases are away for a while.
    '28000': ['NO_PERMISSION', REFUSED],
    '28P01': ['NO_PERMISSION', REFUSED],
    '3D000': ['INVALID_OPTION', 'the server has no such database; create it, or give the pool the name of one it has'],
    '55P03': ['LOCKED', `something keeps ${tables} locked; look into pg_locks, and run migrate() again`],
  }
  // Raised by our own SQL, with words of its own.
  if (code === 'WB001') return new WaybillError('NOT_EMPTY', String((error as Error).message), { cause: error })
  const found = typeof code === 'string' ? advice[code] : undefined
  return found === undefined ? explained(error, tables) : new WaybillError(found[0], found[1], { cause: error })
}
