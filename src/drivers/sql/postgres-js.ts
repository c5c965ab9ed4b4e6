import { answered, STATEMENT_WITHIN } from './connection.ts'
import { poolSize } from './pool.ts'
import { PostgresJsAttempt } from './postgres-js-attempt.ts'
import { cellsOf, PostgresJsConnection } from './postgres-js-connection.ts'
import { type PostgresJsRoot, type PostgresJsTransaction, postgresJsResult } from './postgres-js-shapes.ts'
import type { Cell, Connection, Database, SqlConnectOptions, SqlResult, SqlValue } from './sql.ts'
import { isConnectionError } from './transaction.ts'

/** The `sql` of postgres.js. */
export class PostgresJsDatabase implements Database<PostgresJsTransaction> {
  readonly driver = 'postgres.js'
  readonly single = false
  readonly poolName = 'the pool of postgres.js'
  readonly within: number
  readonly #sql: PostgresJsRoot

  constructor(sql: PostgresJsRoot, within = STATEMENT_WITHIN) {
    this.#sql = sql
    this.within = within
  }

  get pool(): object {
    return this.#sql
  }

  get size(): number | undefined {
    return poolSize(this.#sql)
  }

  async query(text: string, values: readonly SqlValue[] = []): Promise<SqlResult> {
    const query = this.#sql.unsafe(text, values as unknown[])
    return postgresJsResult(await answered(query, this.within, () => {}))
  }

  /** postgres.js names statements itself, and its own option says whether they may be. */
  async prepared(_name: string, text: string, values: readonly SqlValue[]): Promise<SqlResult> {
    const prepare = this.#sql.options?.prepare !== false
    const query = this.#sql.unsafe(text, values as unknown[], { prepare })
    return postgresJsResult(await answered(query, this.within, () => {}))
  }

  async read(_name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    const prepare = this.#sql.options?.prepare !== false
    const query = this.#sql.unsafe(text, values as unknown[], { prepare }).raw()
    return cellsOf(await answered(query, this.within, () => {}))
  }

  connect(options: SqlConnectOptions): Promise<Connection> {
    return PostgresJsConnection.open(this.#sql, options)
  }

  /** The first statement in the place of a dead connection is rejected with the error of that one: begin again. */
  async transaction<T>(fn: (tx: PostgresJsTransaction) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const pool = { name: this.poolName, size: this.size, taken: undefined }
    for (let tries = 1; ; tries++) {
      const attempt = new PostgresJsAttempt(fn, signal)
      try {
        return await attempt.run(this.#sql, pool)
      } catch (error) {
        if (attempt.begun || tries === 3 || !isConnectionError((error as Error).cause)) throw error
      }
    }
  }
}
