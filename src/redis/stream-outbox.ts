import { toStructured } from '../cloudevents/index.ts'
import {
  checkOptions,
  describe,
  encodeData,
  type Message,
  type OptionNames,
  type RawMessage,
  traced,
  WaybillError,
} from '../core/index.ts'
import { ENTRY_EVENT, ENTRY_TOPIC, type RedisArg } from '../drivers/redis/redis.ts'
import { checkEvent, type Enqueued, enqueueArguments, type Receipts, topicFunction } from '../store/enqueue.ts'
import type { EnqueueOptions, Outbox } from '../store/store.ts'
import { type RedisTx, unitOf } from './unit.ts'

/** The fields of an entry; what it throws refuses the event. */
export type OutboxEncode = (message: RawMessage, topic: string) => Readonly<Record<string, string | Uint8Array>>

/** An outbox in a stream. */
export interface StreamOutboxOptions {
  kind?: 'stream'
  /** The stream, after the tag: `outbox` (default) is `{tag}:outbox`. */
  stream?: string
  /** The topic of events for which none is given. Default: the event's type. */
  topic?: string | ((message: Message) => string)
  /** Default: the event as CloudEvents JSON in the field `event`, its topic in the field `topic`. */
  encode?: OutboxEncode
}

/** What can be said of an event here: delays, tenants and aggregates are for an outbox that keeps rows. */
export type StreamEnqueueOptions = Pick<EnqueueOptions, 'key' | 'topic' | 'tenant'>

const ENQUEUE_OPTIONS: OptionNames<Pick<EnqueueOptions, 'key' | 'topic' | 'tenant'>> = {
  key: true,
  topic: true,
  tenant: true,
}

export interface OutboxSettings {
  /** Where its stream is; see RedisClient. */
  readonly server: string | undefined
  readonly own: (name: string) => string
  readonly current: () => RedisTx | undefined
}

/**
 * An outbox in a stream: what a unit of work enqueues is appended in the same step as its other commands. Any source of
 * that stream forwards it; see the guide. The receipt of an event is not known before the commit, so there is none.
 */
export class RedisStreamOutbox implements Outbox<RedisTx> {
  /** The key of the stream without the client's prefix: what a source of it is given. */
  readonly stream: string
  readonly name: string
  /**
   * What a source that forwards the entries is given: `redisStreams({ client }).source(db.outbox.forwarding)`. An entry
   * is deleted when its destination has it.
   */
  readonly forwarding: {
    readonly stream: string
    readonly group: string
    readonly remove: true
    readonly batch: number
  }
  readonly #settings: OutboxSettings
  readonly #topicOf: (message: Message) => string
  readonly #encode: OutboxEncode

  constructor(settings: OutboxSettings, options: StreamOutboxOptions = {}) {
    checkOptions('outbox', options, { kind: true, stream: true, topic: true, encode: true })
    const { stream = 'outbox', topic, encode = defaultEncode } = options
    if (typeof stream !== 'string' || stream === '') {
      throw new WaybillError('INVALID_OPTION', `outbox: stream: ${describe(stream)} is not a name`)
    }
    this.#settings = settings
    this.stream = settings.own(stream)
    this.name = this.stream
    this.forwarding = { stream: this.stream, group: 'outbox-forwarder', remove: true, batch: 100 }
    this.#topicOf = topicFunction(topic)
    this.#encode = encode
  }

  /** Queues events in a unit of work: `enqueue(tx, event)`, or `enqueue(event)` in the one we are in. */
  enqueue<Given extends Enqueued>(events: Given, options?: StreamEnqueueOptions): Promise<Receipts<Given, undefined>>
  // Last, as in the port: what a transaction is, is inferred from it.
  enqueue<Given extends Enqueued>(
    tx: RedisTx,
    events: Given,
    options?: StreamEnqueueOptions,
  ): Promise<Receipts<Given, undefined>>
  enqueue(...given: unknown[]): Promise<undefined | undefined[]> {
    try {
      return this.#enqueue(given)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #enqueue(given: readonly unknown[]): Promise<undefined | undefined[]> {
    const { current, server } = this.#settings
    const { tx, events, single, options } = enqueueArguments<RedisTx, StreamEnqueueOptions>(
      given,
      current,
      ENQUEUE_OPTIONS,
    )
    const unit = unitOf(tx, server)
    const entries = events.map((event) => this.#fields(event, options))
    for (const fields of entries) unit.command('xadd', this.stream, '*', ...(fields as Buffer[]))
    return single ? DONE : Promise.resolve(entries.map(() => undefined))
  }

  #fields(event: Message, { key, topic, tenant }: StreamEnqueueOptions): RedisArg[] {
    checkEvent(event)
    let named = traced(event)
    if (key !== undefined || tenant !== undefined) {
      const extensions = {
        ...(key === undefined ? {} : { partitionkey: key }),
        ...(tenant === undefined ? {} : { tenantid: tenant }),
      }
      named = named.with({ extensions })
    }
    const fields = this.#encode(encodeData(named), topic ?? this.#topicOf(event))
    const words: RedisArg[] = []
    for (const name of Object.keys(fields)) words.push(name, argOf(fields[name]!))
    if (words.length > 0) return words
    throw new WaybillError('NOT_SERIALISABLE', `${event}: encode returned no fields, but an entry needs at least one`)
  }
}

/** There is nothing to wait for before the commit. */
const DONE = Promise.resolve(undefined)

function defaultEncode(message: RawMessage, topic: string): Record<string, string> {
  return { [ENTRY_EVENT]: toStructured(message), [ENTRY_TOPIC]: topic }
}

function argOf(value: string | Uint8Array): RedisArg {
  if (typeof value === 'string' || Buffer.isBuffer(value)) return value
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}
