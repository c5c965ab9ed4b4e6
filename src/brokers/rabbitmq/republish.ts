import type { Clock } from '../../core/index.ts'
import type { AmqpDelivery, AmqpProperties } from '../../drivers/amqp.ts'
import { REPLY, replyCode } from '../../drivers/amqp-errors.ts'
import type { AddressedMessage, Sender } from './sender.ts'
import type { QueuePlan, RetryQueue } from './setup.ts'
import type { Unacked } from './unacked.ts'

/**
 * A message that is to be tried again, or kept aside, is sent on as a copy that carries what we know of it; then the
 * original is acked. Whoever dies in between leaves two, never none.
 */
export const HEADER = {
  /** Attempts spent. The server counts too, but differently in every version, and a stop as much as a failure. */
  attempts: 'x-waybill-attempts',
  /** Milliseconds that are left of a delay longer than any queue keeps. */
  remaining: 'x-waybill-remaining',
  reason: 'x-waybill-reason',
  queue: 'x-waybill-queue',
  exchange: 'x-waybill-exchange',
  routingKey: 'x-waybill-routing-key',
  /** Headers that a dead letter has lost, by name: the client cannot write what it read. */
  lost: 'x-waybill-lost-headers',
} as const

/**
 * What a copy must not carry: the server's own notes, which would be taken for its history elsewhere, and CC, which
 * would send it to others again.
 */
const DROPPED = /^(x-death|x-(first|last)-death-.*|x-delivery-count|x-acquired-count|x-opt-.*|CC|BCC)$/

export function attemptsOf(delivery: Pick<AmqpDelivery, 'properties'>): number {
  return countIn(delivery, HEADER.attempts)
}

export function remainingOf(delivery: Pick<AmqpDelivery, 'properties'>): number {
  return countIn(delivery, HEADER.remaining)
}

/** How often the server has given it out before and got it back, for whatever reason. */
export function deliveryCountOf(delivery: Pick<AmqpDelivery, 'properties'>): number {
  return countIn(delivery, 'x-delivery-count')
}

function countIn({ properties }: Pick<AmqpDelivery, 'properties'>, header: string): number {
  const given = properties.headers?.[header]
  if (given === undefined) return 0
  const value = Number(given)
  return Number.isSafeInteger(value) && value > 0 ? value : 0
}

/** Back into its queue, after so many milliseconds. */
export function againCopy(plan: QueuePlan, raw: AmqpDelivery, attempts: number, after: number): AddressedMessage {
  const delay = Math.ceil(after)
  const through = delay <= 0 ? undefined : retryQueueFor(plan.retryQueues, delay)
  const wait = through === undefined ? 0 : Math.min(delay, through.bound)
  const headers: Record<string, unknown> = { ...ownHeaders(raw), [HEADER.attempts]: attempts }
  if (delay > wait && through !== undefined) headers[HEADER.remaining] = delay - wait
  const properties = { ...propertiesOf(raw, headers), ...(wait > 0 ? { expiration: String(wait) } : {}) }
  return { exchange: '', routingKey: through?.name ?? plan.name, properties, content: raw.content }
}

/** To the dead letters, with the reason. */
export function deadCopy(plan: QueuePlan, raw: AmqpDelivery, attempts: number, reason: string): AddressedMessage {
  const headers = {
    ...ownHeaders(raw),
    [HEADER.attempts]: attempts,
    [HEADER.reason]: reason,
    [HEADER.queue]: plan.name,
  }
  const { expiration: _, ...properties } = propertiesOf(raw, headers)
  return { exchange: plan.deadExchange, routingKey: plan.name, properties, content: raw.content }
}

/** The same with plain headers only, and the names of those it has lost. */
export function plainDeadCopy(plan: QueuePlan, raw: AmqpDelivery, attempts: number, reason: string): AddressedMessage {
  const { properties, ...copy } = deadCopy(plan, raw, attempts, reason)
  const all = Object.entries(properties.headers ?? {})
  const kept = all.filter(([name, value]) => isPlain(name, value))
  const lost = all.filter(([name, value]) => !isPlain(name, value)).map(([name]) => name.slice(0, 100))
  const headers = { ...Object.fromEntries(kept), [HEADER.lost]: lost.join(', ').slice(0, 1000) }
  const { messageId, contentType } = properties
  return { ...copy, properties: { messageId, contentType, headers } }
}

