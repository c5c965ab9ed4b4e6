import { describe, WaybillError } from '../../core/index.ts'
import { has } from '../has.ts'
import { knex, notTransactions, prisma, sequelize } from './orms.ts'
import type { PgClient, PgPool } from './pg-shapes.ts'
import { type PgliteRoot, type PgliteTransaction, pgliteResult } from './pglite.ts'
import { type PostgresJsRoot, type PostgresJsSql, postgresJsResult } from './postgres-js-shapes.ts'
import type { Sql, SqlResult, SqlValue } from './sql.ts'

/** The smallest transaction there is: it runs SQL with `$1` parameters and returns rows, or an object that holds them. */
export type SqlFunction = (text: string, values: readonly SqlValue[]) => Promise<unknown>

/** Returns how to run SQL through `tx`, or nothing when it does not know what `tx` is. */
export type Recogniser = (tx: unknown) => Sql | undefined

/**
 * Every kind of transaction that is known; the first that knows it wins. Those of other libraries are
 * recognised by their methods, so the particular come before the general.
 */
export const recognisers: Recogniser[] = [postgresJs, pglite, prisma, knex, sequelize, anyQuery, anyFunction]

/** SQL through the transaction that the caller already has. It is neither begun nor ended here. */
export function sqlOf(tx: unknown): Sql {
  for (const recognise of recognisers) {
    const sql = recognise(tx)
    if (sql !== undefined) return sql
  }
  throw new WaybillError(
    'INVALID_OPTION',
    `${describe(tx)} is not a transaction; give a pg client, the sql of a postgres.js transaction, a PGlite transaction, an object with query(text, values), or a function (text, values) => rows`,
  )
}

/** Throws for what would write outside of any transaction: then a rollback would not take the write along. */
export function refusePool(tx: unknown): void {
  if (isPgPool(tx)) refuse('a pg Pool', 'take a client from it, BEGIN, and give that client')
  if (isPostgresJsRoot(tx)) refuse('the sql of postgres.js itself', 'give the sql that sql.begin() passes to you')
  if (isPgliteRoot(tx)) refuse('a PGlite instance', 'give the tx that transaction() passes to you')
  if (isPgClient(tx)) {
    if (tx.getTransactionStatus?.() === 'I') refuse('a pg client without a transaction', 'BEGIN first')
    return
  }
  if ((typeof tx !== 'object' && typeof tx !== 'function') || tx === null || isPostgresJsSql(tx)) return
  const known = notTransactions.find(({ is }) => is(tx as Record<string, unknown>))
  if (known !== undefined) refuse(known.what, known.instead)
}

function refuse(what: string, instead: string): never {
  throw new WaybillError(
    'NOT_A_TRANSACTION',
    `${what} was given where a transaction is needed; ${instead}, or use withTransaction()`,
  )
}

function postgresJs(tx: unknown): Sql | undefined {
  if (!isPostgresJsSql(tx)) return undefined
  return { query: async (text, values = []) => postgresJsResult(await tx.unsafe(text, [...values])) }
}

function pglite(tx: unknown): Sql | undefined {
  if (!isPgliteTransaction(tx) && !isPgliteRoot(tx)) return undefined
  return { query: async (text, values) => pgliteResult(await tx.query(text, values as unknown[])) }
}

function anyQuery(tx: unknown): Sql | undefined {
  if (!has(tx, 'query')) return undefined
  const { query } = tx as { query: SqlFunction }
  return { query: async (text, values = []) => resultOf(await query.call(tx, text, values)) }
}

function anyFunction(tx: unknown): Sql | undefined {
  if (typeof tx !== 'function') return undefined
  return { query: async (text, values = []) => resultOf(await (tx as SqlFunction)(text, values)) }
}

/** Rows, or an object with rows and perhaps a count under one of its usual names. */
export function resultOf(answer: unknown): SqlResult {
  if (Array.isArray(answer)) return { rows: answer, count: answer.length, command: undefined }
  const { rows, rowCount, affectedRows, count, command } = (answer ?? {}) as Record<string, unknown>
  if (!Array.isArray(rows)) {
    throw new WaybillError('BAD_DRIVER', `query() returned ${describe(answer)}; it must return rows or { rows }`)
  }
  const counted = [rowCount, affectedRows, count].find((number) => typeof number === 'number') as number | undefined
  return { rows, count: counted ?? rows.length, command: typeof command === 'string' ? command : undefined }
}

/** Which driver an object belongs to, seen from its methods: nothing is imported to ask. */

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
