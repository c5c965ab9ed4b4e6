import { checkOptions, type Duration, describe, milliseconds, WaybillError } from '../core/index.ts'
import { has } from '../drivers/has.ts'
import { databaseOf, type EmbeddedOf, type PoolOf, type SqlRootOf } from '../drivers/sql/database.ts'
import type { Database } from '../drivers/sql/sql.ts'
import type { Leadership } from '../outbox/leadership.ts'
import type { Migrated, Store } from '../store/store.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
import { PostgresInbox, type PostgresInboxOptions } from './inbox.ts'
import { ofScope, PostgresLeadership, scopeSchema } from './leadership.ts'
import { Migrations } from './migrate.ts'
import { PostgresOutbox, type PostgresOutboxOptions } from './outbox.ts'
import { PostgresSagas, type PostgresSagasOptions } from './sagas.ts'

/** A store in PostgreSQL: its pool and its tables. */
export interface PostgresOptions<Pool> {
  /** A pg Pool, the `sql` of postgres.js, or a PGlite instance. It stays yours: nothing here closes it. */
  pool: Pool
  outbox?: PostgresOutboxOptions
  inbox?: PostgresInboxOptions
  /** Tables for sagas. Default: none. */
  sagas?: boolean | PostgresSagasOptions
  /** Two tables, for `db.leadership(scope)` of scopes other than the outbox. Default false. */
  leadership?: boolean
  /**
   * How long a statement of the inbox, of `enqueue` and of the cleaner may go without an answer. Default 30 s. Those of
   * `admin` have limits of their own; yours are ended by the signal that `withTransaction` is given, or by your pool.
   */
  statementTimeout?: Duration
}

/**
 * Transactions on PostgreSQL. A COMMIT that the server answers with ROLLBACK is an error (ROLLED_BACK); a database that
 * is away is `Unavailable`, so that no message is blamed; a transaction that has ended cannot be used.
 */
export class PostgresUnitOfWork<Tx = unknown> extends AmbientUnitOfWork<Tx> {
  constructor(database: Database<Tx>) {
    super((fn, signal) => database.transaction(fn, signal))
  }
}

/** Transactions, an outbox and an inbox on a PostgreSQL database. Nothing is sent to it until something is called. */
export class Postgres<Tx = unknown> extends PostgresUnitOfWork<Tx> implements Store<Tx> {
  readonly name: string
  readonly outbox: PostgresOutbox<Tx>
  readonly inbox: PostgresInbox<Tx>
  readonly #sagas: PostgresSagas<Tx> | undefined
  readonly migrations: Migrations
  readonly database: Database<Tx>
  readonly #scopes: boolean

  constructor(
    database: Database<Tx>,
    options: Pick<PostgresOptions<unknown>, 'outbox' | 'inbox' | 'sagas' | 'leadership'>,
  ) {
    super(database)
    this.database = database
    this.outbox = new PostgresOutbox(database, () => this.current(), options.outbox)
    this.inbox = new PostgresInbox(database, options.inbox)
    const { sagas = false } = options
    this.#sagas = sagas === false ? undefined : new PostgresSagas(database, sagas === true ? {} : sagas)
    this.name = `postgres ${this.outbox.name}`
    this.#scopes = options.leadership ?? false
    const { schema } = this.outbox
    // The outbox has tables of its own beside the main one: its branches.
    const tables = [...(schema.tables ?? []), ...(this.#sagas === undefined ? [] : [this.#sagas.names.schema()])]
    if (this.#scopes) tables.push(scopeSchema(this.outbox.names.table))
    this.migrations = new Migrations(database, { ...schema, inbox: this.inbox.names, tables })
  }

  /** Only where they were asked for: every table is one more to migrate. */
  get sagas(): PostgresSagas<Tx> {
    if (this.#sagas !== undefined) return this.#sagas
    throw new WaybillError('INVALID_OPTION', 'there are no tables for sagas; give postgres({ pool, sagas: true })')
  }

  /** `outbox`: the relays of its outbox. Any other name needs `leadership: true`. */
  leadership(scope: string): Leadership {
    if (scope === 'outbox') return this.outbox.leadership
    const place = ofScope(this.outbox.names.table, scope)
    if (this.#scopes) return new PostgresLeadership(this.database, place)
    const text = `leadership: ${describe(scope)} needs tables; give postgres({ pool, leadership: true }), and run migrate()`
    throw new WaybillError('INVALID_OPTION', text)
  }

  /** Creates the tables, or brings them up to date. On request only, safe to repeat, and to run on many at once. */
  migrate(): Promise<readonly Migrated[]> {
    return this.migrations.migrate()
  }
}

/**
 * `postgres({ pool })`: outbox, inbox and transactions on the database you already have. Further outboxes of one
 * database, one for each module, are further calls with another `outbox.table`.
 */
export function postgres<Tx>(options: PostgresOptions<PoolOf<Tx>>): Postgres<Tx>
export function postgres<Tx>(options: PostgresOptions<SqlRootOf<Tx>>): Postgres<Tx>
export function postgres<Tx>(options: PostgresOptions<EmbeddedOf<Tx>>): Postgres<Tx>
export function postgres(options: PostgresOptions<unknown>): Postgres {
  // A pool given by itself has keys of its own, and none of them is a misspelt option.
  const itself = typeof options !== 'object' || has(options, 'query')
  if (!itself)
    checkOptions('postgres', options, {
      pool: true,
      outbox: true,
      inbox: true,
      sagas: true,
      leadership: true,
      statementTimeout: true,
    })
  if (itself || !('pool' in options)) {
    throw new WaybillError('INVALID_OPTION', 'postgres: give the pool by its name: postgres({ pool })')
  }
  const { statementTimeout = '30s' } = options
  return new Postgres(databaseOf(options.pool, milliseconds(statementTimeout, 'postgres: statementTimeout')), options)
}
