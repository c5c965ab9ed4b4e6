import { type Clock, milliseconds, untilAborted } from '../core/index.ts'
import {
  type CleanOptions,
  checkInboxKey,
  cleanOptions,
  type Inbox,
  type InboxAnswer,
  type InboxKey,
  type Once,
  once,
} from '../store/inbox.ts'
import { type Locks, type MemoryTransaction, transactionOf } from './transaction.ts'

/** What was handled, kept in the handler's own transaction. */
export class MemoryInbox implements Inbox<MemoryTransaction> {
  readonly name = 'inbox'
  readonly #clock: Clock
  readonly #locks: Locks
  /** When it was handled. */
  readonly #handled = new Map<string, number>()
  readonly #uncommitted = new Set<string>()

  constructor(clock: Clock, locks: Locks) {
    this.#clock = clock
    this.#locks = locks
  }

  /** The second waits until the transaction of the first has ended; `busy` when it is asked to stop before. */
  async receive(tx: MemoryTransaction, key: InboxKey, signal?: AbortSignal): Promise<InboxAnswer> {
    const name = nameOf(key)
    const transaction = transactionOf(tx)
    const taking = this.#locks.take(transaction, `inbox ${name}`)
    if (taking !== undefined && (await untilAborted(taking.then(taken), signal, () => false)) === false) return 'busy'
    if (this.#handled.has(name) || this.#uncommitted.has(name)) return 'done'
    this.#uncommitted.add(name)
    transaction.atCommit(() => this.#handled.set(name, this.#clock.now()))
    transaction.atEnd(() => this.#uncommitted.delete(name))
    return 'new'
  }

  /** For code outside a router: runs `fn` unless this subscriber has handled the message before. */
  async once<T>(
    tx: MemoryTransaction,
    subscriber: string,
    { source, id }: { readonly source: string; readonly id: string },
    fn: () => T | Promise<T>,
  ): Promise<Once<T>> {
    return once(this, tx, { subscriber, source, id }, fn)
  }

  async clean(options: CleanOptions = {}): Promise<number> {
    const { retention, limit } = cleanOptions(options, milliseconds('30d'))
    const old = this.#clock.now() - retention
    let count = 0
    for (const [name, at] of this.#handled) {
      if (count === limit) break
      if (at <= old && this.#handled.delete(name)) count++
    }
    return count
  }
}

const taken = (): boolean => true

function nameOf(key: InboxKey): string {
  checkInboxKey(key)
  return JSON.stringify([key.subscriber, key.source, key.id])
}
