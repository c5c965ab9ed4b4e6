import { blameless, type Clock, type Message, WaybillError } from '../core/index.ts'
import { sharedController } from './shared-signal.ts'
import type { Delivery } from './source.ts'
import { type HandleMany, promiseOf, type Step } from './step.ts'

/**
 * Ends a handler that takes longer than `ms`: its signal aborts, and its message has failed. One that ignores its signal
 * goes on in the background, so a transaction inside looks at the signal before it commits. Nobody waits for it, and its
 * late answer is ignored. A batch that takes longer is `down`: whether it arrived is unknown, and nobody is charged.
 */
export function timedStep<D extends Delivery<Message>>(step: Step<D>, ms: number, clock: Clock): Step<D> {
  if (!('each' in step)) {
    const batch: HandleMany<D> = (deliveries, signal) =>
      timedCall(`publishing ${deliveries.length} messages`, ms, clock, signal, (inner) => step.batch(deliveries, inner))
    return { ...step, batch }
  }
  const { each } = step
  let deadlines: Deadlines | undefined
  return {
    ...step,
    each(delivery, signal) {
      // Every session has a signal of its own.
      if (deadlines?.signal !== signal) deadlines = new Deadlines(signal, ms, clock)
      const shift = deadlines.shift()
      const result = each(delivery, shift.signal)
      const promise = promiseOf(result)
      return promise === undefined ? result : deadlines.within(shift, promise, delivery.message.type)
    },
  }
}

/** Rejects with TIMEOUT when a call takes longer than `ms`; its signal then aborts, as it does with `signal`. */
export async function timedCall<T>(
  what: string,
  ms: number,
  clock: Clock,
  signal: AbortSignal,
  call: (signal: AbortSignal) => T | PromiseLike<T>,
): Promise<T> {
  const controller = sharedController()
  const abort = () => controller.abort(signal.reason)
  if (signal.aborted) abort()
  else signal.addEventListener('abort', abort)
  const done = new AbortController()
  const late = clock.sleep(ms, done.signal).then(() => {
    if (done.signal.aborted) return undefined as never
    const error = tooLong(what, ms)
    controller.abort(error)
    throw error
  })
  try {
    return await Promise.race([call(controller.signal), late])
  } finally {
    done.abort(null)
    signal.removeEventListener('abort', abort)
  }
}

/** How long others may join a shift, in milliseconds. */
const WIDTH = 1

/** Those that began at about the same time. Their time is over together, so they share a signal. */
interface Shift {
  readonly controller: AbortController
  readonly signal: AbortSignal
  /** When the first one was seen to take its time. */
  began: number | undefined
  /** When the last one was. */
  last: number
  /** The time is up. */
  over: boolean
  /** How to tell those that have not answered yet that it took too long. */
  readonly waiting: Set<() => void>
}

/**
 * How long the handlers of one session may take. A signal and a timer for each message would cost more than all the rest
 * of its way through the flow. All have the same time, so who began first is due first: one timer does for all of them.
 */
class Deadlines {
  readonly signal: AbortSignal
  readonly #ms: number
  readonly #clock: Clock
  /** Those in which somebody waits, oldest first. */
  readonly #shifts = new Set<Shift>()
  #current: Shift | undefined
  #watch: AbortController | undefined

  constructor(signal: AbortSignal, ms: number, clock: Clock) {
    this.signal = signal
    this.#ms = ms
    this.#clock = clock
    signal.addEventListener('abort', () => this.#abort(), { once: true })
  }

  /** The one that begins now. It has not begun before somebody waits in it: who answers at once needs no deadline. */
  shift(): Shift {
    const current = this.#current
    if (current !== undefined) {
      const { began } = current
      if (began === undefined || this.#clock.monotonic() - began < WIDTH) return current
    }
    const controller = sharedController()
    if (this.signal.aborted) controller.abort(this.signal.reason)
    this.#current = {
      controller,
      signal: controller.signal,
      began: undefined,
      last: 0,
      over: false,
      waiting: new Set(),
    }
    return this.#current
  }

  /**
   * What `work` answers; TIMEOUT when it takes too long. One that is told so, and says at once that it has waited for
   * something that is not the message's fault (an empty pool), knows better.
   */
  within(shift: Shift, work: Promise<unknown>, type: string): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const late = () => reject(tooLong(`handling ${type}`, this.#ms))
      // It may itself have asked for the end.
      if (this.signal.aborted) shift.controller.abort(this.signal.reason)
      shift.last = this.#clock.monotonic()
      shift.began ??= shift.last
      shift.waiting.add(late)
      this.#shifts.add(shift)
      if (this.#watch === undefined) this.#keepWatch()
      work.then(
        (result) => {
          this.#answered(shift, late)
          if (shift.over) late()
          else resolve(result)
        },
        (error) => {
          this.#answered(shift, late)
          if (shift.over && !blameless(error)) late()
          else reject(error)
        },
      )
    })
  }

  #answered(shift: Shift, late: () => void): void {
    shift.waiting.delete(late)
    if (shift.waiting.size > 0) return
    this.#shifts.delete(shift)
    if (this.#shifts.size === 0) this.#stopWatch()
  }

  /** For as long as anybody waits. */
  async #keepWatch(): Promise<void> {
    const watch = new AbortController()
    this.#watch = watch
    while (!watch.signal.aborted) {
      const oldest: Shift = this.#shifts.values().next().value!
      const left = oldest.last + this.#ms - this.#clock.monotonic()
      if (left > 0) await this.#clock.sleep(left, watch.signal)
      else this.#end(oldest)
    }
  }

  #stopWatch(): void {
    // With a reason: an error would be made otherwise, which is not cheap.
    this.#watch?.abort(null)
    this.#watch = undefined
  }

  #end(shift: Shift): void {
    const { waiting, controller } = shift
    this.#shifts.delete(shift)
    if (this.#shifts.size === 0) this.#stopWatch()
    if (this.#current === shift) this.#current = undefined
    shift.over = true
    controller.abort(tooLong('handling it', this.#ms))
    setImmediate(() => {
      for (const late of waiting) late()
      waiting.clear()
    })
  }

  /** The session is over, or its end was asked for: all are told to give up, and have the rest of their time for it. */
  #abort(): void {
    const { reason } = this.signal
    this.#current = undefined
    for (const { controller } of this.#shifts) controller.abort(reason)
  }
}

function tooLong(what: string, ms: number): WaybillError {
  return new WaybillError('TIMEOUT', `${what} took longer than ${ms} ms`)
}
