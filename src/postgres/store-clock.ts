import type { Clock } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'

/**
 * The server's clock, computed from ours: how long events have waited is measured on the clock that wrote when they
 * were created. Asked for when a session begins and with each renewal, since clocks drift.
 */
export class StoreClock {
  readonly #clock: Clock
  #offset: number | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async ask(on: Sql): Promise<void> {
    const before = this.#clock.monotonic()
    const { rows } = await on.query("SELECT (date_part('epoch', clock_timestamp()) * 1000)::text AS now", [])
    // It was asked for somewhere on the way there and back.
    this.#offset = Number(rows[0]!['now']) - (before + this.#clock.monotonic()) / 2
  }

  /** Milliseconds since 1970, or 0 while it is not known. */
  now(): number {
    return this.#offset === undefined ? 0 : this.#clock.monotonic() + this.#offset
  }
}
