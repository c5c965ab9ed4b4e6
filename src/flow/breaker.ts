import { type Clock, pauseAfter, telemetry } from '../core/index.ts'
import type { RetryPolicy } from './retry-policy.ts'
import type { Window } from './window.ts'

export interface BreakerSettings {
  readonly flow: string
  readonly window: Window
  readonly retry: RetryPolicy
  readonly clock: Clock
}

/** The longest pause while some are marked, in milliseconds: others may be there that would arrive. */
const SHORT = 1000

/** The pause after a collective failure, and its end: nothing goes out until the next probe is due. */
export class Breaker {
  paused = false
  readonly #settings: BreakerSettings
  readonly #abort: AbortSignal
  readonly #onProbe: () => void
  #since: number | undefined

  constructor(settings: BreakerSettings, abort: AbortSignal, onProbe: () => void) {
    this.#settings = settings
    this.#abort = abort
    this.#onProbe = onProbe
  }

  /** Pauses, unless the window spares it. Returns how long whoever failed should wait. */
  pause(error: unknown): number {
    const { flow, window, retry, clock } = this.#settings
    const { failures, era } = window
    const pause = Math.max(retry.breaker(Math.max(1, failures)), pauseAfter(error))
    const retryIn = window.doubtful ? Math.min(pause, SHORT) : pause
    if (failures === 0) return retryIn
    this.paused = true
    this.#since ??= clock.monotonic()
    telemetry['flow.paused'].publish({ flow, error, retryIn, failures })
    // By the era and not by the time: a timer may fire a little early, and would then never fire again.
    clock.sleep(retryIn, this.#abort).then(() => {
      if (era === window.era) this.probe()
    })
    return retryIn
  }

  /** The next to go out is the probe. */
  probe(): void {
    this.paused = false
    this.#onProbe()
  }

  /** Some that went out in `era`, with the call of this number, have arrived. */
  arrived(count: number, era: number, number: number): void {
    const { flow, window, clock } = this.#settings
    window.arrived(count, era, number)
    if (this.#since === undefined || era !== window.era) return
    const pausedFor = clock.monotonic() - this.#since
    this.#since = undefined
    telemetry['flow.resumed'].publish({ flow, pausedFor })
  }
}
