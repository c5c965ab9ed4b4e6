import { Unavailable } from '../core/index.ts'
import { ANSWER_WITHIN, COMMIT_WITHIN } from './connection.ts'
import { PostgresJsConnection } from './postgres-js-connection.ts'
import { Reservation } from './postgres-js-reservation.ts'
import { type PostgresJsRoot, type PostgresJsTransaction, postgresJsResult } from './postgres-js-shapes.ts'
import type { Connection, ConnectOptions, Database, SqlResult, SqlValue } from './sql.ts'
import {
  cannotBegin,
  commitUnknown,
  endedInside,
  Guard,
  guarded,
  isStatementError,
  keepOriginal,
  rolledBack,
} from './transaction.ts'

/**
 * The `sql` of postgres.js. Transactions run on a reserved connection rather than in `sql.begin()`: that one sends a
 * ROLLBACK to a connection that broke, an exception nobody can catch, and does not tell whether COMMIT was one.
 */
export class PostgresJsDatabase implements Database<PostgresJsTransaction> {
  readonly driver = 'postgres.js'
  readonly single = false
  readonly #sql: PostgresJsRoot

  constructor(sql: PostgresJsRoot) {
    this.#sql = sql
  }

  async query(text: string, values: readonly SqlValue[] = []): Promise<SqlResult> {
    return postgresJsResult(await this.#sql.unsafe(text, values as unknown[]))
  }

  connect(options: ConnectOptions): Promise<Connection> {
    return PostgresJsConnection.open(this.#sql, options)
  }

  async transaction<T>(fn: (tx: PostgresJsTransaction) => Promise<T>): Promise<T> {
    const reserved = await begin(this.#sql)
    const guard = new Guard()
    reserved.onLost((error) => guard.end(new Unavailable('the connection to PostgreSQL is lost', { cause: error })))
    let value: T
    try {
      value = await fn(transactionSql(reserved, guard))
    } catch (error) {
      guard.end()
      await rollback(reserved, error)
      throw error
    }
    guard.end()
    await commit(reserved)
    return value
  }
}

async function begin(sql: PostgresJsRoot): Promise<Reservation> {
  try {
    return await Reservation.make(sql, 'BEGIN', ANSWER_WITHIN)
  } catch (error) {
    throw cannotBegin(error)
  }
}

async function commit(reserved: Reservation): Promise<void> {
  let tag: string
  try {
    tag = (await reserved.send('COMMIT', COMMIT_WITHIN)).command
  } catch (error) {
    const certain = isStatementError(error)
    reserved.giveBack(!certain)
    throw certain ? error : commitUnknown(error)
  }
  reserved.giveBack(false)
  if (tag !== 'COMMIT') throw rolledBack()
}

async function rollback(reserved: Reservation, original: unknown): Promise<void> {
  try {
    await reserved.send('ROLLBACK', ANSWER_WITHIN)
  } catch (error) {
    reserved.giveBack(true)
    keepOriginal(original, error)
    return
  }
  reserved.giveBack(false)
}

/** Nothing here tells afterwards whether COMMIT met a transaction at all. */
function refuseEnding(text: string): void {
  if (/^\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to\b))\b/i.test(text)) throw endedInside()
}

type Savepoint = (tx: PostgresJsTransaction) => unknown

/** The `sql` of a transaction, with `savepoint` as `sql.begin()` gives it. */
function transactionSql(reserved: Reservation, guard: Guard): PostgresJsTransaction {
  const { sql } = reserved
  let savepoints = 0
  const check = (strings?: unknown) => {
    guard.check()
    const text = Array.isArray(strings) ? strings[0] : strings
    if (typeof text === 'string') refuseEnding(text)
  }
  const tx: PostgresJsTransaction = guarded(sql as unknown as PostgresJsTransaction, check, {
    unsafe: (...args: [string, unknown[]?, object?]) => {
      check(args[0])
      return sql.unsafe(...args)
    },
    savepoint: async (first: string | Savepoint, second?: Savepoint) => {
      const fn = typeof first === 'function' ? first : second!
      const name = `waybill_${++savepoints}`
      await tx.unsafe(`SAVEPOINT ${name}`)
      try {
        return await fn(tx)
      } catch (error) {
        await tx.unsafe(`ROLLBACK TO SAVEPOINT ${name}`)
        throw error
      }
    },
    release: undefined,
  })
  return tx
}
