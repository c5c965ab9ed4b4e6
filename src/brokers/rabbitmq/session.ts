import {
  errorSummary,
  onAbort,
  type RawMessage,
  telemetry,
  Wakeup,
  WaybillError,
  withDeadline,
} from '../../core/index.ts'
import {
  type AmqpChannel,
  type AmqpDelivery,
  type OpenAmqp,
  onEnd,
  type ReconnectingAmqp,
  serverSaid,
} from '../../drivers/amqp.ts'
import {
  type Delivery,
  type Demand,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  takeFrom,
} from '../../flow/index.ts'
import { sizeOf } from './encoding.ts'
import {
  againCopy,
  attemptsOf,
  deadCopy,
  deliveryCountOf,
  Republisher,
  remainingOf,
  routingKeyOf,
} from './republish.ts'
import type { Outgoing, Sender } from './sender.ts'
import type { SourceSettings } from './source.ts'

/**
 * What one channel has given and not been told about, oldest first. It knows no tag of another channel. The server
 * counts tags upwards one by one, so they are places in a list: a map that grows and shrinks with every batch would
 * leave much more to the garbage collector than the messages themselves.
 */
export class Unacked implements Iterable<AmqpDelivery> {
  readonly #channel: AmqpChannel
  /** By tag, from `#first` on; a gap is settled. The oldest is never a gap. */
  #deliveries: (AmqpDelivery | undefined)[] = []
  #first = 0
  #head = 0
  #ended = false

  constructor(channel: AmqpChannel) {
    this.#channel = channel
  }

