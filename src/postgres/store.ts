import { checkOptions, type Duration, describe, type Message, milliseconds, WaybillError } from '../core/index.ts'
import { has } from '../drivers/has.ts'
import { type DatabaseLike, databaseOf } from '../drivers/sql/database.ts'
import type { Database } from '../drivers/sql/sql.ts'
import type { Audit } from '../outbox/admin.ts'
import type { Leadership } from '../outbox/leadership.ts'
import type { CheckpointStore, Position } from '../projection/port.ts'
import { type BarrierFunction, throughBarrier } from '../store/barrier.ts'
import type { Migrated, Store } from '../store/store.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
import { PostgresBarriers, type PostgresBarriersOptions } from './barriers.ts'
import { PostgresInbox, type PostgresInboxOptions } from './inbox.ts'
import { ofScope, PostgresLeadership, scopeSchema } from './leadership.ts'
import type { PostgresLog } from './log.ts'
import { trimLog } from './log-trim.ts'
import { Migrations } from './migrate.ts'
import { PostgresOutbox, type PostgresOutboxOptions } from './outbox.ts'
import { PostgresProjections, type PostgresProjectionsOptions } from './projections.ts'
import type { PostgresSagasOptions } from './saga-names.ts'
import { PostgresSagas } from './sagas.ts'

/** A store in PostgreSQL: its pool and its tables. */
export interface PostgresOptions<Pool> {
  /** A pg Pool, the `sql` of postgres.js, or a PGlite instance. It stays yours: nothing here closes it. */
  pool: Pool
  outbox?: PostgresOutboxOptions
  inbox?: PostgresInboxOptions
  /** Tables for sagas. Default: none. */
  sagas?: boolean | PostgresSagasOptions
  /** Tables for projections, and for who may run them. Default: none. */
  projections?: boolean | PostgresProjectionsOptions
  /** A table and an SQL function, for services that take part in the sagas of others. Default: none. */
  barrier?: boolean | PostgresBarriersOptions
  /** Two tables, for `db.leadership(scope)` of scopes other than the outbox. Default false. */
  leadership?: boolean
  /**
   * How long a statement of the inbox, of `enqueue` and of the cleaner may go without an answer. Default 30 s. Those of
   * `admin` have limits of their own; yours are ended by the signal that `withTransaction` is given, or by your pool.
   */
  statementTimeout?: Duration
}

