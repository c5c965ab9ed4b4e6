import { errorSummary, type RawMessage, telemetry } from '../../core/index.ts'
import { headerRecord, JetStreamError, type NatsMessage } from '../../drivers/nats/nats.ts'
import { crashReason, type Demand, decodedMessage, takeFrom } from '../../flow/index.ts'
import { NO_STREAM } from './api.ts'
import { ONLY } from './dead-letters.ts'
import { sizeOf } from './encoding.ts'
import {
  ACK,
  type DeadMessage,
  type GroupMember,
  type GroupSettings,
  type NatsDelivery,
  nak,
  positionOf,
  TERM,
} from './member.ts'

/** How long a dead message waits that does not fit into the dead letters. */
export const TOO_LARGE_AGAIN = 600_000

/** How often a dead letter that is refused is tried again, in milliseconds. */
const LETTERS_EVERY = 1000

/** What one session was given and has not settled, and what of it can be handed out. */
export class Intake {
  readonly held = new HeldMessages()
  /** Ours, and not handed out yet. */
  #buffer: NatsDelivery[] = []
  /** Delivered before: how often in vain has to be asked for. */
  #again: { delivery: NatsDelivery; given: number }[] = []
  /** Ours, and nothing anybody could handle. */
  #bad: DeadMessage[] = []
  /** Meant for another group. */
  #others: NatsDelivery[] = []
  /** When a dead letter that was refused is tried again; undefined while none is. */
  #refusedUntil: number | undefined
  readonly #settings: GroupSettings
  readonly #member: GroupMember

  constructor(settings: GroupSettings, member: GroupMember) {
    this.#settings = settings
    this.#member = member
  }

