import { errorSummary, onAbort, type RawMessage, telemetry, Wakeup, WaybillError } from '../../core/index.ts'
import { isKind, isWrongServer, type RedisConnection, RedisError, type RedisReply } from '../../drivers/redis/redis.ts'
import {
  crashReason,
  type Delivery,
  type Demand,
  Lease,
  type Session,
  type Settled,
  type Settlement,
  takeFrom,
} from '../../flow/index.ts'
import { BadEntries } from './bad-entries.ts'
import { EntryClaims, type Predecessor } from './claims.ts'
import { sizeOf } from './encoding.ts'
import {
  type ClaimedEntry,
  type DeadEntry,
  type GivenBack,
  GroupMember,
  type GroupPosition,
  type GroupSettings,
  type Stream,
} from './member.ts'
import { StreamReader } from './pull.ts'
import { isAboutKey, RefusedStreams } from './refused-streams.ts'

/** An entry as a consumer group gave it. */
export interface StreamDelivery extends Delivery {
  readonly stream: Stream
  /** The id of the entry. */
  readonly entry: string
}

export interface SessionParts {
  /** Waits for new entries, and does nothing else: a command behind a blocking read would wait with it. */
  readonly reader: RedisConnection
  readonly writer: RedisConnection
  readonly consumer: string
  /** The reader's number, to end its waiting. */
  readonly readerId: string | undefined
  readonly predecessors: readonly Predecessor[]
  /** Streams that were refused when it was opened, and why. */
  readonly refused: ReadonlyMap<Stream, unknown>
  /** Sees to it that there is a group, and returns who left something in it; rejects when the stream cannot be read. */
  readonly prepare: (stream: Stream) => Promise<readonly Predecessor[]>
  /** Called at the end, when entries may be left in this consumer's name. */
  readonly onAbandon: (consumer: string) => void
  /** Called now and then with how far the group is. */
  readonly onPosition: (stream: Stream, position: GroupPosition) => void
}

/**
 * One consumer of a group. Everything it was given is pending in its name until it is settled; what is unsettled is kept
 * alive, so that nobody takes it for abandoned. Settlements are fenced by the name, which no other session has.
 */
export class StreamSession implements Session<StreamDelivery> {
  readonly extendEvery: number
  readonly #settings: GroupSettings
  readonly #parts: SessionParts
  readonly #member: GroupMember
  readonly #refused: RefusedStreams
  readonly #claims: EntryClaims
  readonly #reader: StreamReader
  readonly #lost = new AbortController()
  readonly #wakeup: Wakeup
  /** Ours, and not handed out yet. */
  #buffer: StreamDelivery[] = []
  readonly #bad: BadEntries
  /** Settled with others. Once it is given back it may be taken again: settled again, it would go to yet another. */
  readonly #written = new WeakSet<StreamDelivery>()
  #trouble: unknown
  #turn: Promise<unknown> = Promise.resolve()
  #closed = false
  readonly #lease: Lease

