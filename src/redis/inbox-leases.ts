import type { Clock } from '../core/index.ts'
import { listOf, numberOf, type RedisCommands } from '../drivers/redis/redis.ts'
import { safeUntil, Task } from '../flow/index.ts'
import { scripts } from './scripts.ts'

/** One script renews at most so many: Redis does nothing else meanwhile. */
const AT_ONCE = 500

export interface LeaseSettings {
  readonly redis: RedisCommands
  /** How long a claim lasts without being renewed, in milliseconds. */
  readonly lease: number
  readonly clock: Clock
}

interface HeldClaim {
  readonly token: string
  /** When it was set or renewed. */
  since: number
  /** When that was tried last before its end, also where the server refused or was away. */
  tried: number
  /** The server has it no more. */
  gone: boolean
  /** That is not for want of trying to renew it in time. */
  excused: boolean
}

interface AbandonedClaim {
  readonly claim: string
  readonly token: string
  /** How often the server has confirmed that it is given up, or not there. */
  answered: number
}

/** How often what could not be given up is tried again, in milliseconds. */
const GIVE_UP_EVERY = 1000
/** A server that hung may set a claim after it was released: so it is released a second time. */
const ANSWERS_WANTED = 2

/**
 * Keeps the claims of messages alive while their handlers run. A lost claim is not taken back: the commit
 * finds out, and changes nothing. A claim that could not be given up, because the server did not respond, is given up as
 * soon as it does: this process lives, and nobody should wait for it as for one that is dead.
 */
export class Leases {
  readonly #settings: LeaseSettings
  readonly #held = new Map<string, HeldClaim>()
  /** By claim and token: a claim may be abandoned under two, and nobody knows which of them the server has. */
  readonly #abandoned = new Map<string, AbandonedClaim>()
  #renewal: Task<void> | undefined
  #givingUp: Task<void> | undefined

  constructor(settings: LeaseSettings) {
    this.#settings = settings
  }

  hold(claim: string, token: string): void {
    this.#abandoned.delete(nameOf(claim, token))
    const now = this.#settings.clock.monotonic()
    this.#held.set(claim, { token, since: now, tried: now, gone: false, excused: false })
    if (this.#renewal === undefined) this.#start()
  }

  /** Another unit of this process may hold it by now, under a token of its own. */
  release(claim: string, token: string): void {
    if (this.#held.get(claim)?.token === token) this.#held.delete(claim)
  }

  /** Whether a claim that the server has no more was lost by the server: its lease has not ended, or could not be renewed. */
  lostByServer(claim: string, token: string): boolean {
    const held = this.#held.get(claim)
    const now = this.#settings.clock.monotonic()
    return held?.token === token && (held.gone ? held.excused : this.#triedInTime(held, now))
  }

  /** A process that was blocked for longer than the lease has not, whatever it hears afterwards of a renewal from before. */
  #triedInTime({ tried }: HeldClaim, now: number): boolean {
    return now < safeUntil(tried, this.#settings.lease)
  }

  /** The claim may be there under this token, and nobody will use it. Returns whether it is the first such one. */
  abandon(claim: string, token: string): boolean {
    this.release(claim, token)
    this.#abandoned.set(nameOf(claim, token), { claim, token, answered: 0 })
    if (this.#givingUp !== undefined) return false
    this.#startGivingUp()
    return true
  }

  /** Whether a claim is one that this process has abandoned. */
  isAbandoned(claim: string, token: string): boolean {
    return this.#abandoned.has(nameOf(claim, token))
  }

  async #giveUp(): Promise<void> {
    const all = [...this.#abandoned]
    for (let from = 0; from < all.length; from += AT_ONCE) {
      const part = all.slice(from, from + AT_ONCE)
      const claims = part.map(([, { claim }]) => claim)
      const tokens = part.map(([, { token }]) => token)
      await this.#settings.redis.script(scripts.release, claims, tokens)
      for (const [name, one] of part) {
        if (++one.answered >= ANSWERS_WANTED && this.#abandoned.get(name) === one) this.#abandoned.delete(name)
      }
    }
  }

  /** It goes on until nothing is left. */
  #startGivingUp(): void {
    const giveUp = new Task<void>({
      name: 'inbox: give up',
      every: GIVE_UP_EVERY,
      run: async () => {
        await this.#giveUp()
        if (this.#abandoned.size > 0) return
        if (this.#givingUp === giveUp) this.#givingUp = undefined
        giveUp.stop().catch(() => {})
      },
      backoff: { min: GIVE_UP_EVERY, max: GIVE_UP_EVERY, jitter: 0 },
      clock: this.#settings.clock,
    })
    this.#givingUp = giveUp
    giveUp.start().catch(() => {})
  }

  /** Renews what has not been renewed lately: short work is over before that, and costs nothing. */
  async renew(): Promise<void> {
    const { redis, lease, clock } = this.#settings
    const now = clock.monotonic()
    const all = [...this.#held].filter(([, { since, gone }]) => !gone && now - since >= lease / 6)
    for (let from = 0; from < all.length; from += AT_ONCE) {
      const part = all.slice(from, from + AT_ONCE)
      const claims = part.map(([claim]) => claim)
      const args = [String(lease), ...part.map(([, { token }]) => token)]
      const lost = await redis.script(scripts.renew, claims, args).catch((error: unknown) => {
        for (const [, held] of all.slice(from)) if (this.#triedInTime(held, now)) held.tried = now
        throw error
      })
      const gone = new Set(listOf(lost).map((number) => part[numberOf(number) - 1]![1]))
      for (const [, held] of part) {
        held.gone = gone.has(held)
        if (held.gone) held.excused = this.#triedInTime(held, now)
        else held.since = held.tried = now
      }
    }
  }

  /** Renews no more. */
  async close(): Promise<void> {
    this.#held.clear()
    this.#abandoned.clear()
    const tasks = [this.#renewal, this.#givingUp]
    this.#renewal = this.#givingUp = undefined
    await Promise.all(tasks.map((task) => task?.stop()))
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

function nameOf(claim: string, token: string): string {
  return `${token}\n${claim}`
}
