import { WaybillError } from '../../core/index.ts'
import type { NatsLink, NatsRequest } from '../../drivers/nats/link.ts'
import { JetStreamError, type NatsMessage, NoResponders } from '../../drivers/nats/nats.ts'

/** A stream's configuration as JetStream has it; times are nanoseconds. Only what we look at. */
export interface StreamConfig {
  readonly name: string
  readonly subjects?: readonly string[]
  readonly storage?: string
  readonly retention?: string
  readonly discard?: string
  readonly discard_new_per_subject?: boolean
  readonly num_replicas?: number
  readonly max_age?: number
  readonly max_msgs?: number
  readonly max_bytes?: number
  readonly max_msg_size?: number
  readonly max_msgs_per_subject?: number
  readonly duplicate_window?: number
  readonly allow_direct?: boolean
  readonly no_ack?: boolean
  readonly sealed?: boolean
  readonly deny_delete?: boolean
  readonly deny_purge?: boolean
  readonly mirror?: unknown
}

export interface StreamInfo {
  readonly config: StreamConfig
  /** How many subjects there are, where they were asked for: `state.subjects` names the first 100,000 of them. */
  readonly total?: number
  /** When it was made: one that was deleted and made again counts from one again. */
  readonly created?: string
  readonly state: {
    readonly messages: number
    readonly last_seq?: number
    readonly consumer_count?: number
    readonly subjects?: Readonly<Record<string, number>>
  }
}

export interface ConsumerConfig {
  readonly durable_name?: string
  readonly name?: string
  readonly deliver_subject?: string
  readonly deliver_policy?: string
  readonly opt_start_seq?: number
  readonly ack_policy?: string
  readonly ack_wait?: number
  readonly max_deliver?: number
  readonly max_ack_pending?: number
  readonly filter_subject?: string
  readonly filter_subjects?: readonly string[]
  readonly headers_only?: boolean
  /** After so many nanoseconds without a reader the server deletes it. */
  readonly inactive_threshold?: number
  /** What one request may ask for. */
  readonly max_batch?: number
  readonly max_bytes?: number
  readonly max_expires?: number
}

export interface ConsumerInfo {
  readonly config: ConsumerConfig
  readonly num_pending: number
  readonly num_ack_pending: number
}

/** A message as it lies in a stream. */
export interface StoredMessage {
  readonly subject: string
  readonly seq: number
  /** The header block, as base64. */
  readonly hdrs?: string
  readonly data?: string
  readonly time: string
}

export const NO_STREAM = 10059
export const NO_CONSUMER = 10014
export const NO_MESSAGE = 10037
/** A message is larger than the stream takes, and will always be. */
export const TOO_LARGE = 10054
/** Its headers are larger than any stream takes. */
export const HEADERS_TOO_LARGE = 10097
/** So many bytes of headers any stream takes. */
export const HEADER_BYTES = 65_535

/** Requests of JetStream's own protocol: JSON on subjects below `$JS.API`. */
export class JetStreamApi {
  readonly link: NatsLink
  readonly #prefix: string

  constructor(link: NatsLink, prefix: string) {
    this.link = link
    this.#prefix = prefix
  }

  subject(path: string): string {
    return `${this.#prefix}.${path}`
  }

  async call<T>(path: string, body?: unknown): Promise<T> {
    const data = body === undefined ? '' : JSON.stringify(body)
    return parsed<T>(await this.link.ask({ subject: this.subject(path), data }))
  }

  /** As `call`, but what is not there is `undefined`. */
  async find<T>(path: string, body?: unknown): Promise<T | undefined> {
    try {
      return await this.call<T>(path, body)
    } catch (error) {
      if (error instanceof JetStreamError && [NO_STREAM, NO_CONSUMER, NO_MESSAGE].includes(error.number))
        return undefined
      throw error
    }
  }

