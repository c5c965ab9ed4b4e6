import { type Clock, checkOptions, type Message, systemClock, WaybillError } from '../core/index.ts'
import type { Leadership } from '../outbox/leadership.ts'
import { type BarrierFunction, throughBarrier } from '../store/barrier.ts'
import type { Migrated, Store } from '../store/store.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
import { MemoryBarriers } from './barriers.ts'
import { MemoryInbox } from './inbox.ts'
import { MemoryLeadership } from './leadership.ts'
import type { MemoryLog } from './log.ts'
import { MemoryOutbox, type MemoryOutboxOptions } from './outbox.ts'
import { MemorySagas } from './sagas.ts'
import { begin, Locks, type MemoryTransaction } from './transaction.ts'

/** A store in memory, for tests. */
export interface MemoryOptions {
  /** What decides about times and leases. Default: the system's. */
  clock?: Clock
  outbox?: MemoryOutboxOptions
}

/** Transactions, an outbox, an inbox and sagas in memory. */
export class Memory extends AmbientUnitOfWork<MemoryTransaction> implements Store<MemoryTransaction> {
  readonly name: string
  readonly outbox: MemoryOutbox
  readonly inbox: MemoryInbox
  readonly sagas: MemorySagas
  readonly barriers: MemoryBarriers
  readonly #clock: Clock
  readonly #scopes = new Map<string, MemoryLeadership>()

  constructor(options: MemoryOptions = {}) {
    checkOptions('memory', options, { clock: true, outbox: true })
    super(begin)
    const { clock = systemClock } = options
    const locks = new Locks()
    this.#clock = clock
    this.outbox = new MemoryOutbox(clock, locks, () => this.current(), options.outbox)
    this.inbox = new MemoryInbox(clock, locks)
    this.sagas = new MemorySagas(clock, locks)
    this.barriers = new MemoryBarriers(clock, locks)
    this.name = `memory ${this.outbox.name}`
  }

  /** For a service that takes part in a saga: see the same of `postgres()`. */
  barrier(tx: MemoryTransaction, message: Message, fn: BarrierFunction): Promise<readonly Message[]> {
    return throughBarrier(this.barriers, tx, message, fn)
  }

  /** Only where the outbox was declared one: `outbox: { log: true }`. */
  get log(): MemoryLog {
    if (this.outbox.log !== undefined) return this.outbox.log
    throw new WaybillError('INVALID_OPTION', `${this.outbox.name} is no log; give memory({ outbox: { log: true } })`)
  }

  /** `outbox`: the relays of its outbox; any other name is a scope of its own. */
  leadership(scope: string): Leadership {
    if (scope === 'outbox') return this.outbox.leadership
    const known = this.#scopes.get(scope) ?? new MemoryLeadership(this.#clock)
    this.#scopes.set(scope, known)
    return known
  }

  /** There is nothing to create; here so that a test can stand where the service stands. */
  async migrate(): Promise<readonly Migrated[]> {
    return []
  }
}

/**
 * `memory()`: the same as `postgres({ pool })` for tests of your own, without a server. Nothing survives the process, so
 * it is no place for events that must arrive.
 */
export function memory(options?: MemoryOptions): Memory {
  return new Memory(options)
}
