import { setMaxListeners } from 'node:events'
import { type Clock, onAbort, WaybillError } from '../core/index.ts'

/**
 * Rejects with TIMEOUT when a call takes longer than `ms`; its signal then aborts, as it does with `signal`. Once `signal` has
 * aborted it has no deadline: whoever aborts says how long is waited, and no timer may keep a process from ending.
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
    done.abort(null)
    controller.abort(signal.reason)
  }
  const forget = onAbort(signal, abort)
  const late = clock.sleep(ms, done.signal).then(() => {
    if (done.signal.aborted) return new Promise<never>(() => {})
    const error = tooLong(what, ms)
    controller.abort(error)
    throw error
  })
  try {
    return await Promise.race([call(controller.signal), late])
  } finally {
    done.abort(null)
    forget()
  }
}

/** How long others may join a shift, in milliseconds. */
const WIDTH = 1

/** Those that began at about the same time. Their time is over together, so they share a signal. */
export interface Shift<Work> {
  readonly controller: AbortController
  readonly signal: AbortSignal
  /** When the first one was seen to take its time. */
  began: number | undefined
  /** When the last one was. */
  last: number
  /** The time is up. */
  over: boolean
  /** Those that have not come back. */
  readonly waiting: Set<Work>
}

/**
 * How long the handlers of one session may take. A signal and a timer for each message would cost more than all the rest
 * of its way through the flow. All have the same time, so who began first is due first: one timer does for all of them, and
 * it is left running when nobody waits, because somebody mostly will.
 *
 *   const shift = deadlines.shift()        its signal is for the handler that begins now
 *   deadlines.begin(shift, work)           it takes its time
 *   deadlines.end(shift, work)             it has come back; otherwise `late` is told, once
 *   deadlines.quiet()                      nobody will begin for now: no timer is left
 */
export class Deadlines<Work> {
  readonly #signal: AbortSignal
  readonly #ms: number
  readonly #clock: Clock
  readonly #late: (work: Work, ms: number) => void
  /** Those in which somebody waits, oldest first. */
  readonly #shifts = new Set<Shift<Work>>()
  #current: Shift<Work> | undefined
  #watch: AbortController | undefined

  /** `signal` is the session's: its end is the end of each. */
  constructor(signal: AbortSignal, ms: number, clock: Clock, late: (work: Work, ms: number) => void) {
    this.#signal = signal
    this.#ms = ms
    this.#clock = clock
    this.#late = late
    if (!signal.aborted) onAbort(signal, () => this.#abort())
  }

  /** The one that begins now. It has not begun before somebody waits in it: who answers at once needs no deadline. */
  shift(): Shift<Work> {
    const current = this.#current
    if (current !== undefined) {
      const { began } = current
      if (began === undefined || this.#clock.monotonic() - began < WIDTH) return current
    }
    const controller = sharedController()
    if (this.#signal.aborted) controller.abort(this.#signal.reason)
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

  begin(shift: Shift<Work>, work: Work): void {
    // It may itself have asked for the end.
    if (this.#signal.aborted) shift.controller.abort(this.#signal.reason)
    shift.last = this.#clock.monotonic()
    shift.began ??= shift.last
    if (shift.waiting.size === 0) this.#shifts.add(shift)
    shift.waiting.add(work)
    if (this.#watch === undefined && !this.#signal.aborted) this.#keepWatch()
  }

  end(shift: Shift<Work>, work: Work): void {
    shift.waiting.delete(work)
    if (shift.waiting.size === 0) this.#shifts.delete(shift)
  }

  quiet(): void {
    if (this.#shifts.size === 0) this.#unwatch()
  }

  #unwatch(): void {
    // With a reason: an error would be made otherwise, which is not cheap.
    this.#watch?.abort(null)
    this.#watch = undefined
  }

  async #keepWatch(): Promise<void> {
    const watch = new AbortController()
    this.#watch = watch
    while (!watch.signal.aborted) {
      const oldest: Shift<Work> | undefined = this.#shifts.values().next().value
      if (oldest === undefined) {
        this.quiet()
        return
      }
      const left = oldest.last + this.#ms - this.#clock.monotonic()
      if (left > 0) await this.#clock.sleep(left, watch.signal)
      else this.#over(oldest)
    }
  }

  #over(shift: Shift<Work>): void {
    this.#shifts.delete(shift)
    if (this.#current === shift) this.#current = undefined
    shift.over = true
    // First: whoever heeds it is gone before others take their places, and may say what it has waited for.
    shift.controller.abort(tooLong('handling it', this.#ms))
    setImmediate(() => {
      const late = [...shift.waiting]
      shift.waiting.clear()
      for (const work of late) this.#late(work, this.#ms)
    })
  }

  /**
   * The session is over, or its end was asked for: all are told to give up. They have no deadline any more, since whoever
   * ends a session waits for them only so long; a timer would keep the process from ending.
   */
  #abort(): void {
    const { reason } = this.#signal
    this.#current = undefined
    for (const { controller } of this.#shifts) controller.abort(reason)
    this.#unwatch()
  }
}

export function tooLong(what: string, ms: number): WaybillError {
  return new WaybillError('TIMEOUT', `${what} took longer than ${ms} ms`)
}

/** Aborts what all handlers of a session listen to. They may be more than ten, which Node would take for a leak. */
export function sharedController(): AbortController {
  const controller = new AbortController()
  setMaxListeners(0, controller.signal)
  return controller
}
