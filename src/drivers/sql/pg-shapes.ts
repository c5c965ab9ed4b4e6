import type { SqlResult } from './sql.ts'

/** What is called of a `pg` result, client and pool. */
export interface PgResult {
  readonly rows: readonly unknown[]
  readonly rowCount: number | null
  readonly command: string
}

export interface PgQuery {
  text: string
  values?: unknown[]
  name?: string
  rowMode?: 'array'
  types?: { getTypeParser(type: number, format?: string): (text: string) => unknown }
}

export interface PgClient {
  query(query: PgQuery): Promise<PgResult>
  query(text: string, values?: unknown[]): Promise<PgResult>
  // biome-ignore lint/suspicious/noExplicitAny: each event has arguments of its own.
  on(event: string, listener: (...args: any[]) => void): unknown
  // biome-ignore lint/suspicious/noExplicitAny: each event has arguments of its own.
  removeListener(event: string, listener: (...args: any[]) => void): unknown
  release(destroy?: boolean | Error): void
  readonly processID?: number | null
  readonly connection?: { readonly stream?: { readonly localPort?: number } }
  getTransactionStatus?(): string | null
}

export interface PgPool {
  connect(): Promise<PgClient>
  query(text: string, values?: unknown[]): Promise<PgResult>
  on(event: 'error', listener: (error: Error) => void): unknown
  listenerCount(event: 'error'): number
  readonly totalCount: number
  readonly idleCount: number
  readonly options?: { readonly max?: number }
}

export function pgResult(result: PgResult): SqlResult {
  return { rows: result.rows as Record<string, unknown>[], count: result.rowCount ?? 0, command: result.command }
}

/** A cursor or a stream is returned as it is, and a callback is called: there is no promise to wait for. */
export function answersAtOnce(args: readonly unknown[]): boolean {
  return (
    typeof (args[0] as { submit?: unknown } | undefined)?.submit === 'function' || typeof args.at(-1) === 'function'
  )
}
