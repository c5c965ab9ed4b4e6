import { errorSummary, type RawMessage, telemetry, Unavailable, uuidv7, Wakeup, WaybillError } from '../core/index.ts'
import type { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import {
  listOf,
  numberOf,
  type RedisArg,
  RedisError,
  type RedisReply,
  type RedisScript,
  textOf,
} from '../drivers/redis/redis.ts'
import { type Delivery, type Demand, Lease, RELEASE, type Session, type Settled, topicOf } from '../flow/index.ts'
import { Quarantine } from '../outbox/quarantine.ts'
import type { ReaderOptions } from '../outbox/reader.ts'
import { rowOf } from './admin-filter.ts'
import type { GaugeLeader } from './gauge-leader.ts'
import type { Hints } from './outbox.ts'
import { Recovery } from './recovery.ts'
import { createdOf, idOf, messageOf, wordsOf } from './row.ts'
import { outboxScripts } from './scripts.ts'
import type { Shard } from './shards.ts'

export interface RedisDelivery extends Delivery {
  readonly member: string
  /** Of the claim it came with: a second claim of the same entry has another. */
  readonly token: string
}

export interface OutboxLeaseSettings extends ReaderOptions {
  readonly name: string
  /** The outbox, as telemetry names it. */
  readonly table: string
  /** Of the first shard only: which relay reports for the whole. */
  readonly leader: GaugeLeader | undefined
  /** The shard, as the outbox has it. */
  readonly shard: Shard
  readonly hints: Hints
}

/** One script settles or renews at most so many: Redis does nothing else meanwhile. */
const AT_ONCE = 1000

interface ClaimResult {
  readonly deliveries: readonly RedisDelivery[]
  /** Milliseconds until there may be more. */
  readonly soonest: number
  readonly expired: boolean
  readonly moreExpired: boolean
  readonly dead: number
}

/**
 * What one relay has claimed of one shard. Every claim has a token and a lease on the server's clock, which is renewed
 * while work goes on; settlements are fenced by both. Many sessions, here and on other machines, share a shard: the claim
 * is what keeps an event from being in flight twice, whether a poll or a hint has led to it.
 */
export class OutboxSession implements Session<RedisDelivery> {
  readonly extendEvery: number
  readonly #settings: OutboxLeaseSettings
  readonly #connection: ReconnectingRedis
  /** The same shard over the session's own connection. */
  readonly #shard: Shard
  readonly #token = uuidv7()
  readonly #unsettled = new Set<RedisDelivery>()
  readonly #lost = new AbortController()
  readonly #unhint: () => void
  /** Claimed, and nothing anybody could send. */
  #bad: { delivery: Omit<RedisDelivery, 'message'>; error: unknown }[] = []
  #claims = 0
  readonly #lease: Lease
  readonly #quarantine = new Quarantine()
  /** Expired leases are claimed only when nothing is unsettled. */
  #moreExpired = false
  /** Something may have come since the last claim began. */
  #hinted = false
  #soonest = Number.POSITIVE_INFINITY
  /** How far the server's clock is from ours. */
  #offset: number | undefined
  #clockReported = false
  readonly #recovery: Recovery
  readonly #wakeup: Wakeup

  constructor(settings: OutboxLeaseSettings, connection: ReconnectingRedis) {
    this.#settings = settings
    this.#connection = connection
    this.#shard = settings.shard.over(connection)
    this.#wakeup = new Wakeup(settings.clock)
    this.#lease = new Lease(settings.clock, settings.lease)
    const { clock, lease, shard } = settings
    const { abandoned } = shard
    this.#recovery = new Recovery({ shard: this.#shard, connection, token: this.#token, abandoned, lease, clock })
    this.extendEvery = lease / 3
    this.#unhint = settings.wake ? settings.hints.listen(settings.shard, () => this.#hint()) : () => {}
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose('LEASE_EXPIRED', 'the leases of claimed events could not be renewed in time')
    return false
  }

  now(): number {
    return this.#offset === undefined ? 0 : this.#settings.clock.monotonic() + this.#offset
  }

  /** What those who look need to know: who reports for the outbox, and what time it is there. Work does not need it. */
  async renewLook(): Promise<void> {
    const { clock, leader } = this.#settings
    try {
      await leader?.renew(this.#shard.base, this.#connection)
      const before = clock.monotonic()
      const time = numberOf(await this.#shard.run(outboxScripts.time, []))
      this.#offset = time - (before + clock.monotonic()) / 2
    } catch {
      // A server without memory refuses the leader's key, and must not cost the leases of what is being published.
    }
  }

  async take(demand: Demand): Promise<readonly RedisDelivery[]> {
    await this.#recovery.run(this.#held)
    await this.#settleBad()
    // What may have killed a relay goes out while nothing else is unsettled.
    if (this.#lost.signal.aborted || (this.#quarantine.active && this.#unsettled.size > 0)) return []
    this.#hinted = false
    const asked = this.#settings.clock.monotonic()
    const { deliveries, soonest, expired, moreExpired, dead } = await this.#claim(demand)
    if (deliveries.length > 0) this.#lease.claimed(asked)
    for (const delivery of deliveries) this.#unsettled.add(delivery)
    this.#soonest = asked + soonest
    this.#moreExpired = moreExpired
    this.#quarantine.claimed({ expired, moreExpired })
    await this.#settleBad()
    // Some were dead: what comes after them has not been looked at yet.
    return deliveries.length === 0 && dead > 0 ? this.take(demand) : deliveries
  }

  async #claim({ count, bytes }: Demand): Promise<ClaimResult> {
    const { lease, attempts, deadKey } = this.#settings
    const token = `${this.#token}:${++this.#claims}`
    const expiredOnes = this.#quarantine.allowance(count, this.#unsettled.size)
    const args = [token, lease, count, bytes, attempts, expiredOnes, deadKey === 'continue' ? 1 : 0].map(String)
    const answer = listOf(
      await this.#run(outboxScripts.claim, args).catch((error: unknown) => {
        // Without an answer it may have been done, and nobody would know of it before the leases run out.
        if (!isRefusal(error)) this.#settings.shard.abandoned.set(token, this.#settings.clock.monotonic())
        throw error
      }),
    )
    const [soonest, more, dropped, dead, claimed, behind] = answer
    this.#publishClock(numberOf(behind))
    if (numberOf(dropped) > 0) this.#publishDropped(numberOf(dropped))
    const given = listOf(dead)
    for (let i = 0; i < given.length; i += 2) await this.#publishExpired(textOf(given[i]), numberOf(given[i + 1]))
    const deliveries: RedisDelivery[] = []
    let expired = false
    const cells = listOf(claimed)
    for (let i = 0; i < cells.length; i += 4) {
      const member = textOf(cells[i])
      const body = cells[i + 3] as Buffer
      const about = { member, token, attempts: numberOf(cells[i + 1]), size: body.length, key: undefined }
      expired ||= textOf(cells[i + 2]) === '1'
      try {
        const message: RawMessage = messageOf(idOf(member), body)
        deliveries.push({ ...about, key: message.key, message, created: createdOf(member) })
      } catch (error) {
        this.#bad.push({ delivery: about, error })
      }
    }
    const wait = numberOf(soonest)
    return {
      deliveries,
      soonest: wait < 0 ? Number.POSITIVE_INFINITY : wait,
      expired,
      moreExpired: textOf(more) === '1',
      dead: given.length,
    }
  }

  /** What is to be settled here. */
  readonly #held = () => [...this.#unsettled, ...this.#bad.map(({ delivery }) => delivery)]

  async #run(script: RedisScript, args: readonly RedisArg[]): Promise<RedisReply> {
    try {
      return await this.#shard.run(script, args)
    } catch (error) {
      this.#recovery.doubt()
      throw error
    }
  }

  /** Until a hint, until something is due, until `ms` or `signal`. */
  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { clock } = this.#settings
    const { active } = this.#quarantine
    if (active ? this.#unsettled.size === 0 : this.#hinted) return
    const limit = active ? ms : Math.min(ms, Math.max(0, this.#soonest - clock.monotonic()))
    await this.#wakeup.pause(limit, signal)
  }

  async settle(batch: readonly Settled<RedisDelivery>[]): Promise<number> {
    const ours = batch.filter(([{ token }]) => this.#isOurs(token))
    let stale = batch.length - ours.length
    for (let from = 0; from < ours.length; from += AT_ONCE)
      stale += await this.#settle(ours.slice(from, from + AT_ONCE))
    // It came too late: the next session takes back what is left, before anybody charges it.
    if (stale > 0) this.live()
    for (const [delivery] of batch) this.#unsettled.delete(delivery)
    this.#quarantine.settled(this.#unsettled.size)
    if (this.#unsettled.size === 0) {
      if (this.#quarantine.active) this.#wakeup.wake()
      if (this.#moreExpired) this.#hint()
    }
    // What follows in a key, or was given back, can be claimed now.
    if (batch.some(([delivery, { kind }]) => kind !== 'done' || delivery.key !== undefined)) this.#hint()
    return stale
  }

  async #settle(batch: readonly Settled<Omit<RedisDelivery, 'message'>>[]): Promise<number> {
    const { deletes, deadKey } = this.#settings
    const done = batch.filter(([, { kind }]) => kind === 'done')
    const others = batch.filter(([, { kind }]) => kind !== 'done')
    const args: RedisArg[] = [deletes ? '1' : '0', deadKey === 'continue' ? '1' : '0', String(done.length)]
    for (const [{ member, token }] of done) args.push(member, token)
    for (const [{ member, token }, settlement] of others) args.push(member, token, ...wordsOf(settlement))
    return numberOf(await this.#run(outboxScripts.settle, args))
  }

  async extend(deliveries: readonly RedisDelivery[]): Promise<void> {
    const asked = this.#lease.renewing()
    let gone = await this.#renew(deliveries)
    // What was settled meanwhile is not ours to lose, whoever has it by now.
    if (gone > 0) gone = await this.#renew(deliveries.filter((delivery) => this.#unsettled.has(delivery)))
    // What has not gone out must not go out beside another relay.
    if (gone > 0) return this.#lose('LEASE_EXPIRED', `${gone} of what was claimed could not be renewed in time`)
    this.#quarantine.renewed(deliveries.length)
    this.#lease.renewed(asked, deliveries.length > 0)
    await this.renewLook()
  }

  /** Returns how many are not ours any more. */
  async #renew(deliveries: readonly RedisDelivery[]): Promise<number> {
    let gone = 0
    for (let from = 0; from < deliveries.length; from += AT_ONCE) {
      const pairs = deliveries.slice(from, from + AT_ONCE).flatMap(({ member, token }) => [member, token])
      gone += numberOf(await this.#run(outboxScripts.extend, [String(this.#settings.lease), ...pairs]))
    }
    return gone
  }

  /**
   * What was not settled is given back: waiting for the end of its lease would cost it an attempt. Where nobody responds,
   * the next session of this process does it.
   */
  async close(): Promise<void> {
    this.#unhint()
    this.#wakeup.wake()
    const { shard, clock, leader } = this.#settings
    const left = this.#held() as RedisDelivery[]
    this.#unsettled.clear()
    this.#bad = []
    if (left.length > 0 || this.#lost.signal.aborted) shard.abandoned.set(this.#token, clock.monotonic())
    try {
      if (this.#lost.signal.aborted) return
      if (left.length > 0) await this.settle(left.map((delivery) => [delivery, RELEASE] as const))
      shard.abandoned.delete(this.#token)
      // There may be no next session: what was claimed without an answer is given back now.
      await this.#recovery.run(this.#held, true)
    } catch {
      // As said above.
    } finally {
      if (!this.#lost.signal.aborted) await leader?.leave(this.#shard.base, this.#connection)
      await this.#connection.close()
    }
  }

  /** Parked, each on its own account: the others flow. */
  async #settleBad(): Promise<void> {
    while (this.#bad.length > 0) {
      const { delivery, error } = this.#bad[0]!
      const reason = errorSummary(error)
      const stale = await this.#settle([[delivery, { kind: 'dead', reason, error }]])
      this.#bad.shift()
      const about = { type: '', id: idOf(delivery.member), reason, attempt: delivery.attempts + 1, tenant: undefined }
      const { name, table } = this.#settings
      if (stale === 0) telemetry['message.dead'].publish({ flow: name, table, ...about })
    }
  }

  #isOurs(token: string): boolean {
    return token.startsWith(`${this.#token}:`)
  }

  #hint(): void {
    this.#hinted = true
    if (!this.#quarantine.active) this.#wakeup.wake()
  }

  async #publishExpired(member: string, attempt: number): Promise<void> {
    const { name, table } = this.#settings
    const error = new WaybillError('CRASHED', 'the leases of the relays that worked on it ran out')
    const id = idOf(member)
    const about = { type: '', id, reason: errorSummary(error), attempt, tenant: undefined }
    // It is dead already: what cannot be looked up any more is left out.
    const row = await rowOf([this.#shard], id).catch(() => undefined)
    const more = row === undefined ? {} : aboutOf(() => messageOf(id, row.body))
    telemetry['message.dead'].publish({ flow: name, table, ...about, ...more })
  }

  /** Once for each time it goes back. */
  #publishClock(behind: number): void {
    if (behind > 0 && !this.#clockReported) {
      const seconds = Math.round(behind / 1000)
      const message = `the clock of Redis is ${seconds} s behind what it was: events that wait for a retry or their time wait by the new clock`
      telemetry.warning.publish({ where: `outbox ${this.#settings.table}`, message })
    }
    this.#clockReported = behind > 0
  }

  #publishDropped(dropped: number): void {
    const counts = { restored: 0, dropped, released: 0, headed: 0 }
    telemetry['outbox.repaired'].publish({ table: this.#settings.table, ...counts })
  }

  #lose(code: string, reason: string): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(new WaybillError(code, reason))
  }
}

/** What a message says of itself, for telemetry. */
function aboutOf(read: () => RawMessage) {
  try {
    const message = read()
    return { type: message.type, tenant: message.tenant, topic: topicOf(message) }
  } catch {
    return {}
  }
}

/** The server has answered that it does not do it. */
function isRefusal(error: unknown): boolean {
  return error instanceof RedisError || (error instanceof Unavailable && error.cause instanceof RedisError)
}
