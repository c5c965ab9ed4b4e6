/** A transaction that may write now: the name under which it holds its locks, and its process if it has one. */
export interface Writer {
  readonly name: string
  readonly pid: number | undefined
}

/** The last number that was drawn before these transactions were seen, and which of them have not ended. */
interface Look {
  readonly upTo: bigint
  readonly writers: Set<string>
}

/** Looks that are open at once. Each waits for its own writers, so that one after the other ends under constant writing. */
const MOST_LOOKS = 32

/**
 * The number below which nothing can appear any more in a log.
 *
 * A number is drawn by an INSERT, whose transaction then holds RowExclusiveLock on the table; PostgreSQL lets go of it only
 * when the commit can be seen. So: read the last number that was drawn, then who holds that lock. When all of those holders
 * have ended, whatever will ever have a number up to that one can be seen by every statement that begins now. The order of transaction ids would not do: it is not the order in which writers held a key's lock.
 *
 * Unlike the low-water mark of relays (low-water.ts) this is no hint. So nothing of it outlives a server: see the mark in
 * names.ts.
 */
export class LogBound {
  /** Nothing can appear at or below this any more. */
  safe = 0n
  /** Of the server that all of this was seen on. */
  mark: string | undefined
  #looks: Look[] = []
  readonly #seen = new Map<string, Writer & { readonly since: number }>()

  /**
   * On another server, or after a crash, names mean something else, and numbers may have been drawn again. A mere checkpoint
   * looks like a crash: since when a transaction has been seen is kept while the postmaster is the same: it is only reported.
   */
  at(mark: string): void {
    if (mark === this.mark) return
    if (postmasterOf(mark) !== postmasterOf(this.mark)) this.#seen.clear()
    this.mark = mark
    this.safe = 0n
    this.#looks = []
  }

  /** Who writes now. `upTo` is the last number that was drawn before that. Calls must come in the order of the looks. */
  look(upTo: bigint, now: readonly Writer[], time: number): void {
    const names = new Set(now.map(({ name }) => name))
    // It may be any of those that seem to have ended: PostgreSQL before 14.1 renames a transaction when it is prepared.
    if (now.some(({ name }) => name.startsWith('-1/') && !this.#seen.has(name))) this.#looks = []
    for (const name of this.#seen.keys()) if (!names.has(name)) this.#seen.delete(name)
    // One that is prepared keeps its name, and has no process any more.
    for (const writer of now) {
      this.#seen.set(writer.name, { ...writer, since: this.#seen.get(writer.name)?.since ?? time })
    }
    for (const look of this.#looks) {
      for (const name of look.writers) if (!names.has(name)) look.writers.delete(name)
      if (look.writers.size === 0 && look.upTo > this.safe) this.safe = look.upTo
    }
    this.#looks = this.#looks.filter(({ writers, upTo }) => writers.size > 0 && upTo > this.safe)
    if (names.size === 0 && upTo > this.safe) this.safe = upTo
    const newest = this.#looks.at(-1)
    if (upTo <= this.safe || upTo <= (newest?.upTo ?? 0n)) return
    if (this.#looks.length === MOST_LOOKS) this.#looks.pop()
    this.#looks.push({ upTo, writers: names })
  }

  /** Of those for whom the oldest look waits, the one that was seen first. */
  heldBy(): (Writer & { readonly since: number }) | undefined {
    let first: (Writer & { readonly since: number }) | undefined
    for (const name of this.#looks[0]?.writers ?? []) {
      const seen = this.#seen.get(name)
      if (seen !== undefined && seen.since < (first?.since ?? Number.POSITIVE_INFINITY)) first = seen
    }
    return first
  }
}

/** A mark is when the postmaster was started, and the last checkpoint. */
function postmasterOf(mark: string | undefined): string | undefined {
  return mark?.split(' ')[0]
}
