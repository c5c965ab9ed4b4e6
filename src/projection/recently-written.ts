import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  systemClock,
  telemetry,
  WaybillError,
} from '../core/index.ts'

/** The one command of a Redis client that is needed: `call` of ioredis, `sendCommand` of node-redis. */
export type FlagRedis =
  | { call(command: string, ...args: string[]): Promise<unknown> }
  | { sendCommand(args: string[]): Promise<unknown> }

/** How long, and where, it is remembered who has just written. */
export interface RecentlyWrittenOptions {
  /** Default 3 s: longer than the view usually lags. */
  for?: Duration
  /** A client of ioredis or node-redis, for a service of several processes. Default: this process's memory. */
  redis?: FlagRedis
  /** Before each key on Redis. Default `cqrs:written:`. */
  prefix?: string
  clock?: Clock
}

/**
 * Who has written within the last seconds, and so reads from the main store instead of the view. Simple, and a guess: it
 * knows nothing of the view. Where that is not enough, wait for a token.
 */
export class RecentlyWritten {
  readonly #for: number
  readonly #redis: FlagRedis | undefined
  readonly #prefix: string
  readonly #clock: Clock
  /** Until when, in the order of marking; those that are over are dropped from the front. */
  readonly #until = new Map<string, number>()

  constructor(options: RecentlyWrittenOptions = {}) {
    checkOptions('recentlyWritten', options, { for: true, redis: true, prefix: true, clock: true })
    this.#for = milliseconds(options.for ?? '3s', 'recentlyWritten: for')
    this.#redis = options.redis
    this.#prefix = options.prefix ?? 'cqrs:written:'
    this.#clock = options.clock ?? systemClock
    const client = Object(this.#redis) as object
    if (this.#redis !== undefined && !('call' in client) && !('sendCommand' in client)) {
      const text = `recentlyWritten: redis is ${describe(this.#redis)}; give a client of ioredis or node-redis`
      throw new WaybillError('INVALID_OPTION', text)
    }
  }

  /** To be called after the commit. Never rejects: what was written is written. Returns whether it is remembered. */
  async mark(user: string): Promise<boolean> {
    if (this.#redis === undefined) {
      const now = this.#clock.monotonic()
      for (const [known, until] of this.#until) {
        if (until > now) break
        this.#until.delete(known)
      }
      this.#until.delete(user)
      this.#until.set(user, now + this.#for)
      return true
    }
    try {
      await this.#command('SET', this.#prefix + user, '1', 'PX', String(Math.ceil(this.#for)))
      return true
    } catch (error) {
      const message = `a write could not be recorded, so its user may read an old view: ${errorSummary(error)}`
      telemetry.warning.publish({ where: 'recentlyWritten', message })
      return false
    }
  }

  /** Whether this user reads from the main store now. `true` also while Redis cannot be asked: that is never wrong. */
  async has(user: string): Promise<boolean> {
    if (this.#redis === undefined) return (this.#until.get(user) ?? 0) > this.#clock.monotonic()
    try {
      return Number(await this.#command('EXISTS', this.#prefix + user)) > 0
    } catch {
      return true
    }
  }

  #command(...args: [string, ...string[]]): Promise<unknown> {
    const redis = this.#redis!
    return 'call' in redis ? redis.call(...args) : redis.sendCommand(args)
  }
}

/** `const written = recentlyWritten({ redis })`; `await written.mark(userId)` after a commit, `await written.has(userId)` before a query. */
export function recentlyWritten(options?: RecentlyWrittenOptions): RecentlyWritten {
  return new RecentlyWritten(options)
}
