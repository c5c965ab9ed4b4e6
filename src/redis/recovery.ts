import type { Clock } from '../core/index.ts'
import type { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import type { RedisConnection } from '../drivers/redis/redis.ts'
import { outboxScripts } from './scripts.ts'
import type { Shard } from './shards.ts'

/** How often what may have been claimed without our knowing is looked for, in milliseconds. */
const RECOVER_EVERY = 1000

export interface RecoverySettings {
  /** Over the session's connection. */
  readonly shard: Shard
  readonly connection: ReconnectingRedis
  /** Of the session: all its claims begin with it. */
  readonly token: string
  /** See Shard. */
  readonly abandoned: Map<string, number>
  readonly lease: number
  readonly clock: Clock
}

/** An entry that was claimed and is not settled yet. */
interface Held {
  readonly member: string
  readonly token: string
}

/**
 * Gives back, uncharged, what this process has claimed and cannot settle: claims whose reply was lost, and sessions that
 * ended while the server did not respond; for as long as a lease, since a server that hung may run a claim late. And after
 * trouble what the session has there and not here: a failover has lost how that was settled.
 */
export class Recovery {
  readonly #settings: RecoverySettings
  #last = Number.NEGATIVE_INFINITY
  /** Over which it was looked for last. */
  #connection: RedisConnection | undefined
  /** Another server may be master by now, and have missed what the one before has answered. */
  #doubtful = false

  constructor(settings: RecoverySettings) {
    this.#settings = settings
  }

  /** Something failed. */
  doubt(): void {
    this.#doubtful = true
  }

  /** `held`: what the session is going to settle itself. */
  async run(held: () => readonly Held[], now = false): Promise<void> {
    const { shard, connection, token, abandoned, lease, clock } = this.#settings
    const current = await connection.connection()
    this.#doubtful ||= this.#connection !== undefined && this.#connection !== current
    this.#connection = current
    const began = clock.monotonic()
    const own = this.#doubtful
    if ((abandoned.size === 0 && !own) || (!now && began - this.#last < RECOVER_EVERY)) return
    const stays = own ? held() : []
    const tokens = [...abandoned]
    const words = stays.flatMap((one) => [one.member, one.token])
    words.push(...tokens.map(([abandonedToken]) => abandonedToken), ...(own ? [token] : []))
    this.#doubtful = false
    await shard.run(outboxScripts.recover, [String(stays.length), ...words]).catch((error: unknown) => {
      this.#doubtful ||= own
      throw error
    })
    this.#last = began
    for (const [abandonedToken, since] of tokens) if (began - since > lease) abandoned.delete(abandonedToken)
  }
}