  constructor(settings: GroupSettings, parts: SessionParts) {
    this.#settings = settings
    this.#parts = parts
    this.#wakeup = new Wakeup(settings.clock)
    this.#lease = new Lease(settings.clock, settings.idle)
    this.#member = new GroupMember(settings, parts.writer, parts.consumer)
    this.#bad = new BadEntries(settings, this.#member)
    this.#refused = new RefusedStreams(settings, this.#member, {
      prepare: async (stream) => this.#claims.follow(await parts.prepare(stream)),
      onBack: (stream, given) => this.#expect(stream, given),
    })
    for (const [stream, error] of parts.refused) this.#refused.add(stream, error)
    this.#claims = new EntryClaims(settings, this.#member, this.#refused, parts.predecessors, () => this.#swept())
    this.#reader = new StreamReader(settings, this.#refused, parts.reader, parts.consumer, {
      onEntry: (stream, id, fields) => this.#accept(stream, id, fields, 0),
      onRead: (asked, error) => this.#read(asked, error),
    })
    this.extendEvery = settings.idle / 3
    for (const { lost } of [parts.reader, parts.writer]) {
      onAbort(lost, () => this.#lose(lost.reason))
    }
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose(new WaybillError('LEASE_EXPIRED', 'the leases of its unsettled messages could not be renewed in time'))
    return false
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly StreamDelivery[]> {
    const taking = this.#turn.then(() => this.#take(demand, signal))
    this.#turn = taking.catch(() => {})
    return await taking
  }

  async #take({ count, bytes }: Demand, signal: AbortSignal): Promise<readonly StreamDelivery[]> {
    const until = this.#settings.clock.monotonic() + this.#settings.block
    while (!this.#over && !signal.aborted) {
      await this.#guard(() => this.#refused.look())
      await this.#guard(() => this.#bad.bury(this.#refused))
      if (this.#buffer.length === 0 && this.#claims.nextAt <= this.#settings.clock.monotonic()) {
        // New entries are read meanwhile: whoever takes over much must not keep them waiting.
        const share = Math.ceil(count / 2)
        this.#reader.want(share)
        await this.#claim({ count: share, bytes })
      }
      if (this.#buffer.length > 0) return signal.aborted ? [] : takeFrom(this.#buffer, { count, bytes })
      this.#reader.want(count)
      if (this.#settings.clock.monotonic() >= until) return []
      await this.#pause(until, signal)
      const trouble = this.#trouble
      this.#trouble = undefined
      // Before it is thrown: it may be about one stream, and the next take goes without that.
      if (trouble !== undefined && !this.#over) await this.#guard(() => Promise.reject(trouble))
    }
    return []
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const until = this.#settings.clock.monotonic() + ms
    while (!this.#over && !signal.aborted && this.#buffer.length === 0 && this.#trouble === undefined) {
      const now = this.#settings.clock.monotonic()
      if (now >= until || this.#claims.nextAt <= now) return
      this.#reader.want()
      await this.#pause(until, signal)
    }
  }

  async settle(batch: readonly Settled<StreamDelivery>[]): Promise<number> {
    if (this.#over) return batch.length
    const open = batch.filter(([delivery]) => !this.#written.has(delivery))
    let stale = 0
    for (const stream of this.#settings.streams) {
      const settled = open.filter(([delivery]) => delivery.stream === stream)
      if (settled.length === 0) continue
      stale += await this.#settleIn(stream, settled)
      // Should another be refused, all of them come again.
      if (settled.length < open.length) for (const [delivery] of settled) this.#written.add(delivery)
    }
    return stale
  }

  async #settleIn(stream: Stream, batch: readonly Settled<StreamDelivery>[]): Promise<number> {
    const done: string[] = []
    const back: GivenBack[] = []
    const dead: DeadEntry[] = []
    for (const [delivery, settlement] of batch) {
      const { entry: id, attempts } = delivery
      if (settlement.kind === 'done') done.push(id)
      else if (settlement.kind === 'dead') dead.push({ id, reason: settlement.reason, attempts: attempts + 1 })
      else back.push({ id, after: afterOf(settlement), count: attempts + 1 + (isCharged(settlement) ? 1 : 0) })
    }
    const write = async () => {
      const stale = await this.#member.settle(stream, done, back, dead)
      this.#expect(stream, back)
      return stale
    }
    return await this.#in(stream, write, () => {
      const again = dead.map(({ id, attempts }) => ({ id, after: 0, count: attempts }))
      this.#refused.owe(stream, done, [...back, ...again])
      return batch.length
    })
  }

  #expect(stream: Stream, given: readonly GivenBack[]): void {
    for (const one of given) this.#claims.expect(stream, one)
    if (given.length > 0) this.#wakeup.wake()
  }

  async extend(deliveries: readonly StreamDelivery[]): Promise<void> {
    // Not only when something is taken: while the flow is full, what is ours of a stream that is well again must be renewed.
    await this.#guard(() => this.#refused.look())
    const { live } = this.#lease
    const asked = this.#lease.renewing()
    let taken = 0
    const held: { stream: Stream; entry: string; attempts: number }[] = [...deliveries, ...this.#buffer]
    for (const { stream, entry } of this.#bad.all) held.push({ stream, entry: entry.id, attempts: entry.attempts })
    for (const stream of this.#settings.streams) {
      const entries = held.filter((one) => one.stream === stream)
      const renew = () => this.#member.extend(stream, entries)
      if (entries.length > 0) taken += await this.#in(stream, renew, () => 0)
    }
    // They may have all of it: what has not gone out must not go out beside them.
    if (!live && taken > 0)
      return this.#lose(new WaybillError('LEASE_EXPIRED', `others have ${taken} of what is unsettled`))
    this.#lease.renewed(asked, held.length > 0)
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#wakeup.wake()
    const { reader, writer, consumer, readerId, onAbandon } = this.#parts
    try {
      if (this.#lost.signal.aborted) throw this.#lost.signal.reason
      // Whatever a read still brings is ours, and must be given back too.
      this.#reader.stop()
      while (this.#reader.reading !== undefined) {
        if (readerId !== undefined) await writer.command(['client', 'unblock', readerId])
        await this.#reader.reading
      }
      const failures: unknown[] = []
      // One that is refused must not keep what is of the others. If it was left out that is known.
      for (const stream of this.#settings.streams)
        await this.#leave(stream).catch((error: unknown) => {
          if (!this.#refused.has(stream)) failures.push(error)
          else onAbandon(consumer)
        })
      if (failures.length > 0) throw failures[0]
    } catch (error) {
      onAbandon(consumer)
      if (!this.#lost.signal.aborted && !isKind(error, 'NOGROUP')) throw error
    } finally {
      await Promise.all([reader.close(), writer.close()])
    }
  }

  async #leave(stream: Stream): Promise<void> {
    // It may be well again, and nobody has looked yet.
    if (this.#refused.has(stream)) await this.#refused.settleOwed(stream)
    await this.#member.leave(stream)
  }

  get #over(): boolean {
    return this.#closed || this.#lost.signal.aborted
  }

  #read(asked: number, error: unknown): void {
    if (error !== undefined) {
      this.#judge(error)
      this.#loseUnlessAnswered(error)
      this.#trouble = error
    }
    this.#hold(asked)
    this.#wakeup.wake()
  }

  /** What was taken in at `asked` or later is ours until then, unless it is kept alive. */
  #hold(asked: number): void {
    if (this.#buffer.length > 0) this.#lease.claimed(asked)
  }

  async #claim(demand: Demand): Promise<void> {
    const asked = this.#settings.clock.monotonic()
    try {
      await this.#guard(() => this.#claims.find(demand, (entry) => this.#claimed(entry)))
    } catch (error) {
      this.#loseUnlessAnswered(error)
      throw error
    } finally {
      this.#hold(asked)
    }
  }

  #claimed({ stream, id, fields, count, abandoned }: ClaimedEntry): void {
    const attempts = count - 1
    if (abandoned && attempts >= this.#settings.maxCrashes) {
      this.#bad.add(stream, { id, attempts, reason: crashReason(attempts) })
    } else this.#accept(stream, id, fields, attempts)
  }

  #accept(stream: Stream, entry: string, fields: RedisReply, attempts: number): void {
    let message: RawMessage
    try {
      message = this.#settings.decode(fields, entry)
    } catch (error) {
      this.#bad.add(stream, { id: entry, reason: errorSummary(error), attempts })
      return
    }
    this.#buffer.push({ message, key: message.key, attempts, size: sizeOf(fields), stream, entry })
  }

  async #swept(): Promise<void> {
    for (const stream of this.#refused.others) this.#parts.onPosition(stream, await this.#member.position(stream))
  }

  /** Until something changed, the next claim is due, `until` or `signal`. */
  async #pause(until: number, signal: AbortSignal): Promise<void> {
    const end = Math.min(until, this.#claims.nextAt)
    await this.#wakeup.pause(end - this.#settings.clock.monotonic(), signal)
  }

  async #guard<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      this.#judge(error)
      if (isAboutKey(error)) await this.#refused.find()
      throw error
    }
  }

  /** `leftOut` when the stream is refused, and others are not: at once, since it may be read again in the next moment. */
  async #in<T>(stream: Stream, work: () => Promise<T>, leftOut: () => T): Promise<T> {
    if (this.#refused.has(stream)) return leftOut()
    try {
      return await this.#guard(work)
    } catch (error) {
      if (!this.#refused.has(stream)) throw error
      return leftOut()
    }
  }

  /** Some errors mean that nothing can be settled any more. */
  #judge(error: unknown): void {
    if (isWrongServer(error)) this.#lose(error)
    // Not by UNBLOCKED: whether the key that a read waited for was deleted or overwritten shows in the next read.
    else if (isKind(error, 'NOGROUP')) {
      const { where, group, streams, start } = this.#settings
      const message =
        `group ${group}, or its stream, was deleted or has moved (${streams.map(({ key }) => key).join(', ')}). If it is gone it is ` +
        `made again and reads ${start === '0' ? 'from the beginning' : 'on from where all was settled at the last look'}: ` +
        'what was handled since and is still in the stream comes again'
      if (!this.#over) telemetry.warning.publish({ where, message })
      this.#lose(new WaybillError('GROUP_DELETED', message, { cause: error }))
    }
  }

  /**
   * A read or claim without an answer may have made entries ours that nobody here knows of. A cluster's connection outlives
   * that of one node, and nobody takes from a consumer that lives: so the session ends, and the next one takes over.
   */
  #loseUnlessAnswered(error: unknown): void {
    if (!(error instanceof RedisError)) this.#lose(error)
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    this.#lost.abort(reason)
    this.#wakeup.wake()
  }
}

function afterOf(settlement: Settlement): number {
  return settlement.kind === 'retry' ? settlement.after : 0
}

function isCharged(settlement: Settlement): boolean {
  return settlement.kind === 'retry' && settlement.charged
}
