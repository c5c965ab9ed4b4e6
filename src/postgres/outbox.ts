import { hostname } from 'node:os'
import {
  checkOptions,
  type Duration,
  type Message,
  type OptionNames,
  oneOf,
  uuidv7,
  WaybillError,
} from '../core/index.ts'
import { answered, limited } from '../drivers/sql/connection.ts'
import { type Database, type Sql, textArray } from '../drivers/sql/sql.ts'
import { refusePool, sqlOf } from '../drivers/sql/sql-of.ts'
import { Assignment } from '../outbox/assignment.ts'
import { type BranchingOutbox, branchNames, noBranch, unpublished } from '../outbox/branches.ts'
import type { OutboxReader, Reader, ReaderOptions } from '../outbox/reader.ts'
import {
  type EnqueueArguments,
  type Enqueued,
  enqueueArguments,
  publishEnqueued,
  type Receipts,
  topicFunction,
} from '../store/enqueue.ts'
import { checkForLog, refusedByLog } from '../store/log.ts'
import type { EnqueueOptions, Outbox } from '../store/store.ts'
import { PostgresOutboxAdmin } from './admin.ts'
import type { ArchiveTarget } from './cleaner.ts'
import { ENQUEUED, MOST_ATTEMPTS } from './columns.ts'
import { explained } from './errors.ts'
import { ofOutbox, PostgresLeadership } from './leadership.ts'
import { leaseSource } from './lease.ts'
import { PostgresLog } from './log.ts'
import { Migrations } from './migrate.ts'
import {
  type MigrationsOptions,
  OUTBOX_OPTIONS as OUTBOX_SCHEMA_OPTIONS,
  type OutboxSchemaOptions,
  outboxSchema,
} from './migrate-tables.ts'
import { type FillOptions, OutboxNames } from './names.ts'
import { ownerSource } from './owner.ts'
import { keptByRelay, PoolBudget } from './pool-budget.ts'
import { poolOrServer } from './relay-connections.ts'
import { type EventRow, eventRow } from './row.ts'
import { sql } from './sql.generated.ts'
import { refuseReadOnly } from './table-checks.ts'

const ENQUEUE_OPTIONS: OptionNames<PostgresEnqueueOptions> = {
  key: true,
  topic: true,
  tenant: true,
  availableAt: true,
  aggregate: true,
  serialize: true,
}

/** What may be said of events when they are enqueued in PostgreSQL. */
export interface PostgresEnqueueOptions extends EnqueueOptions {
  /**
   * Takes a transaction-level lock on the key first, for writers that do not lock it themselves: numbers of one key are
   * then in commit order.
   */
  serialize?: boolean
}

/** The table of an outbox, and what is done with its rows. */
export interface PostgresOutboxOptions extends Omit<OutboxSchemaOptions, 'archive'> {
  /** Default `outbox`. With a schema before it if needed: `billing.outbox`. */
  table?: string
  /** The topic of events for which none is given. Default: the event's type. */
  topic?: string | ((message: Message) => string)
  /**
   * How idle relays learn of new events. `flag` (default) costs a writer nothing while relays are busy. `off` for
   * those who use PREPARE TRANSACTION, which NOTIFY makes fail; relays then poll.
   */
  wake?: 'flag' | 'off'
  /** Takes a pool in place of a transaction: the event is then committed on its own. Default false. */
  allowPool?: boolean
  /** How long published events are kept by the cleaner. Default 7 days. */
  retention?: Duration
  /** Where the cleaner puts what it removes: a table beside the outbox, or compressed files. Default: nowhere. */
  archive?: ArchiveTarget
  /** The destinations of a RoutingRelay: each has an outbox of its own beside this one, `outbox_to_warehouse`. */
  branches?: readonly string[]
  /** Prepares the relay's statements. Default true; off by itself behind a pooler in transaction mode. */
  prepare?: boolean
}

const OPTIONS: OptionNames<PostgresOutboxOptions> = {
  table: true,
  topic: true,
  wake: true,
  allowPool: true,
  retention: true,
  branches: true,
  prepare: true,
  ...OUTBOX_SCHEMA_OPTIONS,
}

/** An outbox in a PostgreSQL table. */
export class PostgresOutbox<Tx = unknown> implements Outbox<Tx>, OutboxReader, BranchingOutbox {
  readonly names: OutboxNames
  readonly admin: PostgresOutboxAdmin
  readonly leadership: PostgresLeadership
  /** Where it was declared one. */
  readonly log: PostgresLog | undefined
  /** What migrations must know of it. */
  readonly schema: MigrationsOptions
  readonly #db: Database<Tx>
  readonly #enqueue: Enqueue
  readonly #prepare: boolean
  readonly #migrations: Migrations
  readonly #current: () => Tx | undefined
  readonly #options: PostgresOutboxOptions
  readonly #branches = new Map<string, PostgresOutbox<Tx>>()

