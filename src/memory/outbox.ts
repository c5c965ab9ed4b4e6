import {
  type Clock,
  checkOptions,
  type ExtensionValue,
  eventUuid,
  Message,
  type OptionNames,
  type RawMessage,
  uuidv7,
} from '../core/index.ts'
import { Assignment } from '../outbox/assignment.ts'
import { type BranchingOutbox, branchNames, noBranch, unpublished } from '../outbox/branches.ts'
import type { OutboxReader, Reader, ReaderOptions } from '../outbox/reader.ts'
import {
  checkedEvent,
  type Enqueued,
  enqueueArguments,
  publishEnqueued,
  type Receipts,
  topicFunction,
} from '../store/enqueue.ts'
import { checkForLog, refusedByLog } from '../store/log.ts'
import type { EnqueueOptions, Outbox } from '../store/store.ts'
import { sequenceText } from '../store/stored-attributes.ts'
import { MemoryOutboxAdmin } from './admin.ts'
import { MemoryLeadership } from './leadership.ts'
import { leaseSource } from './lease.ts'
import { MemoryLog } from './log.ts'
import { type OwnerSession, ownerSource } from './owner.ts'
import type { Row } from './row.ts'
import { Table } from './table.ts'
import { begin, type Locks, type MemoryTransaction, type Transaction, transactionOf } from './transaction.ts'

/** An outbox in memory. */
export interface MemoryOutboxOptions {
  /** Default `outbox`. */
  name?: string
  /** The topic of events for which none is given. Default: the event's type. */
  topic?: string | ((message: Message) => string)
  /** The destinations of a RoutingRelay: each has an outbox of its own beside this one. */
  branches?: readonly string[]
  /** The outbox is a log, for projections: every event is kept, in the order of its number. Default false. */
  log?: boolean
}

/** What may be said of events when they are enqueued in memory. */
export interface MemoryEnqueueOptions extends EnqueueOptions {
  /** Lets writers of one key wait for each other, so that its numbers are in commit order. */
  serialize?: boolean
}

const ENQUEUE_OPTIONS: OptionNames<MemoryEnqueueOptions> = {
  key: true,
  topic: true,
  tenant: true,
  availableAt: true,
  aggregate: true,
  serialize: true,
}

/** An outbox in memory. */
export class MemoryOutbox implements Outbox<MemoryTransaction>, OutboxReader, BranchingOutbox {
  readonly name: string
  readonly admin: MemoryOutboxAdmin
  readonly leadership: MemoryLeadership
  /** Where it was declared one. */
  readonly log: MemoryLog | undefined
  readonly #table: Table
  readonly #locks: Locks
  readonly #owners = new Set<OwnerSession>()
  readonly #topic: (message: Message) => string
  readonly #current: () => MemoryTransaction | undefined
  readonly #branches: ReadonlyMap<string, MemoryOutbox>
  /** Events whose transactions have not ended. */
  readonly #uncommitted = new Map<string, { readonly tx: Transaction; readonly row: Row }>()

  constructor(
    clock: Clock,
    locks: Locks,
    current: () => MemoryTransaction | undefined,
    options: MemoryOutboxOptions = {},
  ) {
    checkOptions('outbox', options, { name: true, topic: true, branches: true, log: true })
    const { name = 'outbox', topic, log = false } = options
    const branches = branchNames('outbox: branches', options.branches)
    this.#branches = new Map(
      branches.map((branch) => [branch, new MemoryOutbox(clock, locks, current, { name: `${name}_to_${branch}` })]),
    )
    this.name = name
    this.#table = new Table(name, clock)
    this.#locks = locks
    this.#current = current
    this.#topic = topicFunction(topic)
    this.log = log ? new MemoryLog(name, clock) : undefined
    this.admin = new MemoryOutboxAdmin(this.#table, log)
    this.leadership = new MemoryLeadership(clock)
  }

