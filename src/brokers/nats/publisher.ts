import {
  encodeData,
  type RawMessage,
  Reject,
  startError,
  Unavailable,
  WaybillError,
  warnOnce,
} from '../../core/index.ts'
import type { NatsClient, NatsLink, NatsRequest } from '../../drivers/nats/link.ts'
import { headerBytes, JetStreamError, NoResponders } from '../../drivers/nats/nats.ts'
import { OK, type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import { HEADERS_TOO_LARGE, JetStreamApi, type StreamConfig, TOO_LARGE } from './api.ts'
import { messageId, type NatsEncode } from './encoding.ts'
import { covers, ensureStream, REFUSED_LOGIN } from './setup.ts'

/** So many, and so many bytes, may be on their way at once. */
const IN_FLIGHT = 1000
const BYTES_IN_FLIGHT = 8 * 1024 * 1024
/** What a dead letter adds to a message; a message that leaves no room for it could not become one. */
const LETTER = 4096

/** Refusals that concern its subject only: another stream has it, or it holds as many messages as it may. */
const WRONG_STREAM = 10060
const STORE_FAILED = 10077

export interface PublisherSettings {
  readonly name: string
  readonly client: NatsClient
  readonly prefix: string
  readonly stream: string
  readonly create: StreamConfig | undefined
  readonly subjectOf: (message: RawMessage) => string
  /** One subject for all: what is wrong with it is no message's fault. */
  readonly fixed: boolean
  readonly encode: NatsEncode
}

/** A message on its way: its place in the call, and what is sent. */
interface Item {
  readonly at: number
  readonly question: NatsRequest
}

/**
 * Publishes many at once and waits for JetStream's answer to each. A message that is sent again is recognised by its id
 * for as long as the stream remembers ids (two minutes, unless it says otherwise); later it is stored twice, and the
 * consumer's inbox has to deduplicate it.
 */
export class NatsPublisher implements Publisher {
  readonly name: string
  /** One that got lost does not stop those after it. */
  readonly system = 'nats'
  readonly features = {} as const
  readonly #settings: PublisherSettings
  readonly #checked = new WeakSet<NatsLink>()

  constructor(settings: PublisherSettings) {
    this.name = settings.name
    this.#settings = settings
  }

  async start(): Promise<void> {
    try {
      await this.#link()
    } catch (error) {
      throw startError(error, REFUSED_LOGIN)
    }
  }

  async publish(messages: readonly RawMessage[], signal?: AbortSignal): Promise<readonly Outcome[]> {
    if (messages.length === 0) return []
    const link = await this.#link()
    const outcomes: Outcome[] = new Array(messages.length)
    const items = this.#prepare(link, messages, outcomes)
    for (let from = 0; from < items.length; ) {
      const part = windowOf(items, from)
      from += part.length
      const requests = part.map(({ question }) => question)
      const errors = await new JetStreamApi(link, this.#settings.prefix).store(this.#settings.stream, requests, signal)
      // Why nobody takes a subject is asked once.
      const nobody = new Map<string, Promise<Outcome>>()
      for (let i = 0; i < part.length; i++) {
        const error = errors[i]
        const { at, question } = part[i]!
        const { subject } = question
        if (error === undefined) outcomes[at] = OK
        else if (!(error instanceof NoResponders)) outcomes[at] = this.#ofSubject(this.#refused(subject, error))
        else {
          if (!nobody.has(subject)) nobody.set(subject, this.#nobody(link, subject, error))
          outcomes[at] = this.#ofSubject(await nobody.get(subject)!)
        }
      }
    }
    return outcomes
  }

  async close(): Promise<void> {
    await this.#settings.client.close()
  }

  async #link(): Promise<NatsLink> {
    const { client, prefix, name, stream, create } = this.#settings
    const link = await client.shared()
    if (link.broken !== undefined) throw link.broken
    if (this.#checked.has(link)) return link
    const where = `publisher ${name}`
    const { config, state } = await ensureStream(new JetStreamApi(link, prefix), where, stream, create)
    if (config.retention === 'interest' && state.consumer_count === 0) {
      const what = 'keeps messages for consumers that are there (retention interest), and there is none'
      warnOnce(where, `stream ${stream} ${what}: what is published before there is one is confirmed, and gone`)
    }
    this.#checked.add(link)
    return link
  }

  /** What cannot be sent has its outcome now. */
  #prepare(link: NatsLink, messages: readonly RawMessage[], outcomes: Outcome[]): Item[] {
    const items: Item[] = []
    const limit = link.maxPayload - Math.min(LETTER, link.maxPayload / 4)
    for (const [at, message] of messages.entries()) {
      try {
        const question = this.#question(message)
        const size = question.headers!.length + question.data.length
        if (size > limit) {
          const most = `the server takes ${link.maxPayload} bytes with headers (max_payload), and a dead letter needs room`
          throw new Reject(`${message}: it has ${size} bytes; ${most}`)
        }
        items.push({ at, question })
      } catch (error) {
        outcomes[at] = outcomeOf(error)
      }
    }
    return items
  }

  #question(message: RawMessage): NatsRequest & { data: Uint8Array } {
    const { subjectOf, encode, stream } = this.#settings
    const subject = subjectOf(message)
    const { headers, data } = encode(encodeData(message))
    const all = Object.entries(headers)
    all.push(['Nats-Msg-Id', messageId(subject, message)], ['Nats-Expected-Stream', stream])
    return { subject, data: typeof data === 'string' ? Buffer.from(data) : data, headers: headerBytes(all) }
  }

  #ofSubject(outcome: Outcome): Outcome {
    return outcome.kind === 'failed' && this.#settings.fixed ? { kind: 'down', error: outcome.error } : outcome
  }

  #refused(subject: string, error: Error): Outcome {
    return error instanceof JetStreamError ? refusal(this.#settings.stream, subject, error) : outcomeOf(error)
  }

  /** Nobody takes the subject in: the stream is not there (now), or it does not want this one. */
  async #nobody(link: NatsLink, subject: string, cause: NoResponders): Promise<Outcome> {
    const { stream, prefix } = this.#settings
    const others = cause.foreign ? ' (somebody else who listens to it does)' : ''
    const down = (text: string): Outcome => ({ kind: 'down', error: new Unavailable(text, { cause }) })
    try {
      const info = await new JetStreamApi(link, prefix).stream(stream)
      if (info === undefined) {
        // It is made, or missed, before the next message.
        this.#checked.delete(link)
        return down(`stream ${stream} is not there`)
      }
      const { subjects = [] } = info.config
      if (subjects.some((pattern) => covers(pattern, subject)))
        return down(`stream ${stream} does not respond${others}`)
      const text = `no stream takes the subject ${subject}${others}; ${stream} takes ${subjects.join(', ')}`
      return { kind: 'failed', error: new WaybillError('NO_STREAM', text, { cause }) }
    } catch (error) {
      return { kind: 'down', error }
    }
  }
}

function refusal(stream: string, subject: string, error: JetStreamError): Outcome {
  const text = `stream ${stream} refused ${subject}: ${error.message}`
  const tooLarge = error.number === TOO_LARGE || error.number === HEADERS_TOO_LARGE
  if (tooLarge) return { kind: 'rejected', error: new Reject(text, { cause: error }) }
  const ofSubject = error.number === STORE_FAILED && /per subject/i.test(error.message)
  if (error.number === WRONG_STREAM || ofSubject) {
    return { kind: 'failed', error: new WaybillError('REFUSED', text, { cause: error }) }
  }
  // It is full, or has no leader: no message of anybody would fare better.
  return { kind: 'down', error: new Unavailable(text, { cause: error }) }
}

function windowOf(items: readonly Item[], from: number): readonly Item[] {
  let bytes = 0
  let end = from
  while (end < items.length && end - from < IN_FLIGHT) {
    const { data, headers } = items[end]!.question
    bytes += data.length + headers!.length
    if (bytes > BYTES_IN_FLIGHT && end > from) break
    end++
  }
  return items.slice(from, end)
}
