import { errorSummary, type RawMessage, telemetry, uuidv7, Wakeup, WaybillError } from '../core/index.ts'
import { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import { listOf, numberOf, type RedisArg, textOf } from '../drivers/redis/redis.ts'
import { type Delivery, type Demand, Lease, RELEASE, type Session, type Settled, type Source } from '../flow/index.ts'
import { Quarantine } from '../outbox/quarantine.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import type { Hints } from './outbox.ts'
import { idOf, messageOf, wordsOf } from './row.ts'
import { outboxScripts } from './scripts.ts'
import type { Shard, Shards } from './shards.ts'

export interface OutboxDelivery extends Delivery {
  readonly part: Part
  readonly member: string
  /** Of the claim it came with: a second claim of the same entry has another. */
  readonly token: string
}

/** A shard over a connection of the session's own. */
export interface Part {
  readonly shard: Shard
  readonly connection: ReconnectingRedis
}

export interface SessionSettings extends ReaderOptions {
  readonly name: string
  readonly hints: Hints
}

/** One script settles or renews at most so many: Redis does nothing else meanwhile. */
const AT_ONCE = 1000

interface Claimed {
  readonly deliveries: readonly OutboxDelivery[]
  /** Milliseconds until there may be more. */
  readonly soonest: number
  readonly expired: boolean
  readonly moreExpired: boolean
  readonly dead: number
}

/**
 * What one relay has claimed. Every claim has a token and a lease on the server's clock, which is renewed while work
 * goes on; settlements are fenced by both. Many sessions, here and on other machines, share an outbox: the claim is
 * what keeps an event from being in flight twice, whether a poll or a hint has led to it.
 */
export class OutboxSession implements Session<OutboxDelivery> {
  readonly extendEvery: number
  readonly #settings: SessionSettings
  readonly #parts: readonly Part[]
  readonly #token = uuidv7()
  readonly #inHand = new Set<OutboxDelivery>()
  readonly #lost = new AbortController()
  readonly #unhint: () => void
  /** Claimed, and nothing anybody could send. */
  #bad: { delivery: Omit<OutboxDelivery, 'message'>; error: unknown }[] = []
  #claims = 0
  readonly #lease: Lease
  readonly #quarantine = new Quarantine()
  /** Leases that ran out are left for when nothing is in hand. */
  #moreExpired = false
  /** Something may have come since the last claim began. */
  #hinted = false
  #soonest = Number.POSITIVE_INFINITY
  readonly #wakeup: Wakeup

  constructor(settings: SessionSettings, parts: readonly Part[]) {
    this.#settings = settings
    this.#parts = parts
    this.#wakeup = new Wakeup(settings.clock)
    this.#lease = new Lease(settings.clock, settings.lease)
    this.extendEvery = settings.lease / 3
    this.#unhint = settings.wake ? settings.hints.listen(() => this.#hint()) : () => {}
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose('LEASE_EXPIRED', 'what was claimed could not be renewed in time')
    return false
  }

  async take(demand: Demand): Promise<readonly OutboxDelivery[]> {
    await this.#bury()
    // What may have killed a relay goes out with nothing else in hand.
    if (this.#lost.signal.aborted || (this.#quarantine.active && this.#inHand.size > 0)) return []
    this.#hinted = false
    const asked = this.#settings.clock.monotonic()
    const { length } = this.#parts
    const share = { count: Math.ceil(demand.count / length), bytes: Math.ceil(demand.bytes / length) }
    const claims = await Promise.all(this.#parts.map((part) => this.#claim(part, share)))
    const taken = claims.flatMap(({ deliveries }) => deliveries)
    if (taken.length > 0) this.#lease.claimed(asked)
    for (const delivery of taken) this.#inHand.add(delivery)
    this.#soonest = asked + Math.min(...claims.map(({ soonest }) => soonest))
    this.#judge(claims)
    await this.#bury()
    // Some were dead: what comes after them has not been looked at yet.
    if (taken.length === 0 && claims.some(({ dead }) => dead > 0)) return this.take(demand)
    return taken
  }

  async #claim(part: Part, { count, bytes }: Demand): Promise<Claimed> {
    const { lease, attempts, deadKey } = this.#settings
    const token = `${this.#token}:${++this.#claims}`
    const expiredOnes = this.#quarantine.allowance(count, this.#inHand.size)
    const args = [token, lease, count, bytes, attempts, expiredOnes, deadKey === 'continue' ? 1 : 0].map(String)
    const answer = listOf(await part.shard.run(outboxScripts.claim, args))
    const [soonest, more, dropped, dead, claimed] = answer
    if (numberOf(dropped) > 0) this.#tellDropped(numberOf(dropped))
    const buried = listOf(dead)
    for (let i = 0; i < buried.length; i += 2) this.#tellExpired(textOf(buried[i]), numberOf(buried[i + 1]))
    const deliveries: OutboxDelivery[] = []
    let expired = false
    const cells = listOf(claimed)
    for (let i = 0; i < cells.length; i += 4) {
      const member = textOf(cells[i])
      const body = cells[i + 3] as Buffer
      const about = { part, member, token, attempts: numberOf(cells[i + 1]), size: body.length, key: undefined }
      expired ||= textOf(cells[i + 2]) === '1'
      try {
        const message: RawMessage = messageOf(idOf(member), body)
        deliveries.push({ ...about, key: message.key, message })
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
      dead: buried.length,
    }
  }

  #judge(claims: readonly Claimed[]): void {
    this.#moreExpired = claims.some(({ moreExpired }) => moreExpired)
    const expired = claims.some((claim) => claim.expired)
    this.#quarantine.claimed({ expired, moreExpired: this.#moreExpired })
  }

  /** Until a hint, until something is due, until `ms` or `signal`. */
  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { clock } = this.#settings
    const { active } = this.#quarantine
    if (active ? this.#inHand.size === 0 : this.#hinted) return
    const limit = active ? ms : Math.min(ms, Math.max(0, this.#soonest - clock.monotonic()))
    await this.#wakeup.pause(limit, signal)
  }

  async settle(batch: readonly Settled<OutboxDelivery>[]): Promise<number> {
    let stale = batch.filter(([{ token }]) => !this.#isOurs(token)).length
    for (const part of this.#parts) {
      const here = batch.filter(([delivery]) => delivery.part === part)
      for (let from = 0; from < here.length; from += AT_ONCE) {
        stale += await this.#settle(part, here.slice(from, from + AT_ONCE))
      }
    }
    for (const [delivery] of batch) this.#inHand.delete(delivery)
    this.#quarantine.settled(this.#inHand.size)
    if (this.#inHand.size === 0) {
      if (this.#quarantine.active) this.#wakeup.wake()
      if (this.#moreExpired) this.#hint()
    }
    // What follows in a key, or was given back, can be claimed now.
    if (batch.some(([delivery, { kind }]) => kind !== 'done' || delivery.key !== undefined)) this.#hint()
    return stale
  }

  async #settle(part: Part, batch: readonly Settled<Omit<OutboxDelivery, 'message'>>[]): Promise<number> {
    const { deletes, deadKey } = this.#settings
    const done = batch.filter(([, { kind }]) => kind === 'done')
    const others = batch.filter(([, { kind }]) => kind !== 'done')
    const args: RedisArg[] = [deletes ? '1' : '0', deadKey === 'continue' ? '1' : '0', String(done.length)]
    for (const [{ member, token }] of done) args.push(member, token)
    for (const [{ member, token }, settlement] of others) args.push(member, token, ...wordsOf(settlement))
    return numberOf(await part.shard.run(outboxScripts.settle, args))
  }

  async extend(deliveries: readonly OutboxDelivery[]): Promise<void> {
    const { lease } = this.#settings
    const asked = this.#lease.renewing()
    for (const part of this.#parts) {
      const here = deliveries.filter((delivery) => delivery.part === part)
      for (let from = 0; from < here.length; from += AT_ONCE) {
        const pairs = here.slice(from, from + AT_ONCE).flatMap(({ member, token }) => [member, token])
        await part.shard.run(outboxScripts.extend, [String(lease), ...pairs])
      }
    }
    this.#quarantine.renewed(deliveries.length)
    this.#lease.renewed(asked, deliveries.length > 0)
  }

  /** What was not settled is given back: waiting for the end of its lease would cost it an attempt. */
  async close(): Promise<void> {
    this.#unhint()
    this.#wakeup.wake()
    const left = [...this.#inHand].map((delivery) => [delivery, RELEASE] as const)
    this.#inHand.clear()
    try {
      if (!this.#lost.signal.aborted && left.length > 0) await this.settle(left).catch(() => {})
    } finally {
      await Promise.all(this.#parts.map(({ connection }) => connection.close()))
    }
  }

  /** Parked, each on its own account: the others flow. */
  async #bury(): Promise<void> {
    while (this.#bad.length > 0) {
      const { delivery, error } = this.#bad[0]!
      const reason = errorSummary(error)
      const stale = await this.#settle(delivery.part, [[delivery, { kind: 'dead', reason, error }]])
      this.#bad.shift()
      const about = { type: '', id: idOf(delivery.member), reason, attempt: delivery.attempts + 1, tenant: undefined }
      if (stale === 0) telemetry['message.dead'].publish({ flow: this.#settings.name, ...about })
    }
  }

  #isOurs(token: string): boolean {
    return token.startsWith(`${this.#token}:`)
  }

  #hint(): void {
    this.#hinted = true
    if (!this.#quarantine.active) this.#wakeup.wake()
  }

  #tellExpired(member: string, attempt: number): void {
    const error = new WaybillError('CRASHED', 'the relays that worked on it let their leases run out')
    const about = { type: '', id: idOf(member), reason: errorSummary(error), attempt, tenant: undefined }
    telemetry['message.dead'].publish({ flow: this.#settings.name, ...about })
  }

  #tellDropped(dropped: number): void {
    const counts = { restored: 0, dropped, released: 0, headed: 0 }
    telemetry['outbox.repaired'].publish({ outbox: this.#settings.name, ...counts })
  }

  #lose(code: string, reason: string): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(new WaybillError(code, reason))
  }
}

export interface Readable {
  readonly name: string
  readonly shards: Shards
  readonly hints: Hints
}

const KEYS_AT_ONCE = 500

/**
 * A relay's part in reading the outbox. Relays compete: each claims what it takes, and of a key only the first can be
 * claimed, so that order is kept without an owner. All of them read all shards.
 */
export class RedisReader implements Reader {
  readonly #source: Source<OutboxDelivery>
  #told: (() => void) | undefined

  constructor(of: Readable, options: ReaderOptions) {
    if (options.reader === 'owner') {
      throw new WaybillError(
        'INVALID_OPTION',
        'Relay: reader: "owner" is not for an outbox on Redis: relays compete there, and order per key is kept; leave it out',
      )
    }
    if (options.shards !== 1) {
      throw new WaybillError(
        'INVALID_OPTION',
        `Relay: shards: ${options.shards} is not for an outbox on Redis: it has as many as the stores it was given; leave it out`,
      )
    }
    this.#source = {
      name: of.name,
      features: { redelivers: true, holdsKeys: true },
      open: () => open(of, options),
    }
    this.#told = () => {
      const why = 'relays on Redis compete, and keep order per key'
      telemetry['relay.reader'].publish({ table: of.name, reader: 'lease', shards: of.shards.all.length, why })
    }
  }

  async share(): Promise<readonly Source[]> {
    this.#told?.()
    this.#told = undefined
    return [this.#source as unknown as Source]
  }

  async close(): Promise<void> {}
}

async function open({ name, shards, hints }: Readable, options: ReaderOptions): Promise<OutboxSession> {
  const timeout = Math.max(1000, options.lease / 3)
  const parts: Part[] = shards.all.map((shard) => {
    const connection = new ReconnectingRedis(shard.store.client, { timeout, name: `waybill-relay-${shard.store.tag}` })
    return { connection, shard: shard.over(connection) }
  })
  try {
    await Promise.all(parts.map(({ connection }) => connection.connection()))
    if (options.deadKey === 'continue') await Promise.all(parts.map(openKeys))
  } catch (error) {
    await Promise.all(parts.map(({ connection }) => connection.close()))
    throw error
  }
  return new OutboxSession({ ...options, name, hints }, parts)
}

/** Keys that an earlier relay has left waiting for their dead. */
async function openKeys({ shard }: Part): Promise<void> {
  while (numberOf(await shard.run(outboxScripts.open, [String(KEYS_AT_ONCE)])) > 0) {
    // The next page.
  }
}
