import { type Clock, milliseconds } from '../core/index.ts'
import type { BarrierAnswer, BarrierOperation, Barriers } from '../store/barrier.ts'
import { type CleanOptions, cleanOptions } from '../store/inbox.ts'
import { type Locks, type MemoryTransaction, transactionOf } from './transaction.ts'

interface Entry {
  readonly at: number
  readonly ran: boolean
  readonly undone: boolean
  /** JSON, by operation. */
  readonly outputs: Readonly<Partial<Record<BarrierOperation, string>>>
}

/** The barrier of participants in memory. */
export class MemoryBarriers implements Barriers<MemoryTransaction> {
  readonly name = 'barriers'
  readonly #clock: Clock
  readonly #locks: Locks
  readonly #entries = new Map<string, Entry>()

  constructor(clock: Clock, locks: Locks) {
    this.#clock = clock
    this.#locks = locks
  }

  async enter(tx: MemoryTransaction, key: string, operation: BarrierOperation): Promise<BarrierAnswer> {
    await this.#locks.take(transactionOf(tx), `barrier ${key}`)
    const entry = this.#entries.get(key)
    const undoes = operation === 'undo'
    if (entry === undefined || (undoes && !entry.undone)) {
      const before = entry ?? { at: this.#clock.now(), ran: !undoes, undone: false, outputs: {} }
      this.#write(tx, key, { ...before, undone: undoes })
      return { go: true, ran: entry?.ran ?? false, output: undefined }
    }
    const text = undoes || !entry.undone ? entry.outputs[operation] : undefined
    return { go: false, ran: entry.ran, output: text === undefined ? undefined : JSON.parse(text) }
  }

  async leave(tx: MemoryTransaction, key: string, operation: BarrierOperation, output: unknown): Promise<void> {
    const entry = this.#entries.get(key)!
    this.#write(tx, key, { ...entry, outputs: { ...entry.outputs, [operation]: JSON.stringify(output ?? null) } })
  }

  async clean(options: CleanOptions = {}): Promise<number> {
    const { retention, limit } = cleanOptions(options, milliseconds('60d'))
    const old = [...this.#entries].filter(([, { at }]) => at < this.#clock.now() - retention).slice(0, limit)
    for (const [key] of old) this.#entries.delete(key)
    return old.length
  }

  /** Seen by nobody else until the end: whoever asks waits for the lock. */
  #write(tx: MemoryTransaction, key: string, entry: Entry): void {
    const before = this.#entries.get(key)
    this.#entries.set(key, entry)
    tx.onRollback(() => {
      if (before === undefined) this.#entries.delete(key)
      else this.#entries.set(key, before)
    })
  }
}
