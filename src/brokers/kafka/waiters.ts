import type { Clock } from '../../core/index.ts'

/** Those who wait until something changes. */
export class Waiters {
  readonly #clock: Clock
  readonly #waiting = new Set<AbortController>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Until somebody wakes, or `ms`, or `signal`. */
  async pause(ms: number, signal?: AbortSignal): Promise<void> {
    const woken = new AbortController()
    const wake = () => woken.abort()
    this.#waiting.add(woken)
    signal?.addEventListener('abort', wake)
    if (signal?.aborted) wake()
    await this.#clock.sleep(ms, woken.signal)
    signal?.removeEventListener('abort', wake)
    this.#waiting.delete(woken)
  }

  wake(): void {
    for (const woken of this.#waiting) woken.abort()
    this.#waiting.clear()
  }
}
