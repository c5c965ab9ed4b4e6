import type { Clock } from '../../core/index.ts'

/** When something is late, and who is told then. */
export interface Deadline {
  readonly at: number
  readonly onLate: () => void
}

/**
 * Many deadlines with one timer for all of them, set to the next: of the thousands that requests have in a second hardly
 * any comes to its end, and a timer for each would cost more than a signature.
 */
export class Deadlines {
  readonly #clock: Clock
  readonly #all = new Set<Deadline>()
  #asleep: AbortController | undefined
  #until = Number.POSITIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  add(ms: number, onLate: () => void): Deadline {
    const deadline = { at: this.#clock.monotonic() + ms, onLate }
    this.#all.add(deadline)
    if (deadline.at < this.#until) this.#sleep(deadline.at)
    return deadline
  }

  /** It was met. */
  delete(deadline: Deadline): void {
    this.#all.delete(deadline)
    // Nobody waits: a timer would keep the process from ending.
    if (this.#all.size === 0) this.#wake()
  }

  #sleep(until: number): void {
    this.#wake()
    const asleep = new AbortController()
    this.#asleep = asleep
    this.#until = until
    this.#clock.sleep(Math.max(0, until - this.#clock.monotonic()), asleep.signal).then(() => {
      if (!asleep.signal.aborted) this.#ring()
    })
  }

  #wake(): void {
    this.#until = Number.POSITIVE_INFINITY
    // With a reason: without one, an error is made for it.
    this.#asleep?.abort(WOKEN)
    this.#asleep = undefined
  }

  #ring(): void {
    this.#wake()
    const now = this.#clock.monotonic()
    let next = Number.POSITIVE_INFINITY
    for (const deadline of this.#all) {
      if (deadline.at > now) {
        next = Math.min(next, deadline.at)
        continue
      }
      this.#all.delete(deadline)
      deadline.onLate()
    }
    if (next < this.#until) this.#sleep(next)
  }
}

const WOKEN = 'woken'
