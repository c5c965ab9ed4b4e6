/**
 * How many may be in flight: breaker, outage and poison in one rule.
 *
 * A collective failure (the destination is down, the connection closed, the session lost) says nothing about any one
 * message, so it charges nobody and sets the window to one: each then goes out alone until successes, doubling, have
 * opened it again. Starting small costs a few round trips; starting large would make every innocent fail together
 * with the one that does the harm.
 *
 * Only one that fails alone is suspected. It goes to the end of the queue, so the next probe is another message. If
 * others have arrived since and it fails alone again, it is charged. While everything fails nobody is charged: that
 * is an outage.
 */
export class Window {
  readonly max: number
  /** How many may be in flight now. */
  size: number
  /** Collective failures in a row. */
  failures = 0
  /** Grows with every collective failure. What went out in an earlier era proves nothing about this one. */
  era = 0
  #failing = false
  #arrived = 0
  /** Who failed alone, and how many had arrived by then. */
  readonly #suspects = new Map<string, number>()

  constructor(max: number) {
    this.max = max
    this.size = max
  }

  /** One at a time, although nothing has failed yet. */
  narrow(): void {
    this.size = 1
  }

  get suspects(): number {
    return this.#suspects.size
  }

  /** One that has failed alone before goes alone again: it must not take others with it. */
  isSuspect(id: string): boolean {
    return this.#suspects.size > 0 && this.#suspects.has(id)
  }

  /** A suspect has an outcome of its own. */
  acquit(id: string): void {
    this.#suspects.delete(id)
  }

  /** Some that went out in `era` have arrived. */
  arrived(count: number, era: number): void {
    if (era !== this.era) return
    this.#arrived += count
    this.failures = 0
    this.#failing = false
  }

  /** The source knows of some that arrived: only now could a crash not bring them back. */
  widen(): void {
    if (this.size < this.max && !this.#failing) this.size = Math.min(this.max, this.size * 2)
  }

  /** Several that went out in `era` failed together. Answers whether that is news: one outage fails many calls. */
  failedTogether(era: number): boolean {
    if (era !== this.era) return false
    this.era++
    this.failures++
    this.size = 1
    this.#failing = true
    return true
  }

  /** Answers whether the message is to be charged. */
  failedAlone(id: string): boolean {
    this.failedTogether(this.era)
    const before = this.#suspects.get(id)
    if (before === undefined && this.#suspects.size >= MAX_SUSPECTS) {
      const oldest = this.#suspects.keys().next().value
      if (oldest !== undefined) this.#suspects.delete(oldest)
    }
    this.#suspects.set(id, this.#arrived)
    return before !== undefined && this.#arrived > before
  }
}

const MAX_SUSPECTS = 1000
