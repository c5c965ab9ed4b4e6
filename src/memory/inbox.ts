import {
  type Clock,
  checkOptions,
  describe,
  milliseconds,
  unlessAborted,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import type { InboxAnswer, InboxKey, InboxStore } from '../store/inbox.ts'
import { type Locks, type MemoryTransaction, transactionOf } from './transaction.ts'

/** What was handled, kept in the handler's own transaction. */
export class MemoryInbox implements InboxStore<MemoryTransaction> {
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

  /** The second waits until the transaction of the first has ended; `busy` when it is told to give up before. */
  async receive(tx: MemoryTransaction, key: InboxKey, signal?: AbortSignal): Promise<InboxAnswer> {
    const name = nameOf(key)
    const transaction = transactionOf(tx)
    const taking = this.#locks.take(transaction, `inbox ${name}`)
    if (taking !== undefined && (await unlessAborted(taking.then(taken), signal, false)) === false) return 'busy'
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
  ): Promise<{ readonly skipped: false; readonly value: T } | { readonly skipped: true; readonly value?: undefined }> {
    if ((await this.receive(tx, { subscriber, source, id })) === 'done') return { skipped: true }
    return { skipped: false, value: await fn() }
  }

  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('inbox.clean', options, ['retention', 'limit'])
    const retention = wholeNumber('inbox.clean: retention', options.retention ?? milliseconds('30d'), { min: 0 })
    const limit = wholeNumber('inbox.clean: limit', options.limit ?? 10_000, { max: 1_000_000 })
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

function nameOf({ subscriber, source, id }: InboxKey): string {
  if (typeof subscriber !== 'string' || subscriber === '') {
    throw new WaybillError('INVALID_OPTION', `inbox: ${describe(subscriber)} is not a subscriber; give a name`)
  }
  for (const [name, value] of Object.entries({ source, id })) {
    if (typeof value === 'string' && value !== '') continue
    const text = `inbox: a message without ${name} cannot be told from others, so that it could be handled once`
    throw new WaybillError('MALFORMED_MESSAGE', text)
  }
  return JSON.stringify([subscriber, source, id])
}
