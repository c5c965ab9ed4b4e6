import { errorSummary, type RawMessage, telemetry, WaybillError } from '../../core/index.ts'
import { type AmqpChannel, type AmqpDelivery, onEnd, serverSaid } from '../../drivers/amqp.ts'
import type { OpenAmqp, SteadyAmqp } from '../../drivers/amqp-steady.ts'
import {
  type Delivery,
  type Demand,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  takeFrom,
  Waiters,
} from '../../flow/index.ts'
import { sizeOf } from './encoding.ts'
import { againCopy, attemptsOf, deadCopy, deliveryCountOf, remainingOf, routingKeyOf } from './republish.ts'
import type { Outgoing, Sender } from './sender.ts'
import type { SourceSettings } from './source.ts'
import { Unacked } from './unacked.ts'

export interface RabbitmqDelivery extends Delivery {
  readonly raw: AmqpDelivery
  /** The channel it came on, as its session knows it: it is settled there or nowhere. */
  readonly session: RabbitmqSession
}

export interface SessionParts {
  readonly amqp: SteadyAmqp
  readonly open: OpenAmqp
  readonly channel: AmqpChannel
  readonly consumerTag: string
  /** Sends copies, on another connection: one that is blocked must not hold up acks. */
  readonly sender: Sender
}

/** How long to wait, in milliseconds, for copies that the server does not take; they are sent later. */
const PATIENCE = 2000

/** What is to be sent before its original may go. */
interface Move {
  readonly raw: AmqpDelivery
  readonly outgoing: Outgoing
}

/**
 * One consumer on one channel. What it was given is unacked until it is settled here: an ack on another channel would
 * be an error, or somebody else's message. When the channel ends, the server gives all of it to others.
 */
export class RabbitmqSession implements Session<RabbitmqDelivery> {
  readonly #settings: SourceSettings
  readonly #parts: SessionParts
  readonly #lost = new AbortController()
  readonly #unacked: Unacked
  readonly #waiters: Waiters
  /** Given to us, and not handed out yet. */
  #stock: RabbitmqDelivery[] = []
  /** To be sent on before they are acked: what was settled so, nothing anybody could handle, a delay that is not over. */
  #moves: Move[] = []
  readonly #decided = new Set<AmqpDelivery>()
  #moving: Promise<void> | undefined
  #closed = false

