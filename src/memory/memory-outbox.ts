import { type Clock, checkOptions, Message, WaybillError } from '../core/index.ts'
import { topicOf } from '../flow/index.ts'
import type { EnqueueOptions, OutboxReader, OutboxStore, Reader, ReaderOptions } from '../outbox/store.ts'
import { MemoryOutboxAdmin } from './admin.ts'
import { eventRow } from './event-row.ts'
import { MemoryLeadership } from './leadership.ts'
import type { OwnerSession } from './owner-source.ts'
import { MemoryReader } from './reader.ts'
import type { Row } from './row.ts'
import { Table } from './table.ts'
import { type Locks, type MemoryTransaction, type Transaction, transactionOf } from './transaction.ts'

export interface MemoryOutboxOptions {
  /** Default `outbox`. */
  name?: string
  /** The topic of events for which none is given. Default: the event's type. */
  topic?: string | ((message: Message) => string)
}

export interface MemoryEnqueueOptions extends EnqueueOptions {
  /** Lets writers of one key wait for each other, so that its numbers are in commit order. */
  serialize?: boolean
}

const ENQUEUE_OPTIONS = ['key', 'topic', 'tenant', 'availableAt', 'aggregate', 'serialize'] as const

/** An outbox in memory. */
export class MemoryOutbox implements OutboxStore<MemoryTransaction>, OutboxReader {
  readonly name: string
  readonly admin: MemoryOutboxAdmin
  readonly leadership: MemoryLeadership
  readonly #table: Table
  readonly #locks: Locks
  readonly #owners = new Set<OwnerSession>()
  readonly #topic: (message: Message) => string
  readonly #current: () => MemoryTransaction | undefined
  /** Sequences of events whose transactions have not ended. */
  readonly #uncommitted = new Map<string, number>()

  constructor(
    clock: Clock,
    locks: Locks,
    current: () => MemoryTransaction | undefined,
    options: MemoryOutboxOptions = {},
  ) {
    checkOptions('outbox', options, ['name', 'topic'])
    const { name = 'outbox', topic } = options
    this.name = name
    this.#table = new Table(name, clock)
    this.#locks = locks
    this.#current = current
    this.#topic = topic === undefined ? topicOf : typeof topic === 'function' ? topic : () => topic
    this.admin = new MemoryOutboxAdmin(this.#table)
    this.leadership = new MemoryLeadership(clock)
  }

  /**
   * Writes events in a transaction: `enqueue(tx, event, options)`, or `enqueue(event, options)` in the one that
   * `withTransaction` has begun. Answers their sequence numbers.
   */
  enqueue(tx: MemoryTransaction, event: Message, options?: MemoryEnqueueOptions): Promise<string>
  enqueue(tx: MemoryTransaction, events: readonly Message[], options?: MemoryEnqueueOptions): Promise<string[]>
  enqueue(event: Message, options?: MemoryEnqueueOptions): Promise<string>
  enqueue(events: readonly Message[], options?: MemoryEnqueueOptions): Promise<string[]>
  async enqueue(...given: unknown[]): Promise<string | string[]> {
    const ambient = given[0] instanceof Message || Array.isArray(given[0])
    const [tx, events, options = {}] = (ambient ? [this.#ambient(), ...given] : given) as [
      unknown,
      Message | readonly Message[],
      MemoryEnqueueOptions?,
    ]
    checkOptions('enqueue', options, ENQUEUE_OPTIONS)
    const list = Array.isArray(events) ? (events as readonly Message[]) : [events as Message]
    const rows = list.map((event) => eventRow(event, options, this.#topic))
    const transaction = transactionOf(tx)
    const sequences: string[] = []
    for (const row of rows) sequences.push(String(await this.#enqueue(transaction, row, options.serialize ?? false)))
    return Array.isArray(events) ? sequences : sequences[0]!
  }

  reader(options: ReaderOptions): Reader {
    return new MemoryReader({ table: this.#table, leadership: this.leadership, owners: this.#owners }, options)
  }

  async #enqueue(tx: Transaction, row: Row, serialize: boolean): Promise<number> {
    const { eventId, key } = row
    if (serialize && key !== undefined) await this.#locks.take(tx, `${this.name} key ${key}`)
    // Another transaction that has written it, and may yet roll back, is waited for.
    await this.#locks.take(tx, `${this.name} event ${eventId}`)
    const known = this.#table.rows.get(eventId)?.sequence ?? this.#uncommitted.get(eventId)
    if (known !== undefined) return known
    row.createdAt = this.#table.now()
    row.sequence = this.#table.nextSequence()
    this.#uncommitted.set(eventId, row.sequence)
    tx.atCommit(() => this.#table.insert(row))
    tx.atEnd(() => this.#uncommitted.delete(eventId))
    return row.sequence
  }

  #ambient(): MemoryTransaction {
    const tx = this.#current()
    if (tx !== undefined) return tx
    throw new WaybillError(
      'NO_TRANSACTION',
      'enqueue(event) outside of withTransaction; give the transaction: enqueue(tx, event)',
    )
  }
}
