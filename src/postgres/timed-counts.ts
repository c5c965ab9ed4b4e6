import { type Clock, systemClock } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'

/** So many times as long as a count took, nobody counts the same again. */
const SHARED = 20

/**
 * Counts for those who look every few seconds. A count has until a given time; the server ends one that takes longer, and with
 * it its transaction. One that took `t`, done or given up, is not begun again for 20 `t`: so counting takes at most a
 * twentieth of one core however often somebody looks, and a number that is shared is no older than that.
 */
export class TimedCounts<T> {
  readonly clock: Clock
  readonly #last = new Map<string, { readonly found: T | undefined; readonly again: number }>()

  constructor(clock: Clock = systemClock) {
    this.clock = clock
  }

  /** What took too long the last time comes last: it must not keep the others from being counted, look after look. */
  inOrder<One extends { readonly what: string }>(all: readonly One[]): readonly One[] {
    const late = ({ what }: One) => this.#last.has(what) && this.#last.get(what)!.found === undefined
    return [...all.filter((one) => !late(one)), ...all.filter(late)]
  }

  /** `undefined`: there is no time for it. Without `until` it may take what the transaction may, and is not shared. */
  async count(on: Sql, what: string, until: number | undefined, count: () => Promise<T>): Promise<T | undefined> {
    if (until === undefined) return count()
    const began = this.clock.monotonic()
    const last = this.#last.get(what)
    if (last !== undefined && began < last.again) return last.found
    const left = Math.floor(until - began)
    if (left < 1) return undefined
    await on.query(`SET LOCAL statement_timeout = ${left}`)
    let found: T | undefined
    try {
      found = await count()
      return found
    } finally {
      const now = this.clock.monotonic()
      this.#last.set(what, { found, again: now + SHARED * (now - began) })
    }
  }
}
