import { onAbort, telemetry, Unavailable, Wakeup, WaybillError } from '../../core/index.ts'
import { JetStreamError, type NatsMessage, NoResponders } from '../../drivers/nats/nats.ts'
import { type Demand, Lease, type Session, type Settled, type Settlement } from '../../flow/index.ts'
import { type ConsumerConfig, type JetStreamApi, NO_CONSUMER, NO_STREAM } from './api.ts'
import { Intake, TOO_LARGE_AGAIN } from './intake.ts'
import { ACK, type AckReply, GroupMember, type GroupSettings, type NatsDelivery, nak, TERM } from './member.ts'
import { PullReader, pullLimits, type Trouble } from './pull.ts'

export interface SessionParts {
  readonly api: JetStreamApi
  readonly consumer: ConsumerConfig
  /** How long the consumer waits for an answer before it gives a message to another, in milliseconds. */
  readonly ackWait: number
  /** Called at the end with deliveries whose release could not be sent. They are ours until then. */
  readonly onAbandon: (deliveries: readonly NatsDelivery[], until: number) => void
}

/**
 * One member of a durable pull consumer. What it was given is its own until `ackWait` is over, and that is renewed while
 * it is unsettled. The server takes a reply from anybody, so a session that was too late falls silent by itself.
 * It outlives a broken connection as long as the client reconnects in time.
 */
export class NatsSession implements Session<NatsDelivery> {
  readonly extendEvery: number
  readonly #settings: GroupSettings
  readonly #parts: SessionParts
  readonly #member: GroupMember
  readonly #reader: PullReader
  readonly #intake: Intake
  readonly #lost = new AbortController()
  readonly #wakeup: Wakeup
  #trouble: unknown
  #turn: Promise<unknown> = Promise.resolve()
  /** A connection that was given to us outlives its sessions. */
  readonly #forgetLink: () => void
  #closed = false
  readonly #lease: Lease