  constructor(db: Database<Tx>, current: () => Tx | undefined, options: PostgresOutboxOptions = {}) {
    checkOptions('outbox', options, OPTIONS)
    const { table = 'outbox', topic, wake = 'flag', allowPool = false, prepare = true, log = false } = options
    this.names = new OutboxNames(table, log)
    this.#db = db
    this.#current = current
    this.#prepare = prepare
    const { retention, archive } = options
    this.admin = new PostgresOutboxAdmin(db, this.names, defined({ retention, archive }))
    if (log && archive !== undefined && archive !== 'table') throw refusedByLog(table, 'archive')
    this.log = log ? new PostgresLog(db, this.names) : undefined
    this.leadership = new PostgresLeadership(db, ofOutbox(this.names.table))
    this.#options = options
    for (const name of branchNames('outbox: branches', options.branches)) this.#branches.set(name, this.#branch(name))
    const chosen = outboxSchemaOf(options)
    const { log: _own, ...ofBranches } = chosen
    const tables = [...this.#branches.values()].map((branch) => outboxSchema(branch.names, ofBranches, db.single))
    this.schema = { outbox: this.names, ...chosen, tables }
    this.#migrations = new Migrations(db, this.schema)
    this.#enqueue = new Enqueue({
      names: this.names,
      log: this.log,
      within: db.within,
      wake: oneOf('outbox: wake', wake, ['flag', 'off']) === 'off' ? 'off' : db.single ? 'always' : 'flag',
      topic: topicFunction(topic),
      allowPool,
      dedup: (options.dedup ?? false) || options.partition !== undefined,
    })
  }

  pool(): object {
    return this.#db.pool
  }

  get name(): string {
    return this.names.table.text
  }

  /** Published events must stay: it is a log. */
  get keeps(): boolean {
    return this.names.log
  }

  /**
   * Writes events in a transaction: `enqueue(tx, event, options)`, or `enqueue(event, options)` in the one that
   * `withTransaction` has begun. Returns their sequence numbers.
   */
  enqueue<Given extends Enqueued>(events: Given, options?: PostgresEnqueueOptions): Promise<Receipts<Given, string>>
  // Last, as in the port: what a transaction is, is inferred from it.
  enqueue<Given extends Enqueued>(
    tx: Tx,
    events: Given,
    options?: PostgresEnqueueOptions,
  ): Promise<Receipts<Given, string>>
  async enqueue(...given: unknown[]): Promise<string | string[]> {
    const { single, ...what } = enqueueArguments<Tx, PostgresEnqueueOptions>(given, this.#current, ENQUEUE_OPTIONS)
    const sequences = await this.#enqueue.run(what)
    return single ? sequences[0]! : sequences
  }

  reader(options: ReaderOptions): Reader {
    const { names } = this
    const db = this.#db
    if (this.keeps && options.deletes) throw refusedByLog(this.name, 'deleteOnPublish')
    // Of sessions at work. What the relay says meanwhile, it says on them: the pool may be used up.
    const open = new Set<Sql>()
    const leadership = new PostgresLeadership(db, ofOutbox(names.table), () => [...open][0] ?? db)
    const member = `${hostname()}:${process.pid}:${uuidv7().slice(-12)}`
    const { shards, ...settings } = options
    const attempts = Math.min(options.attempts, MOST_ATTEMPTS)
    const common = { ...settings, attempts, db, names, prepare: this.#prepare, open }
    const budget = PoolBudget.of(db)
    const within = Math.max(1000, options.lease / 3)
    return new Assignment(options, {
      table: this.name,
      member,
      leadership,
      owner: (shard) => ownerSource({ ...common, shard, shards, leadership, member }),
      competing: (allowed) => leaseSource({ ...common, allowed }),
      // A database that does not answer must not keep a relay from its next try, nor from stopping.
      answered: (answer) =>
        answered(answer, within, () => {}).catch((error) => {
          // What has a connection of its own does not wait for the pool.
          throw open.size > 0 ? error : poolOrServer(db, within, error)
        }),
      check: async () => {
        await budget.keep(member, keptByRelay(this.name, member, options))
        await refuseReadOnly(db, this.name)
      },
      rest: () => budget.leave(member),
    })
  }

  async check(): Promise<void> {
    await this.#migrations.check()
    await this.log?.check()
  }

  branch(name: string): PostgresOutbox<Tx> {
    const branch = this.#branches.get(name)
    if (branch === undefined) throw noBranch(this.name, name, [...this.#branches.keys()])
    return branch
  }

  async distribute(events: ReadonlyMap<string, readonly Message[]>): Promise<void> {
    // Always in the same order: two that write the same events must not wait for each other.
    const parts = [...events].sort(([a], [b]) => (a < b ? -1 : 1))
    await this.#db.transaction(async (tx) => {
      for (const [name, list] of parts) await this.branch(name).enqueue(tx, list)
    })
  }

  async branches(): Promise<readonly { name: string; unpublished: number }[]> {
    const prefix = `${this.names.table.table}_to_`
    const names = (await this.#migrations.recorded(prefix)).map((table) => table.slice(prefix.length))
    const found: { name: string; unpublished: number }[] = []
    for (const name of new Set([...this.#branches.keys(), ...names])) {
      const { states } = await (this.#branches.get(name) ?? this.#branch(name)).admin.stats()
      found.push({ name, unpublished: unpublished(states) })
    }
    return found
  }

  #branch(name: string): PostgresOutbox<Tx> {
    const { topic, branches, allowPool, log, ...options } = this.#options
    return new PostgresOutbox(this.#db, this.#current, { ...options, table: `${this.name}_to_${name}` })
  }
}

function outboxSchemaOf({ tenants, dedup, partition, archive, log }: PostgresOutboxOptions): OutboxSchemaOptions {
  const kept = typeof archive === 'object' ? 'files' : archive === 'table' ? true : undefined
  return defined({ tenants, dedup, partition, archive: kept, log })
}

function defined<T extends object>(options: T): { [Key in keyof T]?: Exclude<T[Key], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never
}

type Writing = Omit<EnqueueArguments<unknown, PostgresEnqueueOptions>, 'single'>

interface EnqueueSettings {
  readonly names: OutboxNames
  readonly log: PostgresLog | undefined
  readonly wake: NonNullable<FillOptions['wake']>
  readonly topic: (message: Message) => string
  /** How long a statement may go without an answer, in milliseconds. */
  readonly within: number
  /** Ids are kept in a table of their own. */
  readonly dedup: boolean
  /** A pool may be given in place of a transaction: the event is then committed alone. */
  readonly allowPool: boolean
}

/** How many buckets keys are hashed into for locking: one lock per key would run out of shared memory. */
const LOCK_BUCKETS = 1024

/**
 * Writes events in the caller's transaction: one statement for one or many. The same event id again changes nothing and
 * returns the sequence it has.
 */
class Enqueue {
  readonly #settings: EnqueueSettings
  readonly #one: string | undefined
  readonly #many: string
  readonly #known: string
  readonly #lock: string

  constructor(settings: EnqueueSettings) {
    this.#settings = settings
    const { names, wake, dedup } = settings
    this.#one = dedup ? undefined : names.fill(sql['enqueue-one'], { wake })
    this.#many = names.fill(sql[dedup ? 'enqueue-dedup' : 'enqueue'], { wake })
    this.#known = names.fill(sql[dedup ? 'enqueued-dedup' : 'enqueued'])
    this.#lock = names.fill(sql['serialize'])
  }

  async run({ tx, events, options }: Writing): Promise<string[]> {
    const { allowPool, within, names, log, topic } = this.#settings
    if (names.log) checkForLog(names.table.text, events, options)
    const rows = events.map((event) => eventRow(event, options, topic))
    if (!allowPool) refusePool(tx)
    const connection = limited(sqlOf(tx), within)
    if (rows.length === 0) return []
    try {
      if (options.serialize) await this.#serialize(connection, rows)
      const added = await this.#insert(connection, rows)
      const isNew = new Set(added.keys())
      const sequences = await this.#sequences(connection, rows, added)
      await log?.learn(connection)
      publishEnqueued(
        names.table.text,
        rows.map(({ topic, event_id: id }) => ({ topic: topic!, isNew: isNew.delete(id!) })),
      )
      return sequences
    } catch (error) {
      throw explained(error, `table ${names.table.text}`)
    }
  }

  /** The numbers of those that were new. */
  async #insert(connection: Sql, rows: readonly EventRow[]): Promise<Map<string, string>> {
    if (this.#one !== undefined && rows.length === 1) {
      const row = rows[0]!
      const [found] = (
        await connection.query(
          this.#one,
          ENQUEUED.map((name) => row[name]),
        )
      ).rows
      return found === undefined ? new Map() : new Map([[row.event_id!, found['sequence'] as string]])
    }
    const columns = ENQUEUED.map((name) => textArray(rows.map((row) => row[name])))
    const inserted = await connection.query(this.#many, columns)
    return new Map(inserted.rows.map((row) => [row['event_id'] as string, row['sequence'] as string]))
  }

  /** What was there already is asked for in a second statement: ON CONFLICT DO NOTHING returns no row for it. */
  async #sequences(connection: Sql, rows: readonly EventRow[], known: Map<string, string>): Promise<string[]> {
    const missing = [...new Set(rows.map((row) => row.event_id!))].filter((id) => !known.has(id))
    if (missing.length > 0) {
      const found = await connection.query(this.#known, [textArray(missing)])
      for (const row of found.rows) known.set(row['event_id'] as string, row['sequence'] as string)
    }
    return rows.map((row) => {
      const sequence = known.get(row.event_id!)
      if (sequence !== undefined) return sequence
      const text = `event ${row.event_id} is being written by another transaction that this one cannot see; run the transaction again`
      throw new WaybillError('CONFLICT', text)
    })
  }

  async #serialize(connection: Sql, rows: readonly EventRow[]): Promise<void> {
    const keys = rows.map((row) => row.key).filter((key) => key !== null)
    if (keys.length > 0) await connection.query(this.#lock, [textArray(keys as string[]), LOCK_BUCKETS])
  }
}
