import { type Clock, WaybillError } from '../core/index.ts'

interface Going {
  readonly promise: Promise<unknown>
  settled: { readonly value: unknown } | { readonly error: unknown } | undefined
}

/**
 * Calls of a step's functions, each with a time limit. One that was given up may still be going on here, and may still do
 * its work: nothing else is called under its key before it has ended, of itself or because it heeded its signal.
 */
export class Calls {
  readonly #clock: Clock
  readonly #going = new Map<string, Going>()

  constructor(clock: Clock) {
    this.#clock = clock
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
    const stop = () => own.abort(outer.reason)
    if (outer.aborted) stop()
    else outer.addEventListener('abort', stop, { once: true })
    const going = this.#begin(key, async () => fn(own.signal))
    try {
      await this.#wait(going, ms, outer)
    } catch (error) {
      own.abort(error)
      throw error
    } finally {
      outer.removeEventListener('abort', stop)
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

  async #wait(going: Going, ms: number, outer: AbortSignal): Promise<void> {
    const done = new AbortController()
    const late = this.#clock.sleep(ms, AbortSignal.any([done.signal, outer]))
    await Promise.race([going.promise, late])
    done.abort()
    if (going.settled !== undefined) return
    if (outer.aborted) throw outer.reason
    throw new WaybillError('TIMEOUT', `no answer within ${ms} ms`)
  }
}
