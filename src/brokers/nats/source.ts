import { checkAccess } from '../../core/index.ts'
import type { NatsClient } from '../../drivers/nats/link.ts'
import type { Source } from '../../flow/index.ts'
import { JetStreamApi, type StreamConfig } from './api.ts'
import {
  type DeadLetterOptions,
  deadLettersOf,
  discardLetter,
  type NatsDeadLetter,
  rearmLetter,
} from './dead-letters.ts'
import type { GroupSettings, NatsDelivery } from './member.ts'
import { NatsSession } from './session.ts'
import {
  besideSubject,
  ensureConsumer,
  ensureDeadStream,
  ensureStream,
  NANOSECONDS,
  REFUSED_LOGIN,
  type WantedConsumer,
  withStart,
} from './setup.ts'

export interface SourceParts {
  readonly client: NatsClient
  /** What comes before every request of JetStream: `$JS.API`. */
  readonly prefix: string
  /** How to make the stream, where that was asked for. */
  readonly stream: StreamConfig | undefined
  readonly consumer: WantedConsumer
}

/** What a session could not give back, and until when it is still ours. */
interface AbandonedDeliveries {
  readonly deliveries: readonly NatsDelivery[]
  readonly until: number
}

/** A durable pull consumer, as a source. Sessions of one group compete for its messages. */
export class NatsSource implements Source<NatsDelivery> {
  readonly name: string
  readonly system = 'nats'
  readonly features = { redelivers: true } as const
  readonly #settings: GroupSettings
  readonly #parts: SourceParts
  #abandoned: AbandonedDeliveries[] = []

  constructor(name: string, settings: GroupSettings, parts: SourceParts) {
    this.name = name
    this.#settings = settings
    this.#parts = parts
  }

  /** A user that the server refuses is an error of `start`; whatever may pass is waited for. */
  async check(signal: AbortSignal): Promise<void> {
    const connect = async () => await (await this.#parts.client.connect()).close()
    await checkAccess(connect, REFUSED_LOGIN, this.#settings.clock, signal)
  }

  async open(): Promise<NatsSession> {
    const { where, stream, dead, clock } = this.#settings
    const link = await this.#parts.client.connect()
    try {
      const api = new JetStreamApi(link, this.#parts.prefix)
      const found = await ensureStream(api, where, stream, this.#parts.stream)
      await ensureDeadStream(api, where, dead, found.config, this.#parts.consumer.creates)
      const consumer = await withStart(api, this.#settings, found, this.#parts.consumer)
      const { info, made } = await ensureConsumer(api, where, stream, consumer)
      // A consumer that was made now counts from the beginning: notes of an earlier one are wrong.
      if (made) await api.purge(dead, besideSubject(this.#settings, 'note', '*'))
      const session = new NatsSession(this.#settings, {
        api,
        consumer: info.config,
        ackWait: (info.config.ack_wait ?? 30_000 * NANOSECONDS) / NANOSECONDS,
        onAbandon: (deliveries, until) => this.#abandoned.push({ deliveries, until }),
      })
      const left = this.#abandoned.splice(0)
      for (const { deliveries, until } of left) {
        // Past their time they are another's.
        if (clock.monotonic() < until && !made) await session.release(deliveries).catch(() => {})
      }
      return session
    } catch (error) {
      await link.close()
      throw error
    }
  }

  /** How far the group is. */
  async stats(): Promise<NatsStats> {
    return await statsOf(this.#settings, await this.#api())
  }

  /** What the group gave up, oldest first. */
  async deadLetters(options?: DeadLetterOptions): Promise<readonly NatsDeadLetter[]> {
    return await deadLettersOf(this.#settings, await this.#api(), options)
  }

  /**
   * Sends a dead letter back to where it came from, for this group alone and with all its attempts. Returns false when
   * there is none of that id. Consumers that are not of this package see it as any other message.
   */
  async rearm(letter: string): Promise<boolean> {
    return await rearmLetter(this.#settings, await this.#api(), letter)
  }

  /** Drops a dead letter for good. */
  async discard(letter: string): Promise<boolean> {
    return await discardLetter(this.#settings, await this.#api(), letter)
  }

  async #api(): Promise<JetStreamApi> {
    return new JetStreamApi(await this.#parts.client.shared(), this.#parts.prefix)
  }
}

/** How a group stands. */
export interface NatsStats {
  readonly stream: string
  /** Messages in the stream, handled or not. */
  readonly length: number
  /** Messages the group has not been given yet. */
  readonly lag: number
  /** Given and not settled: taken by a consumer, or waiting for the next try. JetStream does not distinguish them. */
  readonly pending: number
  readonly dead: number
}

export async function statsOf(settings: GroupSettings, api: JetStreamApi): Promise<NatsStats> {
  const { stream, group, dead } = settings
  const [info, consumer, letters] = await Promise.all([
    api.stream(stream),
    api.consumer(stream, group),
    api.stream(dead, besideSubject(settings, 'letter', '*')),
  ])
  return {
    stream,
    length: info?.state.messages ?? 0,
    lag: consumer?.num_pending ?? 0,
    pending: consumer?.num_ack_pending ?? 0,
    dead: letters?.total ?? Object.keys(letters?.state.subjects ?? {}).length,
  }
}