  /** Refuses a server, or an account, without JetStream. */
  async checkEnabled(where: string): Promise<void> {
    try {
      await this.call('INFO')
    } catch (error) {
      if (!(error instanceof NoResponders) && !(error instanceof JetStreamError)) throw error
      const what =
        'JetStream is not enabled on this server or for this account: start nats-server with -js, or enable it'
      throw new WaybillError('UNSUPPORTED_SERVER', `${where}: ${what}`, { cause: error })
    }
  }

  /**
   * Publishes to a stream, all at once. For each: `undefined` when it is stored there, JetStream's refusal, or why nobody
   * has said so. Where somebody responds who is not JetStream, and nobody else does, it is `NoResponders` with `foreign`.
   */
  async store(
    stream: string,
    messages: readonly NatsRequest[],
    signal?: AbortSignal,
  ): Promise<readonly (Error | undefined)[]> {
    const acks: ('stored' | 'foreign' | JetStreamError | undefined)[] = new Array(messages.length)
    const replies = await this.link.askAll(messages, undefined, signal, (reply, at) => {
      const ack = ackOf(stream, reply)
      acks[at] = ack ?? 'foreign'
      return ack !== undefined
    })
    return replies.map((reply, at) => {
      const ack = acks[at]
      if (ack === 'foreign') return new NoResponders(messages[at]!.subject, true)
      if (reply instanceof Error) return reply
      return ack === 'stored' ? undefined : ack
    })
  }

  async stream(name: string, subjects?: string): Promise<StreamInfo | undefined> {
    return await this.find(`STREAM.INFO.${name}`, subjects === undefined ? undefined : { subjects_filter: subjects })
  }

  async createStream(config: StreamConfig): Promise<StreamInfo> {
    return await this.call(`STREAM.CREATE.${config.name}`, config)
  }

  async consumer(stream: string, name: string): Promise<ConsumerInfo | undefined> {
    return await this.find(`CONSUMER.INFO.${stream}.${name}`)
  }

  async createConsumer(stream: string, config: ConsumerConfig): Promise<ConsumerInfo> {
    return await this.call(`CONSUMER.DURABLE.CREATE.${stream}.${config.durable_name}`, { stream_name: stream, config })
  }

  async message(
    stream: string,
    which: { seq?: number; last_by_subj?: string; next_by_subj?: string },
  ): Promise<StoredMessage | undefined> {
    const answer = await this.find<{ message: StoredMessage }>(`STREAM.MSG.GET.${stream}`, which)
    return answer?.message
  }

  async deleteMessage(stream: string, seq: number): Promise<boolean> {
    return (await this.find(`STREAM.MSG.DELETE.${stream}`, { seq, no_erase: true })) !== undefined
  }

  async purge(stream: string, filter: string): Promise<void> {
    await this.find(`STREAM.PURGE.${stream}`, { filter })
  }
}

/**
 * What JetStream says to a message that was published: `stored` in that stream, or its refusal. `undefined`: it is not
 * JetStream that responds, for anybody may listen on a subject and do so.
 */
function ackOf(stream: string, message: NatsMessage): 'stored' | JetStreamError | undefined {
  try {
    const { stream: named, seq, error } = bodyOf(message) as { stream?: unknown; seq?: unknown; error?: unknown }
    if (error === undefined) return named === stream && typeof seq === 'number' && seq > 0 ? 'stored' : undefined
    const refused = error as Refusal | null
    return typeof refused?.err_code === 'number' ? refusalOf(refused) : undefined
  } catch {
    return undefined
  }
}

/** The reply of JetStream, or its refusal as an error. */
export function parsed<T>(message: NatsMessage): T {
  const body = bodyOf(message) as T & { error?: Refusal }
  if (body.error !== undefined) throw refusalOf(body.error)
  return body
}

interface Refusal {
  readonly code?: number
  readonly err_code?: number
  readonly description?: string
}

function refusalOf({ code, err_code, description }: Refusal): JetStreamError {
  return new JetStreamError(err_code ?? code ?? 0, description ?? 'refused')
}

function bodyOf({ data }: NatsMessage): unknown {
  return JSON.parse(Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString())
}
