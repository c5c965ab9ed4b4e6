import type { Clock } from '../../core/index.ts'
import type { NatsLink, NatsRequest } from '../../drivers/nats/link.ts'
import { headerBytes, JetStreamError, type NatsMessage, NoResponders } from '../../drivers/nats/nats.ts'
import type { Delivery } from '../../flow/index.ts'
import { type JetStreamApi, NO_MESSAGE, NO_STREAM, parsed, type StoredMessage, TOO_LARGE } from './api.ts'
import { letterHeaders } from './dead-letters.ts'
import type { NatsDecode } from './encoding.ts'
import type { HeldMessages } from './intake.ts'
import { besideSubject, NANOSECONDS } from './setup.ts'

/** A source's options, checked, with their defaults. Times are milliseconds. */
export interface GroupSettings {
  readonly where: string
  readonly stream: string
  /** The durable consumer. */
  readonly group: string
  /** The stream of its dead letters and notes. */
  readonly dead: string
  readonly block: number
  /** How many deliveries a message survives whose consumers die with it. */
  readonly maxCrashes: number
  readonly timeout: number
  readonly decode: NatsDecode
  readonly clock: Clock
}

/** A message as a JetStream consumer gave it. */
export interface NatsDelivery extends Delivery {
  /** Its number in the stream. */
  readonly sequence: number
  /** Number and time: a stream that was deleted and made again counts from one again. */
  readonly place: string
  readonly original: NatsMessage
  /** Where it is answered; another when it was delivered once more while it was unsettled. */
  reply: string
  /** Deliveries that were no attempts, as far as was known when it came. */
  forgiven: number
  /** It is being released to the server: the next delivery of it is another. */
  returned: boolean
  /** Who has it; nobody once it is settled, or replaced by another delivery of the same message. */
  holder: HeldMessages | undefined
}

/** What is said of one delivery: `+ACK`, `+TERM`, `-NAK`. */
export interface AckReply {
  readonly reply: string
  readonly word: Uint8Array
}

export interface DeadMessage {
  readonly delivery: NatsDelivery
  readonly reason: string
  readonly attempts: number
}

// Bytes: the client would encode the same word for every message.
export const ACK: Uint8Array = Buffer.from('+ACK')
export const TERM: Uint8Array = Buffer.from('+TERM')
const PROGRESS = Buffer.from('+WPI')

export function nak(after: number): Uint8Array {
  return Buffer.from(after > 0 ? `-NAK {"delay": ${Math.ceil(after) * NANOSECONDS}}` : '-NAK')
}

/** What one session says to its consumer, and to the stream beside it. */
export class GroupMember {
  readonly #settings: GroupSettings
  readonly #api: JetStreamApi

  constructor(settings: GroupSettings, api: JetStreamApi) {
    this.#settings = settings
    this.#api = api
  }

  get #link(): NatsLink {
    return this.#api.link
  }

  /**
   * All of them, in order. JetStream confirms an answer when that is asked for, and takes them one after the other: the
   * last one's confirmation is that of all. Where a cluster changes its leader in between, what was not heard comes again.
   */
  async say(verdicts: readonly AckReply[]): Promise<void> {
    const last = verdicts.at(-1)
    if (last === undefined) return
    for (let i = 0; i < verdicts.length - 1; i++) this.#link.send(verdicts[i]!.reply, verdicts[i]!.word)
    await this.#link.ask({ subject: last.reply, data: last.word })
  }

  /** Begins their time anew. */
  async extend(deliveries: readonly NatsDelivery[]): Promise<void> {
    await this.say(deliveries.map(({ reply }) => ({ reply, word: PROGRESS })))
  }

  /**
   * JetStream counts deliveries, and nothing takes one back: what was given back untouched is written beside it, as the
   * number of deliveries that were no attempts. Writing it twice is writing it once.
   */
  async forgive(deliveries: readonly NatsDelivery[]): Promise<void> {
    await this.#write(
      deliveries.map(({ place, forgiven }) => ({ subject: this.#note(place), data: String(forgiven + 1) })),
    )
  }

  /** How many deliveries of these were no attempts. */
  async forgiven(deliveries: readonly NatsDelivery[]): Promise<number[]> {
    const { dead } = this.#settings
    const subject = this.#api.subject(`STREAM.MSG.GET.${dead}`)
    const questions = deliveries.map(({ place }) => ({
      subject,
      data: JSON.stringify({ last_by_subj: this.#note(place) }),
    }))
    return (await this.#link.askAll(questions)).map((answer) => {
      if (answer instanceof Error) throw answer
      try {
        const { data = '' } = parsed<{ message: StoredMessage }>(answer).message
        return Number(Buffer.from(data, 'base64').toString())
      } catch (error) {
        if (error instanceof JetStreamError && error.number === NO_MESSAGE) return 0
        throw error
      }
    })
  }

  /** Their notes are of no use any more. One that stays is a few bytes. */
  async forget(deliveries: readonly NatsDelivery[]): Promise<void> {
    const { dead } = this.#settings
    const subject = this.#api.subject(`STREAM.PURGE.${dead}`)
    const questions = deliveries.map(({ place }) => ({ subject, data: JSON.stringify({ filter: this.#note(place) }) }))
    if (questions.length > 0) await this.#link.askAll(questions)
  }

  /** Each as it came, with what became of it. Returns those that are too large for it. */
  async deadLetter(dead: readonly DeadMessage[]): Promise<DeadMessage[]> {
    const questions: NatsRequest[] = []
    const asked: DeadMessage[] = []
    const tooLarge: DeadMessage[] = []
    for (const one of dead) {
      const { original, place } = one.delivery
      const headers = headerBytes(letterHeaders(this.#settings, one))
      if (headers.length + original.data.length > this.#link.maxPayload) tooLarge.push(one)
      else {
        asked.push(one)
        questions.push({ subject: this.#letter(place), data: original.data, headers })
      }
    }
    // The stream may have a limit of its own. One that is above it must not keep the others from being dead-lettered.
    await this.#write(questions, (i) => tooLarge.push(asked[i]!))
    return tooLarge
  }

  async #write(questions: readonly NatsRequest[], onTooLarge?: (at: number) => void): Promise<void> {
    if (questions.length === 0) return
    const errors = await this.#api.store(this.#settings.dead, questions)
    for (const [at, error] of errors.entries()) {
      if (error === undefined) continue
      // Nobody takes the subject: the stream is gone.
      if (error instanceof NoResponders) throw new JetStreamError(NO_STREAM, error.message)
      if (onTooLarge === undefined || !(error instanceof JetStreamError) || error.number !== TOO_LARGE) throw error
      onTooLarge(at)
    }
  }

  #note(place: string): string {
    return besideSubject(this.#settings, 'note', place)
  }

  #letter(place: string): string {
    return besideSubject(this.#settings, 'letter', place)
  }
}

/** What JetStream says of a delivery, in the subject where it is answered. Domains and accounts make it longer. */
export function positionOf(reply: string): { given: number; sequence: number; place: string } {
  const words = reply.split('.')
  const from = words.length > 9 ? 6 : 4
  const sequence = words[from + 1]!
  return { given: Number(words[from]), sequence: Number(sequence), place: `${sequence}-${words[from + 3]}` }
}
