import type { Clock } from '../../core/index.ts'

/** What a bag holds, and where. */
export interface BagItem<T> {
  readonly value: T
  /** -1 when it was taken out. */
  place: number
}

/**
 * A set of what comes and goes thousands of times in a second, such as requests. A `Set` makes a new table with every
 * few changes, and the old one, once it is among what is rarely looked through for garbage, keeps alive whatever was in
 * it, and the tables after it too: all requests of a second and more, with what belongs to them.
 */
export class Bag<T> {
  readonly #held: BagItem<T>[] = []

  get size(): number {
    return this.#held.length
  }

  add(value: T): BagItem<T> {
    const held = { value, place: this.#held.length }
    this.#held.push(held)
    return held
  }

  /** Where it was, the last one is then. Twice is as once. */
  delete(held: BagItem<T>): void {
    if (held.place < 0) return
    const last = this.#held.pop()!
    if (last !== held) {
      this.#held[held.place] = last
      last.place = held.place
    }
    held.place = -1
  }

  /** As it is now: whoever goes through it may add and take out. */
  all(): readonly BagItem<T>[] {
    return [...this.#held]
  }
}

/** When something is late, and who is told then. */
export type Deadline = BagItem<{ readonly at: number; readonly onLate: () => void }>

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