/**
 * Transactions on PostgreSQL. A COMMIT that the server replies to with ROLLBACK is an error (ROLLED_BACK); a database that
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
  readonly #projections: PostgresProjections<Tx> | undefined
  readonly #barriers: PostgresBarriers<Tx> | undefined
  readonly migrations: Migrations
  readonly database: Database<Tx>
  readonly #scopes: boolean

  constructor(
    database: Database<Tx>,
    options: Pick<PostgresOptions<unknown>, 'outbox' | 'inbox' | 'sagas' | 'projections' | 'barrier' | 'leadership'>,
  ) {
    super(database)
    this.database = database
    this.outbox = new PostgresOutbox(database, () => this.current(), options.outbox)
    this.inbox = new PostgresInbox(database, options.inbox)
    const { sagas = false, projections = false, barrier = false } = options
    this.#barriers = barrier === false ? undefined : new PostgresBarriers(database, barrier === true ? {} : barrier)
    this.#sagas = sagas === false ? undefined : new PostgresSagas(database, sagas === true ? {} : sagas)
    this.#projections =
      projections === false ? undefined : new PostgresProjections(database, projections === true ? {} : projections)
    this.name = `postgres ${this.outbox.name}`
    // Each projection has one owner at a time.
    this.#scopes = (options.leadership ?? false) || this.#projections !== undefined
    const { schema } = this.outbox
    // The outbox has tables of its own beside the main one: its branches.
    const tables = [...(schema.tables ?? []), ...(this.#sagas === undefined ? [] : [this.#sagas.names.schema()])]
    if (this.#projections !== undefined) tables.push(this.#projections.names.schema())
    if (this.#barriers !== undefined) tables.push(this.#barriers.schema())
    if (this.#scopes) tables.push(scopeSchema(this.outbox.names.table))
    this.migrations = new Migrations(database, { ...schema, inbox: this.inbox.names, tables })
  }

  /** Only where they were asked for: every table is one more to migrate. */
  get sagas(): PostgresSagas<Tx> {
    if (this.#sagas !== undefined) return this.#sagas
    throw new WaybillError(
      'INVALID_OPTION',
      'there are no tables for sagas; give postgres({ pool, sagas: true }), and run migrate()',
    )
  }

  /** Only where they were asked for, as sagas. */
  get projections(): PostgresProjections<Tx> {
    if (this.#projections !== undefined) return this.#projections
    const text = 'there are no tables for projections; give postgres({ pool, projections: true }), and run migrate()'
    throw new WaybillError('INVALID_OPTION', text)
  }

  /** What was run and undone here for the sagas of others. Only where it was asked for. */
  get barriers(): PostgresBarriers<Tx> {
    if (this.#barriers !== undefined) return this.#barriers
    throw new WaybillError(
      'INVALID_OPTION',
      'there is no table for barriers; give postgres({ pool, barrier: true }), and run migrate()',
    )
  }

  /**
   * For a service that takes part in a saga: runs `fn` for a request, and for its undo, once, whatever comes twice or in
   * the wrong order. In the handler's transaction; return what it returns.
   */
  barrier(tx: Tx, message: Message, fn: BarrierFunction): Promise<readonly Message[]> {
    return throughBarrier(this.barriers, tx, message, fn)
  }

  /** Only where the outbox was declared one: `outbox: { log: true }`. */
  get log(): PostgresLog {
    if (this.outbox.log !== undefined) return this.outbox.log
    const text = `${this.outbox.name} is no log; give postgres({ pool, outbox: { log: true } }), and run migrate()`
    throw new WaybillError('INVALID_OPTION', text)
  }

  /**
   * Removes events of the log before a position, for good; returns how many. Refuses above the checkpoint of a projection,
   * here or in `checkpoints`: other databases whose projections read this log.
   */
  async trimLog(
    before: Position,
    audit: Audit,
    options: { readonly checkpoints?: readonly Pick<CheckpointStore, 'list'>[] } = {},
  ): Promise<number> {
    checkOptions('trimLog', options, { checkpoints: true })
    const own = this.#projections === undefined ? [] : [this.#projections]
    const checkpoints = [...own, ...(options.checkpoints ?? [])]
    return trimLog(this.database, before, { names: this.outbox.names, head: await this.log.head(), audit, checkpoints })
  }

  /** `outbox`: the relays of its outbox. Any other name needs `leadership: true`. */
  leadership(scope: string): Leadership {
    if (scope === 'outbox') return this.outbox.leadership
    const place = ofScope(this.outbox.names.table, scope)
    if (this.#scopes) return new PostgresLeadership(this.database, place)
    const option = scope.startsWith('projection/') ? 'projections' : 'leadership'
    const text = `${describe(scope)} needs tables to have one owner; give postgres({ pool, ${option}: true }), and run migrate()`
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
export function postgres<Tx>(options: PostgresOptions<DatabaseLike<Tx>>): Postgres<Tx> {
  // A pool given by itself has keys of its own, and none of them is a misspelt option.
  const itself = typeof options !== 'object' || has(options, 'query')
  if (!itself)
    checkOptions('postgres', options, {
      pool: true,
      outbox: true,
      inbox: true,
      sagas: true,
      projections: true,
      barrier: true,
      leadership: true,
      statementTimeout: true,
    })
  if (itself || !('pool' in options)) {
    throw new WaybillError('INVALID_OPTION', 'postgres: give the pool by its name: postgres({ pool })')
  }
  const { statementTimeout = '30s' } = options
  const within = milliseconds(statementTimeout, 'postgres: statementTimeout')
  return new Postgres(databaseOf(options.pool, within), options)
}
