import { checkOptions, type Duration, type Message, oneOf, WaybillError } from '../core/index.ts'
import type { Database } from '../drivers/sql/sql.ts'
import { topicOf } from '../flow/index.ts'
import { type BranchingOutbox, branchNames, noBranch, unpublished } from '../outbox/branches.ts'
import type { OutboxReader, Reader, ReaderOptions } from '../outbox/reader.ts'
import { isAmbient } from '../store/enqueue.ts'
import type { OutboxStore } from '../store/store.ts'
import { PostgresOutboxAdmin } from './admin.ts'
import type { ArchiveTarget } from './cleaner.ts'
import { PostgresLeadership } from './leadership.ts'
import { Migrations } from './migrate.ts'
import {
  type MigrationsOptions,
  OUTBOX_OPTIONS as OUTBOX_SCHEMA_OPTIONS,
  type OutboxSchemaOptions,
  outboxSchema,
} from './migrate-tables.ts'
import { OutboxNames } from './names.ts'
import { Enqueue, type PostgresEnqueueOptions } from './outbox.ts'
import { PostgresReader } from './reader.ts'

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
      topic: topic === undefined ? topicOf : typeof topic === 'function' ? topic : () => topic,
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
    const ambient = isAmbient(given)
    const [tx, events, options] = ambient ? [this.#ambient(), ...given] : given
    return this.#enqueue.run(tx, events as Message, options as PostgresEnqueueOptions | undefined)
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

  #ambient(): Tx {
    const tx = this.#current()
    if (tx !== undefined) return tx
    throw new WaybillError(
      'NO_TRANSACTION',
      'enqueue(event) outside of withTransaction; give the transaction: enqueue(tx, event)',
    )
  }
}

function outboxSchemaOf({ tenants, dedup, partition, archive }: PostgresOutboxOptions): OutboxSchemaOptions {
  const kept = typeof archive === 'object' ? 'files' : archive === 'table' ? true : undefined
  return defined({ tenants, dedup, partition, archive: kept })
}

function defined<T extends object>(options: T): { [Key in keyof T]?: Exclude<T[Key], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never
}
