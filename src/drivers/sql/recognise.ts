import type { PgClient, PgPool } from './pg-shapes.ts'
import type { PgliteRoot, PgliteTransaction } from './pglite.ts'
import type { PostgresJsRoot, PostgresJsSql } from './postgres-js-shapes.ts'

/** Which driver an object belongs to, told by its methods: nothing is imported to ask. */

export function isPgPool(given: unknown): given is PgPool {
  return has(given, 'connect', 'query') && typeof (given as PgPool).totalCount === 'number'
}

export function isPgClient(given: unknown): given is PgClient {
  return has(given, 'query', 'escapeIdentifier', 'removeListener') && !isPgPool(given)
}

export function isPostgresJsRoot(given: unknown): given is PostgresJsRoot {
  return typeof given === 'function' && has(given, 'unsafe', 'begin', 'reserve')
}

/** The `sql` of a transaction, or of a reserved connection. */
export function isPostgresJsSql(given: unknown): given is PostgresJsSql {
  return typeof given === 'function' && has(given, 'unsafe')
}

export function isPgliteRoot(given: unknown): given is PgliteRoot {
  return has(given, 'query', 'transaction', 'listen', 'exec') && 'parsers' in (given as object)
}

export function isPgliteTransaction(given: unknown): given is PgliteTransaction {
  return has(given, 'query', 'exec', 'rollback') && 'closed' in (given as object)
}

export function has(given: unknown, ...methods: string[]): boolean {
  if ((typeof given !== 'object' && typeof given !== 'function') || given === null) return false
  return methods.every((method) => typeof (given as Record<string, unknown>)[method] === 'function')
}
