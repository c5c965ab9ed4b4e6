import { poolSize } from './pool.ts'
import { PostgresJsAttempt } from './postgres-js-attempt.ts'
import { PostgresJsConnection } from './postgres-js-connection.ts'
import { isConnectionError } from './postgres-js-reservation.ts'
import { type PostgresJsRoot, type PostgresJsTransaction, postgresJsResult } from './postgres-js-shapes.ts'
import type { Connection, ConnectOptions, Database, SqlResult, SqlValue } from './sql.ts'

/** The `sql` of postgres.js. */
export class PostgresJsDatabase implements Database<PostgresJsTransaction> {
  readonly driver = 'postgres.js'
  readonly single = false
  readonly poolName = 'the pool of postgres.js'
  readonly #sql: PostgresJsRoot

  constructor(sql: PostgresJsRoot) {
    this.#sql = sql
  }

  get size(): number | undefined {
    return poolSize(this.#sql)
  }

  async query(text: string, values: readonly SqlValue[] = []): Promise<SqlResult> {
    return postgresJsResult(await this.#sql.unsafe(text, values as unknown[]))
  }

  connect(options: ConnectOptions): Promise<Connection> {
    return PostgresJsConnection.open(this.#sql, options)
  }

  /** The first that uses a place of the pool again is answered the last words of the connection before: begin again. */
  async transaction<T>(fn: (tx: PostgresJsTransaction) => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      const attempt = new PostgresJsAttempt(fn)
      try {
        return await attempt.run(this.#sql)
      } catch (error) {
        if (attempt.begun || tries === 3 || !isConnectionError((error as Error).cause)) throw error
      }
    }
  }
}
