import { describe, WaybillError } from '../../core/index.ts'
import { PgDatabase } from './pg.ts'
import { PgliteDatabase, type PgliteRoot } from './pglite.ts'
import { PostgresJsDatabase } from './postgres-js.ts'
import type { PostgresJsRoot } from './postgres-js-shapes.ts'
import type { Database } from './sql.ts'
import { isPgClient, isPgliteRoot, isPgPool, isPostgresJsRoot } from './sql-of.ts'

/** What is taken for a database, and the transactions it gives. Drivers overload their methods, so these do too. */
export interface PoolOf<Tx> {
  connect(): Promise<Tx>
  // biome-ignore lint/suspicious/noExplicitAny: the form with a callback, which is not called.
  connect(callback: any): void
  readonly totalCount: number
}

export interface SqlRootOf<Tx> extends Pick<PostgresJsRoot, 'unsafe'> {
  // biome-ignore lint/suspicious/noExplicitAny: what `begin` returns is not looked at.
  begin(fn: (tx: Tx) => any): Promise<any>
  // biome-ignore lint/suspicious/noExplicitAny: the form with options, which is not called.
  begin(options: string, fn: (tx: Tx) => any): Promise<any>
}

export interface EmbeddedOf<Tx> extends Pick<PgliteRoot, 'closed'> {
  transaction<T>(fn: (tx: Tx) => Promise<T>): Promise<T>
}

/** A pool of pg, a client of postgres.js, or a PGlite. */
export type DatabaseLike<Tx = never> = PoolOf<Tx> | SqlRootOf<Tx> | EmbeddedOf<Tx>

/** The database behind the client that was given; `within` is how long a statement of ours may take. */
export function databaseOf<Tx>(given: DatabaseLike<Tx>, within?: number): Database<Tx>
export function databaseOf(given: unknown, within?: number): Database
export function databaseOf(given: unknown, within?: number): Database {
  if (isPgPool(given)) return new PgDatabase(given, within) as unknown as Database
  if (isPostgresJsRoot(given)) return new PostgresJsDatabase(given, within) as unknown as Database
  if (isPgliteRoot(given)) return new PgliteDatabase(given, within) as unknown as Database
  const one = isPgClient(given) ? 'a pg Client is a single connection, and more than one is needed' : undefined
  // A URL holds a password: what was given is never shown.
  const what = typeof given === 'string' ? 'a text, perhaps a URL,' : describe(given)
  throw new WaybillError(
    'INVALID_OPTION',
    `${one ?? `${what} is not a database`}; give a pg Pool, the sql of postgres.js, or a PGlite instance`,
  )
}

export { type Recogniser, recognisers, refusePool, type SqlFunction, sqlOf } from './sql-of.ts'
