import type { Clock } from '../core/index.ts'

/** Why a pause is over. Without a reason an error would be made, which costs more than the message that came. */
const WOKEN = 'woken'

/** Those who wait until something changes. For sessions that hear of it from a connection. */
export class Waiters {
  readonly #clock: Clock
  readonly #waiting = new Set<AbortController>()
  #soon = false

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Until somebody wakes, or `ms`, or `signal`. */
  async pause(ms: number, signal?: AbortSignal): Promise<void> {
    const woken = new AbortController()
    const wake = () => woken.abort(WOKEN)
    this.#waiting.add(woken)
    signal?.addEventListener('abort', wake)
    if (signal?.aborted) wake()
    await this.#clock.sleep(Math.max(0, ms), woken.signal)
    signal?.removeEventListener('abort', wake)
    this.#waiting.delete(woken)
  }

  wake(): void {
    for (const woken of this.#waiting) woken.abort(WOKEN)
    this.#waiting.clear()
  }

  /** At the end of this turn: what else comes in it is taken together. */
  wakeSoon(): void {
    if (this.#soon || this.#waiting.size === 0) return
    this.#soon = true
    setImmediate(() => {
      this.#soon = false
      this.wake()
    })
  }
}
