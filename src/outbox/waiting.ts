import { type Clock, telemetry } from '../core/index.ts'
import type { Waits } from '../flow/index.ts'
import type { Holder } from './leadership.ts'

/** A relay renews its right three times in a lease: with less than this left, it has missed one. */
const OVERDUE = 0.5

/**
 * A relay that may not read says for whom it waits and until when: at once, when it is another, and when the other has
 * missed a renewal and seems to be gone.
 */
export class Waiting {
  readonly #table: string
  readonly #shard: number | undefined
  readonly #lease: number
  readonly #clock: Clock
  #reported = ''
  #now: Waits | undefined

  constructor(table: string, shard: number | undefined, lease: number, clock: Clock) {
    this.#table = table
    this.#shard = shard
    this.#lease = lease
    this.#clock = clock
  }

  for({ holder, expiresIn }: Holder, reason: string): void {
    const until = new Date(this.#clock.now() + expiresIn)
    this.#now = { reason: `${reason}: ${holder}, until ${until.toISOString()} unless it is renewed`, until }
    const overdue = expiresIn < this.#lease * OVERDUE
    const what = `${holder}\0${reason}\0${overdue}`
    if (what === this.#reported) return
    this.#reported = what
    const about = { table: this.#table, shard: this.#shard, holder, until: until.toISOString(), overdue, reason }
    telemetry['relay.waiting'].publish(about)
  }

  /** It waits no more: the next time is reported again. */
  over(): void {
    this.#reported = ''
    this.#now = undefined
  }

  /** For whom it waits at present. */
  readonly status = (): Waits | undefined => this.#now
}

/** Publishes that leases had expired, whose holders died or were cut off, and were taken over. */
export function publishExpired(table: string, count: number): void {
  if (count > 0) telemetry['leases.expired'].publish({ table, count })
}
