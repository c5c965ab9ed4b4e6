import type { Clock } from '../core/index.ts'
import { listOf, numberOf, type RedisCommands } from '../drivers/redis/redis.ts'
import { Task } from '../flow/index.ts'
import { scripts } from './scripts.ts'

/** One script renews at most so many: Redis does nothing else meanwhile. */
const AT_ONCE = 500

export interface LeaseSettings {
  readonly redis: RedisCommands
  /** How long a mark lasts without being renewed, in milliseconds. */
  readonly lease: number
  readonly clock: Clock
}

interface HeldClaim {
  readonly token: string
  /** When it was set or renewed. */
  since: number
}

/**
 * Keeps the marks of messages alive while their handlers run. A mark that is gone is not fought for: the commit will
 * find that out, and change nothing.
 */
export class Leases {
  readonly #settings: LeaseSettings
  readonly #held = new Map<string, HeldClaim>()
  #renewal: Task<void> | undefined

  constructor(settings: LeaseSettings) {
    this.#settings = settings
  }

  hold(mark: string, token: string): void {
    this.#held.set(mark, { token, since: this.#settings.clock.monotonic() })
    if (this.#renewal === undefined) this.#start()
  }

  release(mark: string): void {
    this.#held.delete(mark)
  }

  /** Renews what has not been renewed lately: short work is over before that, and costs nothing. */
  async renew(): Promise<void> {
    const { redis, lease, clock } = this.#settings
    const now = clock.monotonic()
    const all = [...this.#held].filter(([, { since }]) => now - since >= lease / 6)
    for (let from = 0; from < all.length; from += AT_ONCE) {
      const part = all.slice(from, from + AT_ONCE)
      const marks = part.map(([mark]) => mark)
      const args = [String(lease), ...part.map(([, { token }]) => token)]
      const lost = listOf(await redis.script(scripts.renew, marks, args))
      for (const [, held] of part) held.since = now
      for (const number of lost) {
        const [mark, held] = part[numberOf(number) - 1]!
        if (this.#held.get(mark) === held) this.#held.delete(mark)
      }
    }
  }

  /** Renews no more. */
  async close(): Promise<void> {
    this.#held.clear()
    const renewal = this.#renewal
    this.#renewal = undefined
    await renewal?.stop()
  }

  /** It goes on until the store is stopped: short pauses between messages are no reason to begin anew. */
  #start(): void {
    const { lease, clock } = this.#settings
    const every = lease / 3
    this.#renewal = new Task<void>({
      name: 'inbox: renew',
      every,
      run: async () => {
        if (this.#held.size > 0) await this.renew()
      },
      // The leases run out while we wait: a failed renewal is tried again no later than the next would have been.
      backoff: { min: Math.min(every, 200), max: every, jitter: 0 },
      clock,
    })
    this.#renewal.start().catch(() => {})
  }
}