export function isPlainCopy({ properties }: AddressedMessage): boolean {
  return properties.headers?.[HEADER.lost] !== undefined
}

function isPlain(name: string, value: unknown): boolean {
  const type = typeof value
  return Buffer.byteLength(name) <= 255 && (type === 'boolean' || type === 'string' || Number.isSafeInteger(value))
}

/** From the dead letters into the queue, with all its attempts. */
export function rearmedCopy(plan: QueuePlan, raw: AmqpDelivery): AddressedMessage {
  const { [HEADER.attempts]: _a, [HEADER.reason]: _r, [HEADER.queue]: _q, ...headers } = ownHeaders(raw)
  return { exchange: '', routingKey: plan.name, properties: propertiesOf(raw, headers), content: raw.content }
}

/** The shortest that is long enough; beyond the longest a message goes through it again and again. */
function retryQueueFor(queues: readonly RetryQueue[], delay: number): RetryQueue | undefined {
  return queues.find(({ bound }) => delay <= bound) ?? queues.at(-1)
}

function ownHeaders({ fields, properties }: AmqpDelivery): Record<string, unknown> {
  const headers: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(properties.headers ?? {})) if (!DROPPED.test(name)) headers[name] = value
  delete headers[HEADER.remaining]
  // Where it came from at first, not from which retry, nor from the server's own dead-lettering.
  const { exchange, 'routing-keys': keys } = deathsOf(properties).at(-1) ?? {}
  headers[HEADER.exchange] ??= exchange ?? fields.exchange
  headers[HEADER.routingKey] ??= keys?.[0] ?? fields.routingKey
  return headers
}

/** The key it was published with, also after a retry. */
export function routingKeyOf({ fields, properties }: AmqpDelivery): string {
  const kept = properties.headers?.[HEADER.routingKey]
  return typeof kept === 'string' ? kept : fields.routingKey
}

/** The server's own note of where a message was given up, latest first. */
export interface Death {
  readonly reason?: string
  readonly queue?: string
  readonly exchange?: string
  readonly 'routing-keys'?: readonly string[]
}

export function deathsOf({ headers }: AmqpProperties): readonly Death[] {
  const deaths = headers?.['x-death']
  return Array.isArray(deaths) ? (deaths as Death[]) : []
}

/** Not the user's name: the server refuses a message that claims to be of another user. */
function propertiesOf({ properties }: AmqpDelivery, headers: Record<string, unknown>): AmqpProperties {
  const { contentType, contentEncoding, priority, correlationId, replyTo, expiration } = properties
  const { messageId, timestamp, type, appId } = properties
  const kept = { contentType, contentEncoding, priority, correlationId, replyTo, expiration }
  return { ...kept, messageId, timestamp, type, appId, headers }
}

/** The channel was closed because there is no such exchange. */
function isMissing(error: unknown): boolean {
  return replyCode((error as Error).cause) === REPLY.notFound
}

/** A delivery, and the copy that is to take its place. */
export interface Replacement {
  readonly raw: AmqpDelivery
  readonly copy: AddressedMessage
  /** It is only given back. */
  readonly released: boolean
}

/** What becomes of copies that the server has not taken, and would not take the next time either. */
export interface CopyTroubles {
  /** The exchange of the dead letters is gone. The next session makes it anew, or says that it is missing. */
  missing(error: unknown): void
  /** No queue takes it: a queue beside ours is gone, or nothing is bound to the exchange of the dead letters. */
  unroutable(copy: AddressedMessage, error: unknown): void
  /** It can never be sent as it is. */
  unsendable(waiting: Replacement, error: unknown): void
}

/** How often a copy is sent again that no queue takes, or a full one refuses, in milliseconds: that is mended by people. */
export const AGAIN_EVERY = 1000

/**
 * Deliveries of one channel that are acked once the server has confirmed their copy: what is to be retried or dead, what
 * cannot be decoded, a delay that is not over. Copies that the server does not take at present are kept and sent later.
 */
