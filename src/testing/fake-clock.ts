import { setImmediate } from 'node:timers'
import type { Clock } from '../core/index.ts'

interface Sleeper {
  readonly at: number
  readonly wake: () => void
}

/**
 * Time that passes when told. Code that was given this clock sleeps until `advance` has come past its time; sleeps end
 * in the order of their time, those of one time in the order they began, and between two of them everything they set
 * off has run. A test needs no sleep of its own.
 */
export class FakeClock implements Clock {
  #now: number
  // Not zero: code that takes zero for "never" must not meet it by accident.
  #monotonic = 1000
  /** By time, then by age. */
  readonly #sleepers: Sleeper[] = []

  constructor(now: number | string | Date = '2025-01-01T00:00:00Z') {
    this.#now = new Date(now).getTime()
  }

  now(): number {
    return this.#now
  }

  monotonic(): number {
    return this.#monotonic
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted) return Promise.resolve()
    // A pause of nothing still lets others run, as a timer would.
    if (ms <= 0) return turn()
    return new Promise((resolve) => {
      const abort = () => {
        const at = this.#sleepers.indexOf(sleeper)
        if (at >= 0) this.#sleepers.splice(at, 1)
        resolve()
      }
      const wake = () => {
        signal?.removeEventListener('abort', abort)
        resolve()
      }
      const sleeper: Sleeper = { at: this.#monotonic + ms, wake }
      this.#add(sleeper)
      signal?.addEventListener('abort', abort, { once: true })
    })
  }

  /** How many are asleep. */
  get sleepers(): number {
    return this.#sleepers.length
  }

  /** Milliseconds until the next one wakes; `undefined` when nobody is asleep. */
  get nextIn(): number | undefined {
    const first = this.#sleepers[0]
    return first === undefined ? undefined : Math.max(0, first.at - this.#monotonic)
  }

  /** Lets `ms` pass. Resolves when everything that this set off has run, as far as it waits for nothing else. */
  async advance(ms: number): Promise<void> {
    if (!(ms >= 0)) throw new RangeError(`a clock advances by 0 ms or more, not by ${ms}`)
    await this.settle()
    const until = this.#monotonic + ms
    for (let first = this.#sleepers[0]; first !== undefined && first.at <= until; first = this.#sleepers[0]) {
      this.#sleepers.shift()
      this.#pass(first.at)
      first.wake()
      await this.settle()
    }
    this.#pass(until)
  }

  /**
   * Lets time pass from sleep to sleep until `condition` holds. Rejects when nobody is asleep any more, or when more
   * than `limit` milliseconds would pass: then it will never hold.
   */
  async until(condition: () => boolean, limit = 3_600_000): Promise<void> {
    const end = this.#monotonic + limit
    for (await this.settle(); !condition(); ) {
      const next = this.nextIn
      if (next === undefined) throw new Error('the condition does not hold, and nobody is asleep')
      if (this.#monotonic + next > end) throw new Error(`the condition does not hold after ${limit} ms`)
      await this.advance(next)
    }
  }

  /** Lets everything run that waits for no time. */
  async settle(): Promise<void> {
    // Promises settle within one turn; the others are for those who take turns themselves.
    for (let i = 0; i < 3; i++) await turn()
  }

  /** Time passes and nobody wakes, as for a process that was suspended. Whoever is late wakes with the next `advance`. */
  suspend(ms: number): void {
    this.#pass(this.#monotonic + ms)
  }

  /** The wall clock is set to another time, back or forth; nobody wakes earlier or later. */
  jump(ms: number): void {
    this.#now += ms
  }

  #pass(to: number): void {
    if (to <= this.#monotonic) return
    this.#now += to - this.#monotonic
    this.#monotonic = to
  }

  #add(sleeper: Sleeper): void {
    let low = 0
    for (let high = this.#sleepers.length; low < high; ) {
      const middle = (low + high) >> 1
      if (this.#sleepers[middle]!.at <= sleeper.at) low = middle + 1
      else high = middle
    }
    this.#sleepers.splice(low, 0, sleeper)
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
