import { describe, WaybillError } from '../core/index.ts'
import { PgDatabase } from './pg.ts'
import type { PgPool } from './pg-shapes.ts'
import type { Database } from './sql.ts'

/** The database behind the client that was handed over. */
export function databaseOf(given: unknown): Database {
  if (isPgPool(given)) return new PgDatabase(given) as unknown as Database
  throw new WaybillError('INVALID_OPTION', `${describe(given)} is not a database; give a pg Pool`)
}

function isPgPool(given: unknown): given is PgPool {
  return has(given, 'connect', 'query') && typeof (given as PgPool).totalCount === 'number'
}

function has(given: unknown, ...methods: string[]): boolean {
  if ((typeof given !== 'object' && typeof given !== 'function') || given === null) return false
  return methods.every((method) => typeof (given as Record<string, unknown>)[method] === 'function')
}
