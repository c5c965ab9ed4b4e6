/** Below every number there is: negative ones are read too. */
export const START = Number.MIN_SAFE_INTEGER

/**
 * The low-water mark: up to which number nothing can be ready any more. A scan begins behind it, and so does not walk over
 * the index entries of everything published since the last vacuum.
 *
 * A row can appear with a lower number while the transaction that drew it is open, and pg_locks shows that transaction: it
 * holds a lock on the table since before it drew the number. Once all writers seen after reading up to N have ended, no new
 * row up to N can appear. One more scan, begun after that, brings what is left there; the rest is unsettled or settled.
 *
 * The mark is a matter of speed. It can be wrong (a number given by hand, a sequence that was set back, a row made ready
 * by hand, a partition written directly), so a scan from the very left comes every second. It must not be used to decide
 * that everything up to a number was seen, as a projection would have to.
 */
export class LowWater {
  /** No transaction can make anything ready at or below this. */
  safe = START
  /** Where the next scan begins. */
  value = START
  #read = START
  #waiting: { readonly upTo: number; readonly writers: ReadonlySet<string> } | undefined
  readonly #trusted: boolean

  /** `trusted`: numbers are drawn one by one. A session that caches some draws numbers long before it writes them. */
  constructor(trusted = true) {
    this.#trusted = trusted
  }

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
   * A scan has brought rows from `lowest` to `highest`. `safe` is what was known when it began; `unsettled` the lowest
   * number that is unsettled besides.
   */
  scanned(lowest: number, highest: number, unsettled: number, safe: number): void {
    if (highest > this.#read) this.#read = highest
    if (this.#trusted) this.value = Math.min(safe, Math.min(lowest, unsettled) - 1)
  }

  /** A row was found at or below the mark: what it was made of does not hold here. */
  reset(): void {
    this.safe = this.value = this.#read = START
    this.#waiting = undefined
  }
}

/** A transaction gets another name when it is prepared, so it may be any of those that seem to have ended. */
const isPrepared = (writer: string): boolean => writer.startsWith('-1/')
