import { asError, encodeData, type RawMessage, WaybillError } from '../../core/index.ts'
import { accessRefused, isRefusedConnection } from '../../drivers/amqp-errors.ts'
import { OK, type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import type { RabbitmqEncode } from './encoding.ts'
import type { AddressedMessage, Sender, Sent } from './sender.ts'

/**
 * What a message is that no queue takes: `down` (a queue may be bound by the next deploy; nobody is charged while nothing
 * arrives), `failed` (charged each time), `rejected` (dead at once), or `ok`: nobody is interested, and that is fine.
 */
export type Unroutable = 'down' | 'failed' | 'rejected' | 'ok'
export const UNROUTABLE = ['down', 'failed', 'rejected', 'ok'] as const

export interface PublisherSettings {
  readonly name: string
  readonly sender: Sender
  readonly exchange: string
  readonly topicOf: (message: RawMessage) => string
  readonly encode: RabbitmqEncode
  readonly unroutable: (message: RawMessage) => Unroutable
}

/**
 * A batch is sent without waiting in between, and resolves when the server has confirmed each message. A message that
 * no queue takes has its own outcome; one too large for the server is refused for good.
 *
 * It is not `ordered`: when the server refuses one of a key, those behind it are on their way already.
 */
export class RabbitmqPublisher implements Publisher {
  readonly name: string
  readonly system = 'rabbitmq'
  readonly features = {} as const
  readonly #settings: PublisherSettings

  constructor(settings: PublisherSettings) {
    this.name = settings.name
    this.#settings = settings
  }

  /** A server that is away is `Unavailable`. One that refuses the user, or the virtual host, is what no waiting mends. */
  async start(): Promise<void> {
    try {
      await this.#settings.sender.ready()
    } catch (error) {
      if (!isRefusedConnection(error)) throw error
      throw accessRefused(error)
    }
  }

  async publish(messages: readonly RawMessage[], signal?: AbortSignal): Promise<readonly Outcome[]> {
    if (messages.length === 0) return []
    const outcomes: Outcome[] = new Array(messages.length)
    const outgoing: AddressedMessage[] = []
    const places: number[] = []
    messages.forEach((message, at) => {
      try {
        outgoing.push(this.#outgoing(message))
        places.push(at)
      } catch (thrown) {
        const error = asError(thrown)
        outcomes[at] = isRefusal(error) ? { kind: 'rejected', error } : outcomeOf(error)
      }
    })
    if (outgoing.length === 0) return outcomes
    const sent = await this.#settings.sender.send(outgoing, signal)
    for (let i = 0; i < places.length; i++) {
      const at = places[i]!
      outcomes[at] = this.#outcome(messages[at]!, sent[i]!)
    }
    return outcomes
  }

  async close(): Promise<void> {
    await this.#settings.sender.close()
  }

  #outgoing(message: RawMessage): AddressedMessage {
    const { exchange, topicOf, encode } = this.#settings
    const routingKey = topicOf(message)
    const { properties, content } = encode(encodeData(message))
    return { exchange, routingKey, properties, content }
  }

  #outcome(message: RawMessage, sent: Sent): Outcome {
    switch (sent.kind) {
      case 'ok':
        return OK
      // A queue that is full has room again when its consumers are back: no message is to blame.
      case 'refused':
      case 'down':
        return { kind: 'down', error: sent.error }
      case 'invalid':
        return { kind: 'rejected', error: sent.error }
      case 'unroutable': {
        const kind = this.#settings.unroutable(message)
        return kind === 'ok' ? OK : { kind, error: sent.error }
      }
    }
  }
}

/** It cannot be sent as it is: too large, or with a topic that is none. */
function isRefusal(error: unknown): boolean {
  return error instanceof WaybillError && (error.code === 'TOO_LARGE' || error.code === 'INVALID_OPTION')
}
