import { checkOptions, errorSummary, type RawMessage, telemetry, wholeNumber } from '../../core/index.ts'
import type { AmqpChannel, AmqpDelivery, AmqpProperties } from '../../drivers/amqp.ts'
import { attemptsOf, deathsOf, HEADER, rearmedCopy } from './republish.ts'
import type { Sender } from './sender.ts'
import type { SourceSettings } from './source.ts'

/** A message that was given up: as it came, and why. */
export interface RabbitmqDeadLetter {
  /** The message's id; `undefined` where it has none, which may be why it is here. */
  readonly id: string | undefined
  readonly queue: string
  readonly reason: string
  readonly attempts: number
  /** Where it was published to at first. */
  readonly exchange: string
  readonly routingKey: string
  readonly properties: AmqpProperties
  readonly content: Buffer
  /** Absent when it cannot be decoded. */
  readonly message: RawMessage | undefined
}

export interface DeadLetterOptions {
  /** How many at most. Default 100. */
  readonly count?: number
}

/**
 * Which dead letters: those of the source's own queue, all or by message id; or those that a function chooses, also of other
 * queues that share their dead letters with it.
 */
export type WhichRabbitmqDead = string | ((letter: RabbitmqDeadLetter) => boolean)

/** How many copies are under way at once. */
const AT_ONCE = 100
/** How often to look whether what was given back is there again, and how long apart in milliseconds. */
const LOOKS = { times: 100, every: 10 }

/**
 * A queue can only be read from its front, so whoever looks for one of them takes those before it, and gives
 * them back; at the latest with the end of the channel.
 */
export class DeadLetters {
  readonly #settings: SourceSettings
  readonly #sender: Sender

  constructor(settings: SourceSettings, sender: Sender) {
    this.#settings = settings
    this.#sender = sender
  }

  async list(channel: AmqpChannel, options: DeadLetterOptions = {}): Promise<RabbitmqDeadLetter[]> {
    checkOptions('dead letters', options, { count: true })
    const count = wholeNumber('dead letters: count', options.count ?? 100)
    const seen: AmqpDelivery[] = []
    for await (const raw of this.#all(channel)) {
      seen.push(raw)
      if (seen.length >= count) break
    }
    await this.#giveBack(channel, seen)
    return seen.map((raw) => this.#letter(raw))
  }

  /** Sent to the queue, or dropped. */
  async resolve(channel: AmqpChannel, which: WhichRabbitmqDead | undefined, rearm: boolean): Promise<number> {
    const fits = fitsDead(which, this.#settings.plan.name)
    const others: AmqpDelivery[] = []
    let resolved = 0
    let chosen: AmqpDelivery[] = []
    const settle = async () => {
      const gone = rearm ? await this.#send(channel, chosen) : chosen
      for (const raw of gone) channel.ack(raw)
      resolved += gone.length
      others.push(...chosen.filter((raw) => !gone.includes(raw)))
      chosen = []
    }
    for await (const raw of this.#all(channel)) {
      if (fits(this.#letter(raw))) chosen.push(raw)
      else others.push(raw)
      if (chosen.length >= AT_ONCE) await settle()
    }
    if (chosen.length > 0) await settle()
    await this.#giveBack(channel, others)
    return resolved
  }

  /** The server puts them back in its own time; whoever looks next should find them. */
  async #giveBack(channel: AmqpChannel, letters: readonly AmqpDelivery[]): Promise<void> {
    const { plan, clock } = this.#settings
    for (const raw of letters) channel.nack(raw, false, true)
    for (let look = 0; letters.length > 0 && look < LOOKS.times; look++) {
      if ((await channel.checkQueue(plan.deadQueue)).messageCount >= letters.length) return
      await clock.sleep(LOOKS.every)
    }
  }

  /** Returns those that were sent. One that can never be sent as it is stays here, with a warning. */
  async #send(channel: AmqpChannel, letters: readonly AmqpDelivery[]): Promise<readonly AmqpDelivery[]> {
    const { plan, where } = this.#settings
    const sent = await this.#sender.send(letters.map((raw) => rearmedCopy(plan, raw)))
    const gone = letters.filter((_, i) => sent[i]!.kind === 'ok')
    for (const [i, outcome] of sent.entries()) {
      if (outcome.kind === 'ok') continue
      if (outcome.kind !== 'invalid') {
        for (const raw of gone) channel.ack(raw)
        throw outcome.error
      }
      const { messageId: id = 'without an id' } = letters[i]!.properties
      const message = `dead letter ${id} stays in ${plan.deadQueue}: it cannot be sent back: ${errorSummary(outcome.error)}`
      telemetry.warning.publish({ where, message })
    }
    return gone
  }

  /** Those that are there now: what is dead-lettered meanwhile is for the next time. */
  async *#all(channel: AmqpChannel): AsyncGenerator<AmqpDelivery> {
    const { deadQueue } = this.#settings.plan
    const { messageCount } = await channel.checkQueue(deadQueue)
    for (let i = 0; i < messageCount; i++) {
      const raw = await channel.get(deadQueue)
      if (raw === false) return
      yield raw
    }
  }

  #letter(raw: AmqpDelivery): RabbitmqDeadLetter {
    const { plan, decode } = this.#settings
    const headers = raw.properties.headers ?? {}
    const deaths = deathsOf(raw.properties)
    const [death] = deaths
    // Others may have declared a way to the dead letters that leads through more queues.
    const own = deaths.length === 0 || deaths.some(({ queue }) => queue === plan.name)
    let message: RawMessage | undefined
    try {
      message = decode(raw)
    } catch {
      // It stays here with its reason.
    }
    return {
      id: message?.id ?? raw.properties.messageId,
      queue: text(headers[HEADER.queue]) ?? (own ? plan.name : (death?.queue ?? plan.name)),
      reason: text(headers[HEADER.reason]) ?? reasonOf(death?.reason, plan.deliveryLimit),
      attempts: attemptsOf(raw),
      exchange: text(headers[HEADER.exchange]) ?? death?.exchange ?? raw.fields.exchange,
      routingKey: text(headers[HEADER.routingKey]) ?? death?.['routing-keys']?.[0] ?? raw.fields.routingKey,
      properties: raw.properties,
      content: raw.content,
      message,
    }
  }
}

/** Why the server itself gave it up. */
function reasonOf(reason: string | undefined, limit: number): string {
  if (reason === 'delivery_limit')
    return `delivery_limit: it came back more than ${limit} times from consumers that died`
  if (reason === 'rejected') return 'rejected: its consumer could not send it on, so the server moved it as it is'
  return reason ?? 'unknown'
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined
}

function fitsDead(which: WhichRabbitmqDead | undefined, own: string): (letter: RabbitmqDeadLetter) => boolean {
  if (typeof which === 'function') return which
  return ({ id, queue }) => queue === own && (which === undefined || id === which)
}
