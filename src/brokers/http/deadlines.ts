import type { Clock } from '../../core/index.ts'
import { Bag, type Held } from './bag.ts'

/** When something is late, and who is told then. */
export type Deadline = Held<{ readonly at: number; readonly onLate: () => void }>

/**
 * Many deadlines with one timer for all of them, set to the next: of the thousands that requests have in a second hardly
 * any comes to its end, and a timer for each would cost more than a signature.
 */
export class Deadlines {
  readonly #clock: Clock
  readonly #all = new Bag<Deadline['value']>()
  #asleep: AbortController | undefined
  #until = Number.POSITIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  add(ms: number, onLate: () => void): Deadline {
    const at = this.#clock.monotonic() + ms
    const deadline = this.#all.add({ at, onLate })
    if (at < this.#until) this.#sleep(at)
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
    for (const deadline of this.#all.all()) {
      // One that is told may mean that another was met.
      if (deadline.place < 0 || deadline.value.at > now) continue
      this.#all.delete(deadline)
      deadline.value.onLate()
    }
    const next = this.#all.all().reduce((first, { value }) => Math.min(first, value.at), Number.POSITIVE_INFINITY)
    if (next < this.#until) this.#sleep(next)
  }
}

const WOKEN = 'woken'
