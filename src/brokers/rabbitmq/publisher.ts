import { asError, encodeData, type RawMessage, WaybillError } from '../../core/index.ts'
import { OK, type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import type { RabbitmqEncode } from './encoding.ts'
import type { Outgoing, Sender, Sent } from './sender.ts'

export interface PublisherSettings {
  readonly name: string
  readonly sender: Sender
  readonly exchange: string
  readonly topicOf: (message: RawMessage) => string
  readonly encode: RabbitmqEncode
  readonly unroutable: 'failed' | 'rejected' | 'ok'
}

/**
 * A batch is sent without waiting in between, and answered when the server has confirmed each message. What no queue
 * takes is told from what arrived; a message too large for the server is refused for good.
 *
 * It is not `ordered`: when the server refuses one of a key, those behind it are on their way already.
 */
export class RabbitmqPublisher implements Publisher {
  readonly name: string
  readonly features = {} as const
  readonly #settings: PublisherSettings

  constructor(settings: PublisherSettings) {
    this.name = settings.name
    this.#settings = settings
  }

  async start(): Promise<void> {
    await this.#settings.sender.ready()
  }

  async publish(messages: readonly RawMessage[], signal?: AbortSignal): Promise<readonly Outcome[]> {
    if (messages.length === 0) return []
    const outcomes: Outcome[] = new Array(messages.length)
    const outgoing: Outgoing[] = []
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
    for (let i = 0; i < places.length; i++) outcomes[places[i]!] = this.#outcome(sent[i]!)
    return outcomes
  }

  async close(): Promise<void> {
    await this.#settings.sender.close()
  }

  #outgoing(message: RawMessage): Outgoing {
    const { exchange, topicOf, encode } = this.#settings
    const routingKey = topicOf(message)
    const { properties, content } = encode(encodeData(message))
    return { exchange, routingKey, properties, content }
  }

  #outcome(sent: Sent): Outcome {
    switch (sent.kind) {
      case 'ok':
        return OK
      case 'down':
        return { kind: 'down', error: sent.error }
      case 'invalid':
        return { kind: 'rejected', error: sent.error }
      case 'refused':
        return { kind: 'failed', error: sent.error }
      case 'unroutable': {
        const { unroutable } = this.#settings
        return unroutable === 'ok' ? OK : { kind: unroutable, error: sent.error }
      }
    }
  }
}

/** It cannot be sent as it is: too large, or with a topic that is none. */
function isRefusal(error: unknown): boolean {
  return error instanceof WaybillError && (error.code === 'TOO_LARGE' || error.code === 'INVALID_OPTION')
}
