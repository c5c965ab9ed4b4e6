import type { SqlResult } from './sql.ts'

/** What is called of postgres.js: a query that runs when it is awaited, its result, and `sql` in its three roles. */
export interface PostgresJsResult extends ReadonlyArray<unknown> {
  readonly count: number | null
  readonly command: string
  readonly columns?: readonly { readonly type: number }[]
  readonly state?: { readonly pid: number | null }
}

export interface PostgresJsQuery extends PromiseLike<PostgresJsResult> {
  raw(): PromiseLike<PostgresJsResult>
}

export interface PostgresJsQueryOptions {
  prepare?: boolean
  /** Not documented: called with the connection that is used. It reports its loss, and can be closed. */
  onexecute?: (connection: PostgresJsInner) => boolean
}

/** A query as it is inside, as far as it is there. */
export interface PostgresJsSent extends Promise<unknown> {
  /** The server process it was sent to; nothing before. */
  readonly state?: object | null
  readonly options?: PostgresJsQueryOptions
  readonly canceller?: ((query: unknown) => Promise<void> | undefined) | null
}

export interface PostgresJsSql {
  // biome-ignore lint/suspicious/noExplicitAny: the values that postgres.js takes are a type of its own.
  unsafe(text: string, values?: any[], options?: any): PostgresJsQuery
}

export interface PostgresJsTransaction extends PostgresJsSql {
  // biome-ignore lint/suspicious/noExplicitAny: overloaded, with and without a name.
  savepoint(...args: any[]): Promise<any>
}

export interface PostgresJsReserved extends PostgresJsSql {
  release(): void
}

export interface PostgresJsRoot extends PostgresJsSql {
  // biome-ignore lint/suspicious/noExplicitAny: the caller's own transaction type.
  begin<T>(fn: (tx: any) => T | Promise<T>): Promise<any>
  readonly options?: { readonly max?: number; readonly prepare?: boolean }
  reserve(): Promise<PostgresJsReserved>
  listen(channel: string, onNotify: () => void, onListen?: () => void): Promise<{ unlisten(): Promise<void> }>
}

/** The connection itself, as far as it is there. */
export interface PostgresJsInner {
  onclose?: ((error: unknown) => void) | null
  reserved?: unknown
  terminate?(): void
}

export function postgresJsResult(result: PostgresJsResult): SqlResult {
  return { rows: result as unknown as Record<string, unknown>[], count: result.count ?? 0, command: result.command }
}
