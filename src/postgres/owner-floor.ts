/**
 * Up to which number nothing can be ready any more, so that a scan need not begin at the very left of its index, where
 * everything published since the last vacuum still lies about.
 *
 * A number that was drawn late-commits as long as its transaction is open, and that transaction holds a lock on the table
 * since before it drew it. So: what was read up to some number, when every writer that was at work then has ended, is
 * all that will ever be there up to that number. One scan more, begun after that, and whatever it did not bring and is
 * not in hand is settled.
 *
 * Nothing is lost if this is ever wrong (a number drawn by hand, a partition written directly): a scan from the very
 * left comes every second.
 */
export class Floor {
  /** No transaction can make anything ready at or below this. */
  safe = -1
  /** Where the next scan begins. */
  value = -1
  #read = -1
  #waiting: { readonly upTo: number; readonly writers: ReadonlySet<string> } | undefined

  /** Who writes to the table now. */
  writers(now: readonly string[]): void {
    if (this.#waiting !== undefined) {
      const { upTo, writers } = this.#waiting
      if (now.some((writer) => writers.has(writer) || isPrepared(writer))) return
      this.safe = upTo
    }
    this.#waiting = { upTo: this.#read, writers: new Set(now) }
  }

  /**
   * A scan has brought rows from `lowest` to `highest`. `safe` is what was known when it began; `inHand` the lowest that
   * is in hand besides.
   */
  scanned(lowest: number, highest: number, inHand: number, safe: number): void {
    if (highest > this.#read) this.#read = highest
    this.value = Math.min(safe, Math.min(lowest, inHand) - 1)
  }
}

/** A transaction gets another name when it is prepared, so it may be any of those that seem to have ended. */
const isPrepared = (writer: string): boolean => writer.startsWith('-1/')