  /**
   * Writes events in a transaction: `enqueue(tx, event, options)`, or `enqueue(event, options)` in the one that
   * `withTransaction` has begun. Returns their sequence numbers.
   */
  enqueue<Given extends Enqueued>(events: Given, options?: MemoryEnqueueOptions): Promise<Receipts<Given, string>>
  // Last, as in the port: what a transaction is, is inferred from it.
  enqueue<Given extends Enqueued>(
    tx: MemoryTransaction,
    events: Given,
    options?: MemoryEnqueueOptions,
  ): Promise<Receipts<Given, string>>
  async enqueue(...given: unknown[]): Promise<string | string[]> {
    const { tx, events, single, options } = enqueueArguments<MemoryTransaction, MemoryEnqueueOptions>(
      given,
      this.#current,
      ENQUEUE_OPTIONS,
    )
    if (this.keeps) checkForLog(this.name, events, options)
    const rows = events.map((event) => eventRow(event, options, this.#topic))
    const { sequences, added } = await this.#write(transactionOf(tx), rows, options.serialize ?? false)
    publishEnqueued(
      this.name,
      rows.map((row) => ({ topic: row.topic, isNew: added.has(row) })),
    )
    return single ? sequences[0]! : sequences
  }

  /** Published events must stay: it is a log. */
  get keeps(): boolean {
    return this.log !== undefined
  }

  reader(options: ReaderOptions): Reader {
    if (this.keeps && options.deletes) throw refusedByLog(this.name, 'deleteOnPublish')
    const member = uuidv7()
    const { leadership } = this
    const common = { ...options, table: this.#table, leadership, owners: this.#owners }
    return new Assignment(options, {
      table: this.name,
      member,
      leadership,
      owner: (shard) => ownerSource({ ...common, shard, member }),
      competing: (allowed) => leaseSource({ ...common, allowed }),
    })
  }

  branch(name: string): MemoryOutbox {
    const branch = this.#branches.get(name)
    if (branch === undefined) throw noBranch(this.name, name, [...this.#branches.keys()])
    return branch
  }

  async distribute(events: ReadonlyMap<string, readonly Message[]>): Promise<void> {
    await begin(async (tx) => {
      for (const [name, list] of events) await this.branch(name).enqueue(tx, list)
    })
  }

  async branches(): Promise<readonly { name: string; unpublished: number }[]> {
    const all = [...this.#branches].map(async ([name, branch]) => {
      const { states } = await branch.admin.stats()
      return { name, unpublished: unpublished(states) }
    })
    return Promise.all(all)
  }

  async #write(
    tx: Transaction,
    rows: readonly Row[],
    serialize: boolean,
  ): Promise<{ sequences: string[]; added: ReadonlySet<Row> }> {
    const written = new Set<Row>()
    const sequences: string[] = []
    tx.atCommit(() => {
      for (const row of written) this.#table.insert(row)
      for (const row of written) this.log?.committed(row)
    })
    tx.atEnd(() => {
      for (const { eventId } of written) this.#uncommitted.delete(eventId)
      for (const { sequence } of written) this.log?.ended(sequence)
    })
    for (const row of rows) {
      const { eventId, key } = row
      if (serialize && key !== undefined) await this.#locks.take(tx, `${this.name} ${key}`)
      let other = this.#uncommitted.get(eventId)
      // Another transaction that has written it may yet roll back.
      for (; other !== undefined && other.tx !== tx; other = this.#uncommitted.get(eventId)) await tx.wait(other.tx)
      const known = this.#table.rows.get(eventId) ?? other?.row
      if (known === undefined) {
        row.createdAt = this.#table.now()
        row.sequence = this.#table.nextSequence()
        if (this.log !== undefined) {
          this.log.drawn(row.sequence)
          row.message = row.message.with({ extensions: { sequence: sequenceText(String(row.sequence)) } })
        }
        this.#uncommitted.set(eventId, { tx, row })
        written.add(row)
      }
      sequences.push(String((known ?? row).sequence))
    }
    return { sequences, added: written }
  }
}

/** The row of an event, but for its place. */
export function eventRow(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): Row {
  const { raw, key, tenant, topic, size } = checkedEvent(event, options, topicOf)
  return {
    eventId: eventUuid(event),
    sequence: 0,
    tenant,
    topic,
    key,
    message: stored(raw, key, tenant),
    size,
    createdAt: 0,
    state: options.availableAt === undefined ? 'ready' : 'scheduled',
    attempts: 0,
    lastError: undefined,
    availableAt: options.availableAt?.getTime(),
    publishedAt: undefined,
    lease: undefined,
    delivery: undefined,
    removed: false,
  }
}

/** The message as it is kept: without what belongs to the process, and with bytes that nobody else has. */
function stored(raw: RawMessage, key: string | undefined, tenant: string): RawMessage {
  const extensions: Record<string, ExtensionValue> = { ...raw.extensions, eventversion: raw.version }
  if (key !== undefined) extensions['partitionkey'] = key
  if (tenant !== '') extensions['tenantid'] = tenant
  const data = typeof raw.data === 'string' ? raw.data : new Uint8Array(raw.data)
  return new Message({ ...raw.attributes(), extensions }, data, raw.form)
}