  /** There is something to hand out, or to look at first. What was refused is looked at when its time comes. */
  get something(): boolean {
    const others = this.#buffer.length + this.#again.length + this.#others.length
    return others > 0 || (this.#bad.length > 0 && this.lettersAt <= this.#settings.clock.monotonic())
  }

  /** When dead letters may be written again, by the monotonic clock: any time, unless one was refused. */
  get lettersAt(): number {
    return this.#refusedUntil ?? Number.NEGATIVE_INFINITY
  }

  get buffered(): boolean {
    return this.#buffer.length > 0
  }

  /** A message has come. Returns whether it is one more. */
  accept(original: NatsMessage): boolean {
    const { given, sequence, place } = positionOf(original.reply!)
    const known = this.held.find(sequence, place)
    if (known !== undefined && !known.returned) {
      // It took too long, or a reply got lost. It is still unsettled, and is settled as this delivery.
      known.reply = original.reply!
      return false
    }
    const headers = headerRecord(original)
    const { data, subject } = original
    let message: RawMessage | undefined
    let reason = ''
    try {
      message = decodedMessage(this.#settings.decode({ headers, data, subject, sequence }))
    } catch (error) {
      reason = errorSummary(error)
    }
    const delivery: NatsDelivery = {
      message: message!,
      key: message?.key,
      attempts: 0,
      size: sizeOf(original, headers),
      topic: subject,
      sequence,
      place,
      original,
      reply: original.reply!,
      forgiven: 0,
      returned: false,
      holder: undefined,
    }
    this.held.add(delivery, known)
    if (headers[ONLY] !== undefined && headers[ONLY] !== this.#settings.group) this.#others.push(delivery)
    else if (message === undefined) this.#bad.push({ delivery, reason, attempts: given - 1 })
    else if (given > 1) this.#again.push({ delivery, given })
    else this.#buffer.push(delivery)
    return true
  }

  /** How often what came again was tried before. */
  async look(): Promise<void> {
    if (this.#again.length === 0) return
    const again = [...this.#again]
    const forgiven = await this.#member.forgiven(again.map(({ delivery }) => delivery))
    this.#again.splice(0, again.length)
    for (const [i, { delivery, given }] of again.entries()) {
      delivery.forgiven = forgiven[i]!
      delivery.attempts = Math.max(0, given - 1 - delivery.forgiven)
      const { attempts } = delivery
      if (attempts < this.#settings.maxCrashes) this.#buffer.push(delivery)
      else this.#bad.push({ delivery, attempts, reason: crashReason(attempts) })
    }
  }

  /**
   * What nobody could handle goes to the dead letters, and what is for others is passed over. Where the dead letters are
   * full it waits, and the others are handled meanwhile.
   */
  async clear(): Promise<void> {
    if (this.#others.length > 0) {
      const others = [...this.#others]
      await this.#member.say(others.map(({ reply }) => ({ reply, word: ACK })))
      this.#others.splice(0, others.length)
      for (const other of others) this.held.forget(other)
    }
    const now = this.#settings.clock.monotonic()
    if (now < this.lettersAt) return
    while (this.#bad.length > 0) {
      const dead = this.#bad[0]!
      const { delivery, reason, attempts } = dead
      const { sequence, reply } = delivery
      let waiting: Set<NatsDelivery>
      try {
        waiting = await this.deadLetter([dead])
        this.#refusedUntil = undefined
      } catch (error) {
        if (!isRefusal(error)) throw error
        if (this.#refusedUntil === undefined) this.#publishRefused(error)
        this.#refusedUntil = now + LETTERS_EVERY
        return
      }
      await this.#member.say([{ reply, word: waiting.size > 0 ? nak(TOO_LARGE_AGAIN) : TERM }])
      this.#bad.shift()
      this.held.forget(delivery)
      if (waiting.size > 0) continue
      // Its type may be what could not be decoded.
      const { type = '', id = String(sequence), tenant } = (delivery.message ?? {}) as Partial<RawMessage>
      const about = { type, id, reason, attempt: attempts + 1, tenant, topic: delivery.original.subject }
      telemetry['message.dead'].publish({ flow: this.#settings.where, ...about })
    }
  }

  #publishRefused(error: JetStreamError): void {
    const { where } = this.#settings
    const message = `a message that cannot be decoded stays pending, because its dead letter is refused; that is tried again every second: ${errorSummary(error)}`
    telemetry.warning.publish({ where, message })
  }

  give(demand: Demand): NatsDelivery[] {
    return takeFrom(this.#buffer, demand)
  }

  /** Into the dead letters. Returns what did not fit. */
  async deadLetter(dead: readonly DeadMessage[]): Promise<Set<NatsDelivery>> {
    const tooLarge = await this.#member.deadLetter(dead)
    for (const { delivery, reason } of tooLarge) {
      const message =
        `${delivery.message ?? `message ${delivery.sequence}`} is dead (${reason}) and too large for the dead letters; it is ` +
        'tried again in ten minutes. Raise max_payload of the server, or max_msg_size of the stream for dead letters'
      telemetry.warning.publish({ where: this.#settings.where, message })
    }
    return new Set(tooLarge.map(({ delivery }) => delivery))
  }
}

/** The stream is there, and takes no more. */
function isRefusal(error: unknown): error is JetStreamError {
  return error instanceof JetStreamError && error.number !== NO_STREAM
}

/**
 * What one session was given and has not settled, in the order it came: handed out, buffered, or being checked. A list,
 * and not a map by place: one that grows and shrinks with every batch would leave more to the garbage collector than the
 * messages themselves, and only what comes out of order has to be looked for.
 */
export class HeldMessages {
  #deliveries: NatsDelivery[] = []
  #settled = 0
  /** The highest number in the stream that has come. */
  #highest = 0

  get size(): number {
    return this.#deliveries.length - this.#settled
  }

  has(delivery: NatsDelivery): boolean {
    return delivery.holder === this
  }

  /** What is held of this place. */
  find(sequence: number, place: string): NatsDelivery | undefined {
    if (sequence > this.#highest) return undefined
    return this.#deliveries.find((one) => this.has(one) && one.sequence === sequence && one.place === place)
  }

  /** One that has come; it takes the place of an earlier delivery of the same message. */
  add(delivery: NatsDelivery, earlier: NatsDelivery | undefined): void {
    if (earlier !== undefined) this.forget(earlier)
    this.#highest = Math.max(this.#highest, delivery.sequence)
    delivery.holder = this
    this.#deliveries.push(delivery)
  }

  /** It is settled, unless it has come again since: then that one is held in its place. */
  forget(delivery: NatsDelivery): void {
    if (!this.has(delivery)) return
    delivery.holder = undefined
    this.#settled++
    if (this.#settled === this.#deliveries.length) this.#deliveries = []
    else if (this.#settled > 1024 && this.#settled * 2 > this.#deliveries.length) this.#deliveries = this.all()
    else return
    this.#settled = 0
  }

  all(): NatsDelivery[] {
    return this.#deliveries.filter((delivery) => this.has(delivery))
  }
}
