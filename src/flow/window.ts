/**
 * How many may be in flight: breaker, outage and poison in one rule.
 *
 * A collective failure (the destination is down, the connection closed, the session lost) says nothing about any one
 * message, so it charges nobody and sets the window to one: each then goes out alone until successes, doubling, have
 * opened it again. Starting small costs a few round trips; starting large would make every innocent fail together
 * with the one that does the harm.
 *
 * Only one that fails alone is suspected. It goes to the end of the queue, so the next probe is another message. If
 * others have succeeded since and it fails alone again, it is charged. While everything fails nobody is charged: that
 * is an outage.
 */
export class Window {
  readonly max: number
  /** How many may be in flight now. */
  size: number
  /** Collective failures in a row. */
  failures = 0
  #successes = 0
  /** Who failed alone, and how many successes there had been by then. */
  readonly #suspects = new Map<string, number>()

  constructor(max: number, cautious = false) {
    this.max = max
    this.size = cautious ? 1 : max
  }

  /** One that has failed alone before goes alone again: it must not take others with it. */
  isSuspect(id: string): boolean {
    return this.#suspects.size > 0 && this.#suspects.has(id)
  }

  succeeded(count: number): void {
    this.#successes += count
    this.failures = 0
    if (this.size < this.max) this.size = Math.min(this.max, this.size * 2)
  }

  /** A suspect is settled in another way than by failing alone. */
  acquit(id: string): void {
    if (this.#suspects.size > 0) this.#suspects.delete(id)
  }

  /** Several were in flight when all of it failed. */
  failedTogether(): void {
    this.failures++
    this.size = 1
  }

  /** Answers whether the message is to be charged. */
  failedAlone(id: string): boolean {
    this.failedTogether()
    const before = this.#suspects.get(id)
    const charged = before !== undefined && this.#successes > before
    if (before === undefined && this.#suspects.size >= MAX_SUSPECTS) {
      const oldest = this.#suspects.keys().next().value
      if (oldest !== undefined) this.#suspects.delete(oldest)
    }
    this.#suspects.set(id, this.#successes)
    return charged
  }
}

const MAX_SUSPECTS = 1000
