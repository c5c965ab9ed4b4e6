/**
 * The few methods of pg, postgres.js and PGlite that are called here, written down so that none of them is imported.
 * Whatever can run SQL with parameters can carry an outbox.
 */

export type SqlValue = string | number | bigint | boolean | null | Uint8Array | Date

export interface SqlResult {
  readonly rows: readonly Record<string, unknown>[]
  /** Rows returned or changed. */
  readonly count: number
  /** The command tag, where the driver gives it: a COMMIT that ended as ROLLBACK shows here. */
  readonly command: string | undefined
}

/**
 * Runs SQL with `$1` parameters. Values come back as the driver parses them, and drivers differ (an int8 is text, a
 * number or a bigint): cast in the SQL what matters. JSON goes in as text, `$1::text::jsonb`: one of them encodes twice.
 */
export interface Sql {
  query(text: string, values?: readonly SqlValue[]): Promise<SqlResult>
}

/** One connection of our own. */
export interface Connection extends Sql {
  /**
   * Behind a pooler that may give every transaction another session: statements are not prepared, `listen` rejects, and
   * session state (advisory locks, settings) must not be used.
   */
  readonly pooled: boolean
  /**
   * Rows as lists of text, as the server sends them: nothing is parsed that is not needed. `name` marks a statement
   * that is worth preparing; it is left unprepared where a pooler would lose it.
   */
  read(name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]>
  /** Like `query`, prepared under `name`. */
  run(name: string, text: string, values: readonly SqlValue[]): Promise<number>
  /** Calls `onNotify` for each notification on the channel. Rejects where it cannot work. */
  listen(channel: string, onNotify: () => void): Promise<void>
  /** The listener is called once, when the connection breaks. */
  onLost(listener: (error: unknown) => void): void
  /** Gives it back, or closes it when it cannot be trusted any more. */
  release(broken?: boolean): Promise<void>
}

export type Cell = string | Uint8Array | null

export interface SqlConnectOptions {
  /** Prepare statements that are repeated. Off behind a pooler in transaction mode. */
  readonly prepare: boolean
  /** Shown in pg_stat_activity. */
  readonly applicationName?: string
  /** No answer within this many milliseconds is a broken connection. */
  readonly timeout?: number
}

/** A database: a pool, or the one session of an embedded PostgreSQL. `Tx` is the driver's own transaction type. */
export interface Database<Tx = unknown> extends Sql {
  readonly driver: 'pg' | 'postgres.js' | 'pglite'
  /** Only one session: a second transaction waits for the first, locks never contend. */
  readonly single: boolean
  /** The client that was given. Databases of one pool share its connections. */
  readonly pool: object
  /** How many connections the pool may open, where it is known. Undefined of PGlite, whose one session all share. */
  readonly size: number | undefined
  /** What errors call the pool: `the pg Pool`, `the pool of postgres.js`. */
  readonly poolName: string
  /** How long a statement of ours may take, in milliseconds. */
  readonly within: number
  connect(options: SqlConnectOptions): Promise<Connection>
  /** Like `query`, prepared under `name`, unless a pooler would lose it. */
  prepared(name: string, text: string, values: readonly SqlValue[]): Promise<SqlResult>
  /** The same, with rows as lists of text, see `Connection.read`. */
  read(name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]>
  /**
   * BEGIN, `fn`, COMMIT; ROLLBACK when it throws. The tag of the COMMIT is checked. `signal` ends the wait for a
   * connection only. `Unavailable` when there is no connection to be had, or when it is lost and `fn` throws for that.
   */
  transaction<T>(fn: (tx: Tx) => Promise<T>, signal?: AbortSignal): Promise<T>
}

/** Text of a PostgreSQL array, to be cast: `$1::text::bigint[]`. The same for every driver. */
export function numberArray(values: readonly (number | string | bigint)[]): string {
  return `{${values.join(',')}}`
}

/** Text of a text[], with quotes and backslashes escaped. */
export function textArray(values: readonly (string | null | undefined)[]): string {
  let text = '{'
  for (let i = 0; i < values.length; i++) {
    const value = values[i]
    if (i > 0) text += ','
    text += value === null || value === undefined ? 'NULL' : quoteElement(value)
  }
  return `${text}}`
}

function quoteElement(value: string): string {
  return /["\\]/.test(value) ? `"${value.replace(/["\\]/g, '\\$&')}"` : `"${value}"`
}
