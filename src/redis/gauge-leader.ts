import { type Clock, uuidv7 } from '../core/index.ts'
import { type RedisCommands, textOf } from '../drivers/redis/redis.ts'
import { safeUntil } from '../flow/index.ts'

/**
 * Which of the relays that compete reports for the whole outbox when somebody asks for numbers: whoever has written a key
 * of its own and renews it. Nothing else depends on it.
 */
export class GaugeLeader {
  readonly #lease: number
  readonly #clock: Clock
  readonly #me = uuidv7()
  #leads: boolean | undefined
  #until = 0

  constructor(lease: number, clock: Clock) {
    this.#lease = Math.ceil(lease)
    this.#clock = clock
  }

  /** `undefined` when the key may have run out: this process was suspended, or Redis is away. */
  get leads(): boolean | undefined {
    return this.#clock.monotonic() < this.#until ? this.#leads : undefined
  }

  /** `base` is that of the first shard. */
  async renew(base: string, redis: RedisCommands): Promise<void> {
    const key = `${base}:leader`
    const ms = String(this.#lease)
    const asked = this.#clock.monotonic()
    const set = await redis.command(['set', key, this.#me, 'nx', 'px', ms])
    const holder = set === null ? await redis.command(['get', key]) : undefined
    const leads = set !== null || (holder !== null && textOf(holder!) === this.#me)
    if (set === null && leads) await redis.command(['pexpire', key, ms])
    this.#leads = leads
    this.#until = safeUntil(asked, this.#lease)
  }

  /** The next one need not wait for the end of its time. After that the key may be that of another. */
  async leave(base: string, redis: RedisCommands): Promise<void> {
    const led = this.leads
    this.#leads = undefined
    if (led === true) await redis.command(['del', `${base}:leader`]).catch(() => {})
  }
}