  constructor(settings: GroupSettings, parts: SessionParts) {
    this.#settings = settings
    this.#parts = parts
    this.#wakeup = new Wakeup(settings.clock)
    this.#lease = new Lease(settings.clock, parts.ackWait)
    this.#member = new GroupMember(settings, parts.api)
    this.#intake = new Intake(settings, this.#member)
    this.extendEvery = parts.ackWait / 3
    // A request must be over long before what it brought expires.
    const limits = pullLimits(parts.consumer, Math.min(settings.block, parts.ackWait / 3))
    this.#reader = new PullReader(settings, parts.api, limits, {
      onMessage: (message, asked) => this.#accept(message, asked),
      onEnd: (error, what) => this.#ended(error, what),
    })
    const { lost } = parts.api.link
    this.#forgetLink = onAbort(lost, () => this.#lose(lost.reason))
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose(new WaybillError('LEASE_EXPIRED', 'the leases of its unsettled messages could not be renewed in time'))
    return false
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly NatsDelivery[]> {
    const taking = this.#turn.then(() => this.#take(demand, signal))
    this.#turn = taking.catch(() => {})
    return await taking
  }

  async #take({ count, bytes, prefetch }: Demand, signal: AbortSignal): Promise<readonly NatsDelivery[]> {
    const until = this.#settings.clock.monotonic() + this.#settings.block
    while (!this.#over && !signal.aborted) {
      await this.#guard(() => this.#intake.look())
      await this.#guard(() => this.#intake.clear())
      if (this.#intake.buffered) {
        if (signal.aborted) return []
        // There is more where that came from: it comes while this is worked on.
        if (prefetch !== undefined && this.#reader.cameFull) this.#reader.want({ count: prefetch, bytes })
        return this.#intake.give({ count, bytes })
      }
      this.#reader.want({ count, bytes })
      if (this.#settings.clock.monotonic() >= until) return []
      await this.#pause(until, signal)
      const trouble = this.#trouble
      this.#trouble = undefined
      if (trouble !== undefined && !this.#over) throw trouble
    }
    return []
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const until = this.#settings.clock.monotonic() + ms
    while (!this.#over && !signal.aborted && !this.#intake.something && this.#trouble === undefined) {
      if (this.#settings.clock.monotonic() >= until) return
      this.#reader.want()
      await this.#pause(until, signal)
    }
  }

  async settle(batch: readonly Settled<NatsDelivery>[]): Promise<number> {
    if (this.#over || !this.live()) return batch.length
    const ours = batch.filter(([delivery]) => this.#intake.held.has(delivery))
    if (ours.length > 0) await this.#guard(() => (ours.every(isPlain) ? this.#ack(ours) : this.#settle(ours)))
    return batch.length - ours.length
  }

  /** What nearly all batches are: nothing but done, and nothing noted of any. */
  async #ack(batch: readonly Settled<NatsDelivery>[]): Promise<void> {
    await this.#member.say(batch.map(([{ reply }]) => ({ reply, word: ACK })))
    for (const [delivery] of batch) this.#intake.held.forget(delivery)
  }

  async #settle(batch: readonly Settled<NatsDelivery>[]): Promise<void> {
    const dead = batch.flatMap(([delivery, settlement]) => {
      if (settlement.kind !== 'dead') return []
      return [{ delivery, reason: settlement.reason, attempts: delivery.attempts + 1 }]
    })
    // First what must be known when the message is acked: after a crash in between it is redelivered, and nothing is lost.
    const waiting = await this.#intake.deadLetter(dead)
    await this.#member.forgive(batch.filter(([, settlement]) => isForgiven(settlement)).map(([delivery]) => delivery))
    const verdicts = batch.map(([delivery, settlement]): AckReply => {
      const { reply } = delivery
      if (waiting.has(delivery)) return { reply, word: nak(TOO_LARGE_AGAIN) }
      if (settlement.kind === 'done') return { reply, word: ACK }
      if (settlement.kind === 'dead') return { reply, word: TERM }
      return { reply, word: nak(settlement.kind === 'retry' ? settlement.after : 0) }
    })
    const returned = batch.filter((_, i) => verdicts[i]!.word !== ACK && verdicts[i]!.word !== TERM)
    // It may be back before the confirmation is.
    for (const [delivery] of returned) delivery.returned = true
    try {
      await this.#member.say(verdicts)
    } catch (error) {
      for (const [delivery] of returned) delivery.returned = false
      throw error
    }
    for (const [delivery] of batch) this.#intake.held.forget(delivery)
    const over = batch.filter(([{ forgiven }, { kind }]) => forgiven > 0 && (kind === 'done' || kind === 'dead'))
    await this.#member.forget(over.map(([delivery]) => delivery))
  }

  async extend(): Promise<void> {
    const asked = this.#lease.renewing()
    // What is being given back would have its delay begun anew.
    const held = this.#intake.held.all().filter(({ returned }) => !returned)
    if (held.length > 0) await this.#guard(() => this.#member.extend(held))
    this.#lease.renewed(asked, this.#intake.held.size > 0)
  }

  async close(): Promise<void> {
    if (this.#closed) return
    const { api, onAbandon } = this.#parts
    const usable = !this.#lost.signal.aborted && this.live()
    this.#closed = true
    this.#forgetLink()
    this.#wakeup.wake()
    try {
      await this.#reader.stop()
      const held = this.#intake.held.all()
      if (held.length > 0 && usable) await this.#release(held)
      else if (held.length > 0) onAbandon(held, this.#lease.until)
    } finally {
      await api.link.close()
    }
  }

  /** Gives back what another session could not. */
  async release(held: readonly NatsDelivery[]): Promise<void> {
    await this.#member.forgive(held)
    await this.#member.say(held.map(({ reply }) => ({ reply, word: nak(0) })))
  }

  async #release(held: readonly NatsDelivery[]): Promise<void> {
    try {
      await this.#intake.look()
      await this.release(held)
    } catch {
      this.#parts.onAbandon(held, this.#lease.until)
    }
  }

  get #over(): boolean {
    return this.#closed || this.#lost.signal.aborted
  }

  #ended(error: unknown, what: Trouble): void {
    if (error !== undefined) this.#trouble = error
    if (what === 'silent') this.#lose(error)
    this.#wakeup.wake()
    if (what === 'gone') this.#isGone(error).catch(() => {})
  }

  /** What was asked for at `asked` or later is ours until then, unless it is kept alive. */
  #accept(message: NatsMessage, asked: number): void {
    if (!this.#intake.accept(message)) return
    this.#lease.claimed(asked)
    this.#wakeup.wakeSoon()
  }

  /** Until something changed, `until` or `signal`. */
  async #pause(until: number, signal: AbortSignal): Promise<void> {
    if (this.#intake.something || this.#trouble !== undefined) return
    const now = this.#settings.clock.monotonic()
    const { lettersAt } = this.#intake
    await this.#wakeup.pause((lettersAt > now ? Math.min(until, lettersAt) : until) - now, signal)
  }

  async #guard<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      // Nobody takes an answer: the consumer, the stream, or JetStream is not there.
      if (error instanceof NoResponders || (error instanceof JetStreamError && error.number === NO_STREAM)) {
        await this.#isGone(error)
        throw new Unavailable(`NATS: ${error.message}`, { cause: error })
      }
      throw error
    }
  }

  /** The server may only be starting. Whether stream and consumer are there it says itself. */
  async #isGone(error: unknown): Promise<void> {
    const { api } = this.#parts
    const { where, group, stream, dead } = this.#settings
    try {
      await api.call(`CONSUMER.INFO.${stream}.${group}`)
      await api.call(`STREAM.INFO.${dead}`)
    } catch (answer) {
      if (!(answer instanceof JetStreamError) || ![NO_CONSUMER, NO_STREAM].includes(answer.number)) return
      const message =
        `consumer ${group}, its stream ${stream}, or ${dead} was deleted. A consumer that is made again reads from its start: what ` +
        'is still in the stream comes again, handled or not, with all its attempts'
      if (!this.#over) telemetry.warning.publish({ where, message })
      this.#lose(new WaybillError('GROUP_DELETED', message, { cause: error }))
    }
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    this.#lost.abort(reason)
    this.#wakeup.wake()
  }
}

function isPlain([{ forgiven }, { kind }]: Settled<NatsDelivery>): boolean {
  return kind === 'done' && forgiven === 0
}

/** It was given back untouched: its delivery was no attempt. */
function isForgiven(settlement: Settlement): boolean {
  return settlement.kind === 'release' || (settlement.kind === 'retry' && !settlement.charged)
}
