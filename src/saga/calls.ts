import { Deadlines } from '../core/deadlines.ts'
import { type Clock, onAbort, WaybillError } from '../core/index.ts'

interface Going {
  readonly promise: Promise<unknown>
  settled: { readonly value: unknown } | { readonly error: unknown } | undefined
}

/**
 * Calls of a step's functions, each with a time limit. One that was given up may still be going on here, and may still do
 * its work: nothing else is called under its key before it has ended, of itself or because it heeded its signal.
 */
export class StepCalls {
  readonly #deadlines: Deadlines
  readonly #going = new Map<string, Going>()

  constructor(clock: Clock) {
    this.#deadlines = new Deadlines(clock)
  }

  /** What `fn` returns. TIMEOUT after `ms`; the reason of `outer` when that aborts. `key` names its work. */
  async call(key: string, ms: number, outer: AbortSignal, fn: (signal: AbortSignal) => unknown): Promise<unknown> {
    const before = this.#going.get(key)
    if (before !== undefined) {
      await this.#wait(before, ms, outer)
      // It was only late: its work is done, and once is enough.
      if ('value' in before.settled!) return before.settled.value
    }
    const own = new AbortController()
    const going = this.#begin(key, async () => fn(own.signal))
    try {
      await this.#wait(going, ms, outer)
    } catch (error) {
      // Its time is up, or nobody wants it any more.
      own.abort(error)
      throw error
    }
    const settled = going.settled!
    if ('error' in settled) throw settled.error
    return settled.value
  }

  /** Until nothing goes on under this key, with the same limits. */
  async ended(key: string, ms: number, outer: AbortSignal): Promise<void> {
    const going = this.#going.get(key)
    if (going !== undefined) await this.#wait(going, ms, outer)
  }

  #begin(key: string, fn: () => Promise<unknown>): Going {
    const over = (settled: Going['settled']) => {
      going.settled = settled
      if (this.#going.get(key) === going) this.#going.delete(key)
    }
    const promise = fn().then(
      (value) => over({ value }),
      (error: unknown) => over({ error }),
    )
    const going: Going = { promise, settled: undefined }
    this.#going.set(key, going)
    return going
  }

  /** Until it has ended. Rejects with TIMEOUT after `ms`, and with the reason of `outer` when that aborts. */
  async #wait(going: Going, ms: number, outer: AbortSignal): Promise<void> {
    let over!: () => void
    const waiting = new Promise<void>((resolve) => {
      over = resolve
    })
    const deadline = this.#deadlines.add(ms, over)
    const forget = onAbort(outer, over)
    going.promise.then(over)
    await waiting
    this.#deadlines.delete(deadline)
    forget()
    if (going.settled !== undefined) return
    if (outer.aborted) throw outer.reason
    throw new WaybillError('TIMEOUT', `no answer within ${ms} ms`)
  }
}
