import { setMaxListeners } from 'node:events'
import type { Clock } from './clock.ts'
import { WaybillError } from './errors.ts'
import { onAbort } from './waiting.ts'

/** What a bag holds, and where. */
export interface BagItem<T> {
  readonly value: T
  /** -1 when it was taken out. */
  place: number
}

/**
 * A set of what comes and goes thousands of times in a second, such as requests. A `Set` allocates a new table every few
 * changes. Once an old table is promoted to the old generation it keeps alive whatever was in it, and the tables after it:
 * all requests of the last second and more.
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

  /** The last item takes its place. Deleting twice is harmless. */
  delete(held: BagItem<T>): void {
    if (held.place < 0) return
    const last = this.#held.pop()!
    if (last !== held) {
      this.#held[held.place] = last
      last.place = held.place
    }
    held.place = -1
  }

  /** A copy, so that the bag may change while somebody goes through it. */
  all(): readonly BagItem<T>[] {
    return [...this.#held]
  }
}

/** When something is late, and what is called then. */
export type Deadline = BagItem<{ readonly at: number; readonly onLate: () => void }>

/**
 * Many deadlines with one timer, set to the earliest. Of the thousands that requests and handlers have in a second hardly any
 * is missed, and a timer for each would cost more than a signature.
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
      if (!asleep.signal.aborted) this.#fire()
    })
  }

  #wake(): void {
    this.#until = Number.POSITIVE_INFINITY
    // With a reason: without one, an error is created for it.
    this.#asleep?.abort(WOKEN)
    this.#asleep = undefined
  }

  #fire(): void {
    this.#wake()
    const now = this.#clock.monotonic()
    for (const deadline of this.#all.all()) {
      // A callback may meet another deadline.
      if (deadline.place < 0 || deadline.value.at > now) continue
      this.#all.delete(deadline)
      deadline.value.onLate()
    }
    const next = this.#all.all().reduce((first, { value }) => Math.min(first, value.at), Number.POSITIVE_INFINITY)
    if (next < this.#until) this.#sleep(next)
  }
}

const WOKEN = 'woken'

/**
 * Rejects with TIMEOUT when a call takes longer than `ms`; its signal then aborts, as it does with `signal`. Once `signal` has
 * aborted there is no deadline: whoever aborts decides how long to wait, and no timer may keep a process from ending.
 */
export async function timedCall<T>(
  what: string,
  ms: number,
  clock: Clock,
  signal: AbortSignal,
  call: (signal: AbortSignal) => T | PromiseLike<T>,
): Promise<T> {
  const controller = sharedController()
  const done = new AbortController()
  const abort = () => {
    done.abort(WOKEN)
    controller.abort(signal.reason)
  }
  const forget = onAbort(signal, abort)
  const late = clock.sleep(ms, done.signal).then(() => {
    if (done.signal.aborted) return new Promise<never>(() => {})
    const error = tooLong(what, ms)
    controller.abort(error)
    // A call that heeds its signal at once may still say what it has waited for.
    return new Promise<never>((_, reject) => setImmediate(reject, error))
  })
  try {
    // Not withDeadline: the call is aborted first, and may still say what it has waited for.
    return await Promise.race([call(controller.signal), late])
  } finally {
    done.abort(WOKEN)
    forget()
  }
}

export function tooLong(what: string, ms: number): WaybillError {
  return new WaybillError('TIMEOUT', `${what} took longer than ${ms} ms`)
}

/** A controller whose signal many listen to: Node would report more than ten listeners as a leak. */
export function sharedController(): AbortController {
  const controller = new AbortController()
  setMaxListeners(0, controller.signal)
  return controller
}
