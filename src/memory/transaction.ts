import { WaybillError } from '../core/index.ts'
import { keepOriginal, TransactionGuard } from '../drivers/sql/transaction.ts'
import type { Begin } from '../store/unit-of-work.ts'

/** A transaction in memory. What the outbox and the inbox write in it is seen by nobody before its commit. */
export interface MemoryTransaction {
  /**
   * For stores of your own in memory: change them at once, and say here how to undo it. On a rollback the last change
   * is undone first.
   */
  onRollback(undo: () => void): void
}

export class Transaction implements MemoryTransaction {
  readonly #guard = new TransactionGuard()
  readonly #writes: (() => void)[] = []
  readonly #undos: (() => void)[] = []
  readonly #releases: (() => void)[] = []
  readonly #ended: Promise<void>
  #end!: () => void
  /** Those whose end it waits for. */
  readonly #waitsFor = new Set<Transaction>()

  constructor() {
    this.#ended = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  onRollback(undo: () => void): void {
    this.#guard.check()
    this.#undos.push(undo)
  }

  /** Done at the commit, all of them in one go. Must not fail. */
  atCommit(write: () => void): void {
    this.#guard.check()
    this.#writes.push(write)
  }

  /** Done at the end, whatever it is. */
  atEnd(release: () => void): void {
    this.#releases.push(release)
  }

  check(): void {
    this.#guard.check()
  }

  /** Until `other` has ended. Where two would wait for each other for ever, this one rejects (deadlock). */
  async wait(other: Transaction): Promise<void> {
    if (other.#awaits(this)) {
      throw new WaybillError('CONFLICT', 'two transactions wait for each other; this one is rolled back, run it again')
    }
    this.#waitsFor.add(other)
    await other.#ended
    this.#waitsFor.delete(other)
    this.#guard.check()
  }

  #awaits(other: Transaction): boolean {
    return this === other || [...this.#waitsFor].some((next) => next.#awaits(other))
  }

  commit(): void {
    this.#guard.end()
    for (const write of this.#writes) write()
    this.#finish()
  }

  rollback(): void {
    this.#guard.end()
    try {
      for (const undo of this.#undos.reverse()) undo()
    } finally {
      this.#finish()
    }
  }

  #finish(): void {
    for (const release of this.#releases) release()
    this.#end()
  }
}

/** Names that one transaction at a time may have, until its end. */
export class Locks {
  readonly #holders = new Map<string, Transaction>()

  /** At once when it is free; otherwise when its holder has ended. */
  take(tx: Transaction, name: string): Promise<void> | undefined {
    const holder = this.#holders.get(name)
    if (holder === tx) return undefined
    if (holder !== undefined) return tx.wait(holder).then(() => this.take(tx, name))
    this.#holders.set(name, tx)
    tx.atEnd(() => this.#holders.delete(name))
    return undefined
  }
}

/** Transactions run side by side, as on a server; none sees what another has not committed. */
export const begin: Begin<MemoryTransaction> = async (fn) => {
  const tx = new Transaction()
  try {
    const value = await fn(tx)
    tx.commit()
    return value
  } catch (error) {
    try {
      tx.rollback()
    } catch (failure) {
      keepOriginal(error, failure)
    }
    throw error
  }
}

/** The transaction that was given; anything else would be a write that no rollback takes along. */
export function transactionOf(tx: unknown): Transaction {
  if (!(tx instanceof Transaction)) {
    throw new WaybillError(
      'NOT_A_TRANSACTION',
      'a transaction is needed here; give the one that withTransaction() passes to you',
    )
  }
  tx.check()
  return tx
}
