import {
  errorSummary,
  onAbort,
  type RawMessage,
  telemetry,
  Wakeup,
  WaybillError,
  warnOnce,
  withDeadline,
} from '../../core/index.ts'
import { type AmqpChannel, type AmqpDelivery, type OpenAmqp, onEnd, type ReconnectingAmqp } from '../../drivers/amqp.ts'
import { serverSaid } from '../../drivers/amqp-errors.ts'
import {
  type Delivery,
  type Demand,
  decodedMessage,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  takeFrom,
} from '../../flow/index.ts'
import { sizeOf } from './encoding.ts'
import {
  AGAIN_EVERY,
  againCopy,
  attemptsOf,
  deadCopy,
  deliveryCountOf,
  isPlainCopy,
  plainDeadCopy,
  type Replacement,
  Republisher,
  remainingOf,
  routingKeyOf,
} from './republish.ts'
import type { AddressedMessage, Sender } from './sender.ts'
import type { SourceSettings } from './source.ts'
import { Unacked } from './unacked.ts'

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
  /** Declares what stands around the queue once more; where others declare, it does nothing. */
  readonly declare: () => Promise<void>
  /** Whether the next session makes what is missing. */
  readonly declares: boolean
  /** Whether the queue has a dead-letter exchange, so that what is rejected is kept. */
  readonly rejectedIsKept: boolean
  /** After so many deliveries the server gives a message up. */
  readonly deliveryLimit: number
  /** Called when it is over, however it ended. */
  readonly onEnd: () => void
}

