import { type Clock, checkOptions, systemClock } from '../core/index.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
import { MemoryInbox } from './inbox.ts'
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
export class Memory extends AmbientUnitOfWork<MemoryTransaction> {
  readonly outbox: MemoryOutbox
  readonly inbox: MemoryInbox
  readonly sagas: MemorySagas

  constructor(options: MemoryOptions = {}) {
    checkOptions('memory', options, ['clock', 'outbox'])
    super(begin)
    const { clock = systemClock } = options
    const locks = new Locks()
    this.outbox = new MemoryOutbox(clock, locks, () => this.current(), options.outbox)
    this.inbox = new MemoryInbox(clock, locks)
    this.sagas = new MemorySagas(clock, locks)
  }

  /** There is nothing to create; here so that a test can stand where the service stands. */
  async migrate(): Promise<void> {}
}

/**
 * `memory()`: the same as `postgres({ pool })` for tests of your own, without a server. Nothing survives the process, so
 * it is no place for events that must arrive.
 */
export function memory(options?: MemoryOptions): Memory {
  return new Memory(options)
}