  [Symbol.iterator](): Iterator<AmqpDelivery> {
    return this.#deliveries
      .slice(this.#head)
      .filter((raw) => raw !== undefined)
      [Symbol.iterator]()
  }

  add(raw: AmqpDelivery): void {
    const { deliveryTag } = raw.fields
    if (this.#deliveries.length === 0) this.#first = deliveryTag
    while (this.#first + this.#deliveries.length < deliveryTag) this.#deliveries.push(undefined)
    this.#deliveries[deliveryTag - this.#first] = raw
  }

  /** Whether it came on this channel and is not settled: by the delivery itself, since other channels have the same tags. */
  has(raw: AmqpDelivery): boolean {
    return this.#deliveries[raw.fields.deliveryTag - this.#first] === raw
  }

  /** All that are oldest with one word to the server, the others one by one. */
  ack(list: readonly AmqpDelivery[]): void {
    if (this.#ended) return
    const acked = list.filter((raw) => this.#remove(raw))
    const oldest = this.#advance()
    const others: AmqpDelivery[] = []
    let last: AmqpDelivery | undefined
    let together = 0
    for (const raw of acked) {
      const { deliveryTag } = raw.fields
      // Below the oldest everything is acked now, or was before.
      if (deliveryTag > oldest) others.push(raw)
      else {
        together++
        if (last === undefined || deliveryTag > last.fields.deliveryTag) last = raw
      }
    }
    if (last !== undefined) this.#say(() => this.#channel.ack(last, together > 1))
    for (const raw of others) this.#say(() => this.#channel.ack(raw))
  }

  requeue(raw: AmqpDelivery): void {
    if (this.#ended || !this.#remove(raw)) return
    this.#advance()
    this.#say(() => this.#channel.nack(raw, false, true))
  }

  /** The channel is gone: nothing is said any more, and all of it is still unacked. */
  end(): void {
    this.#ended = true
  }

  #remove(raw: AmqpDelivery): boolean {
    if (!this.has(raw)) return false
    this.#deliveries[raw.fields.deliveryTag - this.#first] = undefined
    return true
  }

  /** Answers the tag of the oldest; where there is none, of the next to come. */
  #advance(): number {
    const deliveries = this.#deliveries
    while (this.#head < deliveries.length && deliveries[this.#head] === undefined) this.#head++
    const oldest = this.#first + this.#head
    if (this.#head === deliveries.length) {
      this.#deliveries = []
      this.#head = 0
    } else if (this.#head > 1024 && this.#head * 2 > deliveries.length) {
      this.#deliveries = deliveries.slice(this.#head)
      this.#first = oldest
      this.#head = 0
    }
    return oldest
  }

  #say(word: () => void): void {
    try {
      if (!this.#ended) word()
    } catch {
      // The channel has closed underneath; the session hears of it by itself, and what it held comes again.
      this.#ended = true
    }
  }
}

/** A message as a queue gave it. */
export interface RabbitmqDelivery extends Delivery {
  readonly raw: AmqpDelivery
  /** The channel it came on, as its session knows it: it is settled there or nowhere. */
  readonly session: RabbitmqSession
}

export interface SessionParts {
  readonly amqp: ReconnectingAmqp
  readonly open: OpenAmqp
  readonly channel: AmqpChannel
  readonly consumerTag: string
  /** Sends copies, on another connection: one that is blocked must not hold up acks. */
  readonly sender: Sender
}

/** How long to wait, in milliseconds, for copies that the server does not take; they are sent later. */
const PATIENCE = 2000

/**
 * One consumer on one channel. What it was given is unacked until it is settled here: an ack on another channel would
 * be an error, or somebody else's message. When the channel ends, the server gives all of it to others.
 */
export class RabbitmqSession implements Session<RabbitmqDelivery> {
  readonly #settings: SourceSettings
  readonly #parts: SessionParts
  readonly #lost = new AbortController()
  readonly #unacked: Unacked
  readonly #wakeup: Wakeup
  /** Given to us, and not handed out yet. */
  #buffer: RabbitmqDelivery[] = []
  readonly #republisher: Republisher
  #closed = false

  constructor(settings: SourceSettings, parts: SessionParts) {
    this.#settings = settings
    this.#parts = parts
    this.#wakeup = new Wakeup(settings.clock)
    const { channel, open } = parts
    this.#unacked = new Unacked(channel)
    this.#republisher = new Republisher(parts.sender, this.#unacked, (error) => this.#lose(error))
    onEnd(channel, (error) => {
      const why = error === undefined ? 'it was closed' : serverSaid(error)
      this.#lose(open.lost.aborted ? open.lost.reason : channelLost(why, error))
    })
    onAbort(open.lost, () => this.#lose(open.lost.reason))
  }

  async begin(): Promise<void> {
    const { amqp, open, channel, consumerTag } = this.#parts
    const { prefetch, plan } = this.#settings
    await amqp.ask(open, 'to set the prefetch', channel.prefetch(prefetch))
    const consuming = channel.consume(plan.name, (raw) => this.#onMessage(raw), { consumerTag })
    await amqp.ask(open, `to consume ${plan.name}`, consuming)
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly RabbitmqDelivery[]> {
    if (this.#over || signal.aborted) return []
    if (this.#republisher.pending > 0) {
      const moving = this.#republisher.run()
      // A server that takes no copies at present must not keep from handling what can be handled.
      if (this.#buffer.length > 0) moving.catch(() => {})
      else await this.#noLongerThan(PATIENCE, moving, signal)
    }
    if (this.#over || signal.aborted || this.#buffer.length === 0) return []
    return takeFrom(this.#buffer, demand)
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#over || signal.aborted || this.#buffer.length > 0 || this.#republisher.pending > 0) return
    await this.#wakeup.pause(ms, signal)
  }

  /**
   * Acks at once. What needs a copy is unacked until the server has that; when it takes none at present the copy is kept
   * here and sent later, so that acks of others go on. If this session ends before, the message comes again as it was.
   */
  async settle(batch: readonly Settled<RabbitmqDelivery>[]): Promise<number> {
    const ours = batch.filter(([{ session, raw }]) => session === this && this.#republisher.isOpen(raw))
    const foreign = ours.length === batch.length ? 0 : batch.filter(([{ session }]) => session !== this).length
    if (this.#over) return foreign + ours.length
    const acks: AmqpDelivery[] = []
    let moving = false
    for (const [{ raw, attempts }, settlement] of ours) {
      if (settlement.kind === 'done') acks.push(raw)
      else if (settlement.kind === 'release' && !this.#isNearDeliveryLimit(raw)) this.#unacked.requeue(raw)
      else {
        this.#republisher.add(raw, this.#copyOf(raw, attempts, settlement))
        moving = true
      }
    }
    this.#unacked.ack(acks)
    if (moving) await this.#noLongerThan(PATIENCE, this.#republisher.run().catch(this.#report))
    return this.#over ? foreign + ours.filter(([{ raw }]) => this.#unacked.has(raw)).length : foreign
  }

  async close(): Promise<void> {
    if (this.#closed) return
    const { amqp, open, channel, consumerTag } = this.#parts
    if (this.#lost.signal.aborted) {
      this.#closed = true
      return
    }
    try {
      // Nothing more is given to us; what we have goes back, fresh where the server would soon give it up.
      await amqp.ask(open, 'to end the consumer', channel.cancel(consumerTag))
      for (const raw of this.#unacked) {
        if (this.#republisher.isOpen(raw) && this.#isNearDeliveryLimit(raw))
          this.#republisher.add(raw, this.#copyOf(raw, attemptsOf(raw), RELEASE))
      }
      await this.#noLongerThan(PATIENCE, this.#republisher.run().catch(this.#report))
    } finally {
      this.#closed = true
      this.#wakeup.wake()
      if (!this.#lost.signal.aborted) await amqp.ask(open, 'to close a channel', channel.close())
    }
  }

  get #over(): boolean {
    return this.#closed || this.#lost.signal.aborted
  }

  #onMessage(raw: AmqpDelivery | null): void {
    if (raw === null) {
      const { where, plan } = this.#settings
      const message = `${where}: the server has ended the consumer; queue ${plan.name} was deleted, or its leader is gone`
      this.#lose(new WaybillError('QUEUE_GONE', message))
      return
    }
    this.#unacked.add(raw)
    this.#accept(raw)
    this.#wakeup.wakeSoon()
  }

  #accept(raw: AmqpDelivery): void {
    const { plan, decode, where } = this.#settings
    const remaining = remainingOf(raw)
    const attempts = attemptsOf(raw)
    if (remaining > 0) {
      this.#republisher.add(raw, againCopy(plan, raw, attempts, remaining))
      return
    }
    let message: RawMessage
    try {
      message = decode(raw)
    } catch (error) {
      const reason = errorSummary(error)
      this.#republisher.add(raw, deadCopy(plan, raw, attempts, reason))
      const { messageId = '' } = raw.properties
      // Its type nobody could tell.
      const topic = routingKeyOf(raw)
      const about = { type: '', id: messageId, reason, attempt: attempts + 1, tenant: undefined, topic }
      telemetry['message.dead'].publish({ flow: where, ...about })
      return
    }
    const topic = routingKeyOf(raw)
    this.#buffer.push({ message, key: message.key, attempts, size: sizeOf(raw), topic, raw, session: this })
  }

  #copyOf(raw: AmqpDelivery, attempts: number, settlement: Settlement): Outgoing {
    const { plan } = this.#settings
    if (settlement.kind === 'dead') return deadCopy(plan, raw, attempts + 1, settlement.reason)
    if (settlement.kind !== 'retry') return againCopy(plan, raw, attempts, 0)
    return againCopy(plan, raw, attempts + (settlement.charged ? 1 : 0), settlement.after)
  }

  /** The server counts what it gets back, whatever the reason, and gives up in the end: a copy begins anew. */
  #isNearDeliveryLimit(raw: AmqpDelivery): boolean {
    return deliveryCountOf(raw) >= Math.floor(this.#settings.plan.deliveryLimit / 2)
  }

  readonly #report = (error: unknown): void => {
    const { where } = this.#settings
    telemetry['flow.settle_failed'].publish({ flow: where, count: this.#republisher.pending, error, lost: this.#over })
  }

  /** Waits for `work`, which goes on in any case. */
  #noLongerThan(ms: number, work: Promise<void>, signal?: AbortSignal): Promise<void> {
    return withDeadline(work, ms, this.#settings.clock, () => {}, signal)
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    this.#lost.abort(reason)
    this.#wakeup.wake()
    this.#buffer = []
    this.#republisher.end()
    this.#unacked.end()
    // Ended by us, not by the server: what is unacked must go back.
    const { amqp, open, channel } = this.#parts
    if (open.lost.aborted) return
    const closing = Promise.resolve().then(() => channel.close())
    amqp.ask(open, 'to close a channel', closing).catch(() => {})
  }
}

function channelLost(why: string, cause: unknown): WaybillError {
  return new WaybillError('CHANNEL_LOST', `the channel was closed: ${why}`, { cause })
}
