import { types } from 'node:util'
import type { Clock } from './clock.ts'

/** Why a wait is over. `abort()` without a reason creates an error, which costs more than the message that came. */
const OVER = 'over'

/** Those who listen to a signal, and the one listener that calls them. */
const listening = new WeakMap<AbortSignal, { readonly fns: Set<() => void>; readonly call: () => void }>()

/**
 * Calls `fn` when `signal` aborts, or now if it has; what it returns takes that back. Those who listen to one signal
 * share a listener: a flow has one signal for all its handlers, listeners are slow to add and remove, and
 * Node reports more than ten as a leak. With the last of them the listener goes: it would keep the results of
 * `AbortSignal.any` in memory.
 */
export function onAbort(signal: AbortSignal, fn: () => void): () => void {
  if (signal.aborted) {
    fn()
    return ignore
  }
  const { fns, call } = listening.get(signal) ?? listen(signal)
  // An entry of its own for each caller, whatever function it gives.
  const entry = () => fn()
  fns.add(entry)
  return () => {
    if (!fns.delete(entry) || fns.size > 0) return
    signal.removeEventListener('abort', call)
    listening.delete(signal)
  }
}

function listen(signal: AbortSignal) {
  const fns = new Set<() => void>()
  const call = () => {
    for (const fn of fns) {
      try {
        fn()
      } catch (error) {
        // As a listener of its own would: uncaught, and the others are called.
        queueMicrotask(() => {
          throw error
        })
      }
    }
  }
  const listener = { fns, call }
  listening.set(signal, listener)
  signal.addEventListener('abort', call, { once: true })
  return listener
}

function ignore(): void {}

/** Resolves when `signal` aborts. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    onAbort(signal, resolve)
  })
}

/** The result of `work`; if `signal` aborts first, what `instead` returns or throws. `work` goes on in any case. */
export function untilAborted<T>(work: Promise<T>, signal: AbortSignal | undefined, instead: () => T): Promise<T> {
  if (signal === undefined) return work
  return new Promise((resolve, reject) => {
    const forget = onAbort(signal, () => settle(instead, resolve, reject))
    work.then(resolve, reject).then(forget)
  })
}

/** The result of `work`; after `ms`, or if `signal` aborts first, what `late` returns or throws. `work` goes on. */
export function withDeadline<T>(
  work: PromiseLike<T>,
  ms: number,
  clock: Clock,
  late: () => T,
  signal?: AbortSignal,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const done = new AbortController()
    const giveUp = () => {
      if (done.signal.aborted) return
      done.abort(OVER)
      settle(late, resolve, reject)
    }
    const forget = signal === undefined ? ignore : onAbort(signal, giveUp)
    const over = () => {
      done.abort(OVER)
      forget()
    }
    work.then(resolve, reject).then(over)
    clock.sleep(ms, done.signal).then(giveUp).then(forget)
  })
}

function settle<T>(make: () => T, resolve: (value: T) => void, reject: (error: unknown) => void): void {
  try {
    resolve(make())
  } catch (error) {
    reject(error)
  }
}

/** Wakes those who wait. For sessions that hear from a connection that there is something to do. */
export class Wakeup {
  readonly #clock: Clock
  readonly #waiting = new Set<AbortController>()
  #soon = false

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Until somebody wakes, or `ms`, or one of `signals` aborts. */
  async pause(ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
    const woken = new AbortController()
    const wake = () => woken.abort(OVER)
    this.#waiting.add(woken)
    const forget = signals.map((signal) => (signal === undefined ? ignore : onAbort(signal, wake)))
    await this.#clock.sleep(Math.max(0, ms), woken.signal)
    for (const takeBack of forget) takeBack()
    this.#waiting.delete(woken)
  }

  wake(): void {
    for (const woken of this.#waiting) woken.abort(OVER)
    this.#waiting.clear()
  }

  /** At the end of this turn: whatever else arrives in it is taken together. */
  wakeSoon(): void {
    if (this.#soon || this.#waiting.size === 0) return
    this.#soon = true
    setImmediate(() => {
      this.#soon = false
      this.wake()
    })
  }
}

/** Waits for conditions, which are checked again on every `notify`. */
export class Notifier {
  readonly #watchers = new Set<() => void>()

  readonly notify = (): void => {
    if (this.#watchers.size > 0) for (const look of this.#watchers) look()
  }

  /** Resolves when `condition` holds, or when `signal` aborts. */
  until(condition: () => boolean, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted || condition()) return Promise.resolve()
    return new Promise((resolve) => {
      let forget = ignore
      const look = () => {
        if (!signal?.aborted && !condition()) return
        this.#watchers.delete(look)
        forget()
        resolve()
      }
      this.#watchers.add(look)
      if (signal !== undefined) forget = onAbort(signal, look)
    })
  }
}

export function isThenable(value: unknown): value is PromiseLike<unknown> {
  // Query builders and promises of other realms are thenables that are no Promise of ours.
  return value instanceof Promise || typeof (value as PromiseLike<unknown> | undefined | null)?.then === 'function'
}

/**
 * The promise that `value` is, or `undefined` for a plain value. A thenable of others is wrapped: a promise of the
 * language settles once, while a foreign `then` may call back twice, both ways, or throw. A Proxy of a promise looks like
 * one, and its `then` throws. May throw itself, where reading `then` does.
 */
export function promiseOf(value: unknown): Promise<unknown> | undefined {
  if (value instanceof Promise && value.then === Promise.prototype.then && types.isPromise(value)) return value
  return isThenable(value) ? new Promise((resolve) => resolve(value)) : undefined
}