export class Republisher {
  readonly #sender: Sender
  readonly #unacked: Unacked
  readonly #troubles: CopyTroubles
  readonly #clock: Clock
  #waiting: Replacement[] = []
  /** Those that no queue takes, or a full one refuses, why, and when they are sent again. */
  #untaken: Replacement[] = []
  #untakenError: unknown
  #againAt = 0
  /** Has a copy, sent or not: nothing else may become of it. */
  readonly #decided = new Set<AmqpDelivery>()
  #running: Promise<void> | undefined
  #ended = false

  constructor(sender: Sender, unacked: Unacked, clock: Clock, troubles: CopyTroubles) {
    this.#sender = sender
    this.#unacked = unacked
    this.#clock = clock
    this.#troubles = troubles
  }

  get pending(): number {
    return this.#waiting.length + this.#untaken.length
  }

  /** Unacked, and without a copy that decides what becomes of it. */
  isOpen(raw: AmqpDelivery): boolean {
    return this.#unacked.has(raw) && (this.#decided.size === 0 || !this.#decided.has(raw))
  }

  add(raw: AmqpDelivery, copy: AddressedMessage, released = false): void {
    this.#decided.add(raw)
    this.#waiting.push({ raw, copy, released })
  }

  /** Sends what waits. Rejects with the first failure; what failed waits for the next run. */
  run(): Promise<void> {
    this.#running ??= this.#sendAll().finally(() => {
      this.#running = undefined
    })
    return this.#running
  }

  /** The channel is gone: nothing is acked any more. */
  end(): void {
    this.#ended = true
    this.#waiting = []
    this.#untaken = []
  }

  async #sendAll(): Promise<void> {
    if (this.#clock.monotonic() >= this.#againAt) this.#waiting.push(...this.#untaken.splice(0))
    while (this.#waiting.length > 0) {
      const batch = this.#waiting
      this.#waiting = []
      const { again, failure } = await this.#send(batch)
      if (this.#ended) return
      this.#waiting = [...again, ...this.#waiting]
      if (failure !== undefined) throw failure
    }
    if (this.#untaken.length > 0) throw this.#untakenError
  }

  /**
   * Those for the queues beside ours go first, and are confirmed before the dead letters follow. Where the exchange of
   * these is gone the server ends the channel, and what else is on its way is never confirmed: it would be sent again and
   * again, and each time be there once more.
   */
  async #send(batch: readonly Replacement[]): Promise<{ again: readonly Replacement[]; failure: unknown }> {
    const [beside, dead] = [true, false].map((own) => batch.filter(({ copy }) => (copy.exchange === '') === own))
    if (beside!.length === 0 || dead!.length === 0) return await this.#sendPart(batch)
    const first = await this.#sendPart(beside!)
    const second = this.#ended ? { again: dead!, failure: undefined } : await this.#sendPart(dead!)
    return { again: [...first.again, ...second.again], failure: first.failure ?? second.failure }
  }

  /** Acks what the server has confirmed. Returns what is to be sent again, and the first error of that. */
  async #sendPart(batch: readonly Replacement[]): Promise<{ again: readonly Replacement[]; failure: unknown }> {
    const sent = await this.#sender.send(batch.map(({ copy }) => copy))
    const arrived = batch.filter((_, i) => sent[i]!.kind === 'ok').map(({ raw }) => raw)
    this.#unacked.ack(arrived)
    for (const raw of arrived) this.#decided.delete(raw)
    let failure: unknown
    const again: Replacement[] = []
    for (const [i, waiting] of batch.entries()) {
      const result = sent[i]!
      if (result.kind === 'ok' || !this.#unacked.has(waiting.raw)) continue
      if (result.kind === 'invalid') {
        this.#decided.delete(waiting.raw)
        this.#troubles.unsendable(waiting, result.error)
        continue
      }
      if (result.kind === 'unroutable' || result.kind === 'refused') {
        this.#untaken.push(waiting)
        this.#untakenError = result.error
        this.#againAt = this.#clock.monotonic() + AGAIN_EVERY
        if (result.kind === 'unroutable') this.#troubles.unroutable(waiting.copy, result.error)
        continue
      }
      again.push(waiting)
      if (isMissing(result.error)) this.#troubles.missing(result.error)
      failure ??= result.error
    }
    return { again, failure }
  }
}
