import type { Clock } from '../core/index.ts'

/** How much of a lease a session counts on: clocks run at different speeds, and requests take time to arrive. */
const SAFE = 0.9

/** Until when a lease of `ms` that was asked for then may be counted on. */
export function safeUntil(asked: number, ms: number): number {
  return asked + ms * SAFE
}

/**
 * Until when what a session holds is certainly its own, by this process's clock. The server's lease begins after the
 * request was sent and ends after this one, so a session falls silent before another can take over. Times are those at
 * which something was asked for, never those at which the answer came.
 *
 *   const lease = new Lease(clock, ms)
 *   lease.claimed(asked)              this was asked for then, and has come
 *   const asked = lease.renewing()    a renewal of everything held begins; what is claimed from here on is not in it
 *   lease.renewed(asked, some)        it has succeeded; without `some` nothing was held
 *   lease.live                        nothing that is held can have expired
 */
export class Lease {
  readonly #clock: Clock
  readonly #ms: number
  /** The end of what the last renewal covered, and of what was claimed since. */
  #renewed = Number.POSITIVE_INFINITY
  #claimed = Number.POSITIVE_INFINITY

  constructor(clock: Clock, ms: number) {
    this.#clock = clock
    this.#ms = ms
  }

  get live(): boolean {
    return this.#clock.monotonic() < this.until
  }

  /** On the monotonic clock; infinite while nothing is held. */
  get until(): number {
    return Math.min(this.#renewed, this.#claimed)
  }

  claimed(asked: number): void {
    this.#claimed = Math.min(this.#claimed, safeUntil(asked, this.#ms))
  }

  /** Until it has succeeded, what was claimed before ends when it would have. */
  renewing(): number {
    this.#renewed = this.until
    this.#claimed = Number.POSITIVE_INFINITY
    return this.#clock.monotonic()
  }

  renewed(asked: number, some: boolean): void {
    this.#renewed = some ? safeUntil(asked, this.#ms) : Number.POSITIVE_INFINITY
  }
}