  constructor(settings: SourceSettings, parts: SessionParts) {
    this.#settings = settings
    this.#parts = parts
    this.#waiters = new Waiters(settings.clock)
    const { channel, open } = parts
    this.#unacked = new Unacked(channel)
    onEnd(channel, (error) => {
      const why = error === undefined ? 'it was closed' : serverSaid(error)
      this.#lose(open.lost.aborted ? open.lost.reason : channelLost(why, error))
    })
    open.lost.addEventListener('abort', () => this.#lose(open.lost.reason), { once: true })
    if (open.lost.aborted) this.#lose(open.lost.reason)
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
    if (this.#moves.length > 0) {
      const moving = this.#moveOn()
      // A server that takes no copies at present must not keep from handling what can be handled.
      if (this.#stock.length > 0) moving.catch(() => {})
      else await this.#noLongerThan(PATIENCE, moving, signal)
    }
    if (this.#over || signal.aborted || this.#stock.length === 0) return []
    return takeFrom(this.#stock, demand)
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#over || signal.aborted || this.#stock.length > 0 || this.#moves.length > 0) return
    await this.#waiters.pause(ms, signal)
  }

  /**
   * Acks at once. What needs a copy is unacked until the server has that; when it takes none at present the copy is kept
   * here and sent later, so that acks of others go on. If this session ends before, the message comes again as it was.
   */
  async settle(batch: readonly Settled<RabbitmqDelivery>[]): Promise<number> {
    const ours = batch.filter(([{ session, raw }]) => session === this && this.#isOpen(raw))
    const foreign = ours.length === batch.length ? 0 : batch.filter(([{ session }]) => session !== this).length
    if (this.#over) return foreign + ours.length
    const acks: AmqpDelivery[] = []
    let moving = false
    for (const [{ raw, attempts }, settlement] of ours) {
      if (settlement.kind === 'done') acks.push(raw)
      else if (settlement.kind === 'release' && !this.#isWorn(raw)) this.#unacked.requeue(raw)
      else {
        this.#decide(raw, this.#copyOf(raw, attempts, settlement))
        moving = true
      }
    }
    this.#unacked.ack(acks)
    if (moving) await this.#noLongerThan(PATIENCE, this.#moveOn().catch(this.#tell))
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
        if (this.#isOpen(raw) && this.#isWorn(raw)) this.#decide(raw, this.#copyOf(raw, attemptsOf(raw), RELEASE))
      }
      await this.#noLongerThan(PATIENCE, this.#moveOn().catch(this.#tell))
    } finally {
      this.#closed = true
      this.#waiters.wake()
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
    this.#waiters.wakeSoon()
  }

  #accept(raw: AmqpDelivery): void {
    const { plan, decode, where } = this.#settings
    const remaining = remainingOf(raw)
    const attempts = attemptsOf(raw)
    if (remaining > 0) {
      this.#decide(raw, againCopy(plan, raw, attempts, remaining))
      return
    }
    let message: RawMessage
    try {
      message = decode(raw)
    } catch (error) {
      const reason = errorSummary(error)
      this.#decide(raw, deadCopy(plan, raw, attempts, reason))
      const { messageId = '' } = raw.properties
      // Its type nobody could tell.
      const topic = routingKeyOf(raw)
      const about = { type: '', id: messageId, reason, attempt: attempts + 1, tenant: undefined, topic }
      telemetry['message.dead'].publish({ flow: where, ...about })
      return
    }
    const topic = routingKeyOf(raw)
    this.#stock.push({ message, key: message.key, attempts, size: sizeOf(raw), topic, raw, session: this })
  }

  /** Unacked, and nobody has said what becomes of it. */
  #isOpen(raw: AmqpDelivery): boolean {
    return this.#unacked.has(raw) && (this.#decided.size === 0 || !this.#decided.has(raw))
  }

  #decide(raw: AmqpDelivery, outgoing: Outgoing): void {
    this.#decided.add(raw)
    this.#moves.push({ raw, outgoing })
  }

  #copyOf(raw: AmqpDelivery, attempts: number, settlement: Settlement): Outgoing {
    const { plan } = this.#settings
    if (settlement.kind === 'dead') return deadCopy(plan, raw, attempts + 1, settlement.reason)
    if (settlement.kind !== 'retry') return againCopy(plan, raw, attempts, 0)
    return againCopy(plan, raw, attempts + (settlement.charged ? 1 : 0), settlement.after)
  }

  /** The server counts what it gets back, whatever the reason, and gives up in the end: a copy begins anew. */
  #isWorn(raw: AmqpDelivery): boolean {
    return deliveryCountOf(raw) >= Math.floor(this.#settings.plan.deliveryLimit / 2)
  }

  #moveOn(): Promise<void> {
    this.#moving ??= this.#moveAll().finally(() => {
      this.#moving = undefined
    })
    return this.#moving
  }

  async #moveAll(): Promise<void> {
    while (this.#moves.length > 0) {
      const moves = this.#moves
      this.#moves = []
      const failure = await this.#move(moves)
      if (this.#lost.signal.aborted) return
      this.#moves = [...moves.filter(({ raw }) => this.#unacked.has(raw)), ...this.#moves]
      if (failure !== undefined) throw failure
    }
  }

  /** Sends, and acks what the server has confirmed. Answers what went wrong with the first that it has not. */
  async #move(moves: readonly Move[]): Promise<unknown> {
    const sent = await this.#parts.sender.send(moves.map(({ outgoing }) => outgoing))
    const arrived = moves.filter((_, i) => sent[i]!.kind === 'ok').map(({ raw }) => raw)
    this.#unacked.ack(arrived)
    for (const raw of arrived) this.#decided.delete(raw)
    const failed = sent.find(({ kind }) => kind !== 'ok')
    if (failed === undefined || failed.kind === 'ok') return undefined
    // A queue beside ours is gone: the next session sees to it, or says what is missing.
    if (failed.kind === 'unroutable') this.#lose(failed.error)
    return failed.error
  }

  readonly #tell = (error: unknown): void => {
    const { where } = this.#settings
    telemetry['flow.settle_failed'].publish({ flow: where, count: this.#moves.length, error, lost: this.#over })
  }

  /** Waits for `work`, which goes on in any case. */
  async #noLongerThan(ms: number, work: Promise<void>, signal?: AbortSignal): Promise<void> {
    work.catch(() => {})
    const done = new AbortController()
    const stop = () => done.abort()
    signal?.addEventListener('abort', stop)
    const waited = this.#settings.clock.sleep(ms, done.signal)
    await Promise.race([work, waited]).finally(() => {
      stop()
      signal?.removeEventListener('abort', stop)
    })
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    this.#lost.abort(reason)
    this.#waiters.wake()
    this.#stock = []
    this.#moves = []
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
