import { checkOptions, type Duration, type Message, oneOf, WaybillError } from '../core/index.ts'
import { limited } from '../drivers/sql/connection.ts'
import { type Database, type Sql, textArray } from '../drivers/sql/sql.ts'
import { refusePool, sqlOf } from '../drivers/sql/sql-of.ts'
import { type BranchingOutbox, branchNames, noBranch, unpublished } from '../outbox/branches.ts'
import type { OutboxReader, Reader, ReaderOptions } from '../outbox/reader.ts'
import { type EnqueueArguments, enqueueArguments, topicFunction } from '../store/enqueue.ts'
import type { EnqueueOptions, OutboxStore } from '../store/store.ts'
import { PostgresOutboxAdmin } from './admin.ts'
import type { ArchiveTarget } from './cleaner.ts'
import { ENQUEUED } from './columns.ts'
import { explained } from './errors.ts'
import { PostgresLeadership } from './leadership.ts'
import { Migrations } from './migrate.ts'
import {
  type MigrationsOptions,
  OUTBOX_OPTIONS as OUTBOX_SCHEMA_OPTIONS,
  type OutboxSchemaOptions,
  outboxSchema,
} from './migrate-tables.ts'
import { type FillOptions, OutboxNames } from './names.ts'
import { PostgresReader } from './reader.ts'
import { type EventRow, eventRow } from './row.ts'
import { sql } from './sql.generated.ts'

const ENQUEUE_OPTIONS = ['key', 'topic', 'tenant', 'availableAt', 'aggregate', 'serialize'] as const

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
   * How an idle relay is told of new events. `flag` (default) costs a writer nothing while relays are busy. `off` for
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

const OPTIONS = [
  'table',
  'topic',
  'wake',
  'allowPool',
  'retention',
  'branches',
  'prepare',
  ...OUTBOX_SCHEMA_OPTIONS,
] as const

/** An outbox in a PostgreSQL table. */
export class PostgresOutbox<Tx = unknown> implements OutboxStore<Tx>, OutboxReader, BranchingOutbox {
  readonly names: OutboxNames
  readonly admin: PostgresOutboxAdmin
  readonly leadership: PostgresLeadership
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
    const { table = 'outbox', topic, wake = 'flag', allowPool = false, prepare = true } = options
    this.names = new OutboxNames(table)
    this.#db = db
    this.#current = current
    this.#prepare = prepare
    const { retention, archive } = options
    this.admin = new PostgresOutboxAdmin(db, this.names, defined({ retention, archive }))
    this.leadership = new PostgresLeadership(db, this.names)
    this.#options = options
    for (const name of branchNames('outbox: branches', options.branches)) this.#branches.set(name, this.#branch(name))
    const chosen = outboxSchemaOf(options)
    const tables = [...this.#branches.values()].map((branch) => outboxSchema(branch.names, chosen, db.single))
    this.schema = { outbox: this.names, ...chosen, tables }
    this.#migrations = new Migrations(db, this.schema)
    this.#enqueue = new Enqueue({
      names: this.names,
      within: db.within,
      wake: oneOf('outbox: wake', wake, ['flag', 'off']) === 'off' ? 'off' : db.single ? 'always' : 'flag',
      topic: topicFunction(topic),
      allowPool,
      dedup: (options.dedup ?? false) || options.partition !== undefined,
    })
  }

  get name(): string {
    return this.names.table.text
  }

  /**
   * Writes events in a transaction: `enqueue(tx, event, options)`, or `enqueue(event, options)` in the one that
   * `withTransaction` has begun. Answers their sequence numbers.
   */
  enqueue(tx: Tx, event: Message, options?: PostgresEnqueueOptions): Promise<string>
  enqueue(tx: Tx, events: readonly Message[], options?: PostgresEnqueueOptions): Promise<string[]>
  enqueue(event: Message, options?: PostgresEnqueueOptions): Promise<string>
  enqueue(events: readonly Message[], options?: PostgresEnqueueOptions): Promise<string[]>
  async enqueue(...given: unknown[]): Promise<string | string[]> {
    const { single, ...what } = enqueueArguments<Tx, PostgresEnqueueOptions>(given, this.#current, ENQUEUE_OPTIONS)
    return single ? this.#enqueue.one(what) : this.#enqueue.many(what)
  }

  reader(options: ReaderOptions): Reader {
    return new PostgresReader(this.#db, this.names, this.#prepare, options)
  }

  check(): Promise<void> {
    return this.#migrations.check()
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
    const { topic, branches, allowPool, ...options } = this.#options
    return new PostgresOutbox(this.#db, this.#current, { ...options, table: `${this.name}_to_${name}` })
  }
}

function outboxSchemaOf({ tenants, dedup, partition, archive }: PostgresOutboxOptions): OutboxSchemaOptions {
  const kept = typeof archive === 'object' ? 'files' : archive === 'table' ? true : undefined
  return defined({ tenants, dedup, partition, archive: kept })
}

function defined<T extends object>(options: T): { [Key in keyof T]?: Exclude<T[Key], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never
}

type Enqueueing = Omit<EnqueueArguments<unknown, PostgresEnqueueOptions>, 'single'>

interface EnqueueSettings {
  readonly names: OutboxNames
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
 * answers the sequence it has.
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

  async one({ tx, events, options }: Enqueueing): Promise<string> {
    const [row] = events.map((event) => eventRow(event, options, this.#settings.topic))
    return this.#on(tx, [row!], options, async (connection) => {
      if (this.#one !== undefined) {
        const { rows } = await connection.query(this.#one, valuesOf(row!))
        if (rows.length > 0) return rows[0]!['sequence'] as string
      }
      const known = this.#one === undefined ? await this.#insert(connection, [row!]) : new Map<string, string>()
      return (await this.#sequences(connection, [row!], known))[0]!
    })
  }

  async many({ tx, events, options }: Enqueueing): Promise<string[]> {
    const rows = events.map((event) => eventRow(event, options, this.#settings.topic))
    return this.#on(tx, rows, options, async (connection) => {
      if (rows.length === 0) return []
      return this.#sequences(connection, rows, await this.#insert(connection, rows))
    })
  }

  async #on<T>(
    tx: unknown,
    rows: readonly EventRow[],
    options: PostgresEnqueueOptions,
    write: (connection: Sql) => Promise<T>,
  ): Promise<T> {
    const { allowPool, within, names } = this.#settings
    if (!allowPool) refusePool(tx)
    const connection = limited(sqlOf(tx), within)
    try {
      if (options.serialize) await this.#serialize(connection, rows)
      return await write(connection)
    } catch (error) {
      throw explained(error, `table ${names.table.text}`)
    }
  }

  async #insert(connection: Sql, rows: readonly EventRow[]): Promise<Map<string, string>> {
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

function valuesOf(row: EventRow): readonly (string | null)[] {
  return ENQUEUED.map((name) => row[name])
}