/** How often what stands around the queue is declared again, in milliseconds: somebody may have deleted a binding. */
const DECLARED_EVERY = 30_000

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
  readonly extendEvery = DECLARED_EVERY
  /** The connection outlives its sessions: it must not keep those that are over in memory. */
  readonly #forgetConnection: () => void
  /** It was declared when the session was opened. */
  #declared = true
  #closed = false
  /** A take has rejected with what the server does not take, and none has returned since. */
  #reported = false
  /** No take rejects so again before, by the monotonic clock: a pause follows each. */
  #reportAgainAt = Number.NEGATIVE_INFINITY

  constructor(settings: SourceSettings, parts: SessionParts) {
    this.#settings = settings
    this.#parts = parts
    this.#wakeup = new Wakeup(settings.clock)
    const { channel, open } = parts
    this.#unacked = new Unacked(channel)
    this.#republisher = new Republisher(parts.sender, this.#unacked, settings.clock, {
      missing: (error) => this.#lose(error),
      unroutable: (copy, error) => this.#cannotArrive(copy, error),
      unsendable: (waiting, error) => this.#cannotBeCopied(waiting, error),
    })
    onEnd(channel, (error) => {
      const why = error === undefined ? 'the server gave no reason' : serverSaid(error)
      this.#lose(open.lost.aborted ? open.lost.reason : channelLost(why, error))
    })
    this.#forgetConnection = onAbort(open.lost, () => this.#lose(open.lost.reason))
  }

  async begin(): Promise<void> {
    const { amqp, open, channel, consumerTag } = this.#parts
    const { prefetch, plan } = this.#settings
    await amqp.ask(open, 'to set the prefetch', channel.prefetch(prefetch))
    const consuming = channel.consume(plan.name, (raw) => this.#onMessage(raw), { consumerTag })
    await amqp.ask(open, `to consume ${plan.name}`, consuming)
  }

  /**
   * RabbitMQ does not notify a consumer when its exchange or a binding is deleted: it would wait for ever, and what is
   * published would be returned as unroutable. So what is declared is declared again now and then.
   */
  async extend(): Promise<void> {
    const again = !this.#declared
    this.#declared = false
    if (again && !this.#over) await this.declare()
  }

  async declare(): Promise<void> {
    await this.#parts.declare()
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly RabbitmqDelivery[]> {
    if (this.#over || signal.aborted) return []
    if (this.#republisher.pending > 0) {
      // A server that takes no copies at present must not keep from handling what can be handled.
      if (this.#buffer.length > 0) this.#republisher.run().catch(() => {})
      else await this.#untilMoved(signal)
    }
    this.#reported = false
    if (this.#over || signal.aborted || this.#buffer.length === 0) return []
    return takeFrom(this.#buffer, demand)
  }

  /**
   * That a copy is not taken is told by a take that rejects, and from then on waited for here: in the pause after a failed
   * take nobody would look at what comes meanwhile.
   */
  async #untilMoved(signal: AbortSignal): Promise<void> {
    while (!this.#over && !signal.aborted && this.#buffer.length === 0) {
      try {
        return await this.#noLongerThan(PATIENCE, this.#republisher.run(), signal)
      } catch (error) {
        const now = this.#settings.clock.monotonic()
        if (!this.#reported && now >= this.#reportAgainAt) {
          this.#reported = true
          this.#reportAgainAt = now + AGAIN_EVERY
          throw error
        }
        await this.#wakeup.pause(AGAIN_EVERY, signal)
      }
    }
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
        this.#republisher.add(raw, this.#copyOf(raw, attempts, settlement), settlement.kind === 'release')
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
    this.#forget()
    try {
      // Nothing more is given to us; what we have goes back, fresh where the server would soon give it up.
      await amqp.ask(open, 'to end the consumer', channel.cancel(consumerTag))
      for (const raw of this.#unacked) {
        if (this.#republisher.isOpen(raw) && this.#isNearDeliveryLimit(raw))
          this.#republisher.add(raw, this.#copyOf(raw, attemptsOf(raw), RELEASE), true)
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
    const { plan, decode } = this.#settings
    const remaining = remainingOf(raw)
    const attempts = attemptsOf(raw)
    if (remaining > 0) {
      this.#republisher.add(raw, againCopy(plan, raw, attempts, remaining))
      return
    }
    const topic = routingKeyOf(raw)
    let message: RawMessage
    try {
      message = decodedMessage(decode(raw))
    } catch (error) {
      const reason = errorSummary(error)
      this.#republisher.add(raw, deadCopy(plan, raw, attempts, reason))
      this.#publishDead(raw, reason)
      return
    }
    this.#buffer.push({ message, key: message.key, attempts, size: sizeOf(raw), topic, raw, session: this })
  }

  #copyOf(raw: AmqpDelivery, attempts: number, settlement: Settlement): AddressedMessage {
    const { plan } = this.#settings
    if (settlement.kind === 'dead') return deadCopy(plan, raw, attempts + 1, settlement.reason)
    if (settlement.kind !== 'retry') return againCopy(plan, raw, attempts, 0)
    return againCopy(plan, raw, attempts + (settlement.charged ? 1 : 0), settlement.after)
  }

  /** The server counts what it gets back, whatever the reason, and gives up in the end: a copy begins anew. */
  #isNearDeliveryLimit(raw: AmqpDelivery): boolean {
    return deliveryCountOf(raw) >= Math.floor(this.#parts.deliveryLimit / 2)
  }

  /**
   * Headers may hold what the client can read and not write: no copy is possible, neither for a retry nor for the dead
   * letters. The server can still move the message as it is. Where it would drop it, a copy without those headers is kept.
   */
  #cannotBeCopied({ raw, copy, released }: Replacement, error: unknown): void {
    const { plan, where } = this.#settings
    if (released) {
      this.#unacked.requeue(raw)
      return
    }
    const reason = `it cannot be sent on: ${errorSummary(error)}`
    // If it was dead-lettered before, that was reported then.
    if (copy.exchange !== plan.deadExchange) this.#publishDead(raw, reason)
    if (this.#parts.rejectedIsKept) this.#unacked.reject(raw)
    else if (!isPlainCopy(copy)) this.#republisher.add(raw, plainDeadCopy(plan, raw, attemptsOf(raw), reason))
    else
      telemetry.warning.publish({
        where,
        message: `a dead message stays unacked, because it cannot be written to the dead letters: ${reason}`,
      })
  }

  /**
   * What is missing is declared by the next session, or named by it. It can name no binding that others should have made:
   * a dead letter without one stays unacked, and keeps nobody else from being handled.
   */
  #cannotArrive({ exchange, routingKey }: AddressedMessage, error: unknown): void {
    const { declares } = this.#parts
    const { where, plan } = this.#settings
    if (declares || exchange === '') {
      this.#lose(error)
      return
    }
    const [from, key, to] = [exchange, routingKey, plan.deadQueue].map((name) => JSON.stringify(name))
    const text = `nothing is bound to exchange ${from} with the key ${key}: dead letters stay unacked, and are tried again; bind queue ${to} to it`
    warnOnce(where, text)
  }

  /** Reports it without a type, which could not be decoded. */
  #publishDead(raw: AmqpDelivery, reason: string): void {
    const { messageId: id = '' } = raw.properties
    const topic = routingKeyOf(raw)
    const about = { type: '', id, reason, attempt: attemptsOf(raw) + 1, tenant: undefined, topic }
    telemetry['message.dead'].publish({ flow: this.#settings.where, ...about })
  }

  readonly #report = (error: unknown): void => {
    const { where } = this.#settings
    telemetry['flow.settle_failed'].publish({ flow: where, count: this.#republisher.pending, error, lost: this.#over })
  }

  /** Waits for `work`, which goes on in any case. */
  #noLongerThan(ms: number, work: Promise<void>, signal?: AbortSignal): Promise<void> {
    return withDeadline(work, ms, this.#settings.clock, () => {}, signal)
  }

  #forget(): void {
    this.#forgetConnection()
    this.#parts.onEnd()
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    this.#lost.abort(reason)
    this.#forget()
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
