import {
  type Clock,
  checkOptions,
  type Duration,
  milliseconds,
  oneOf,
  type RawMessage,
  reportOnStderr,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import { NatsClient } from '../../drivers/nats/link.ts'
import { checkNats, type NatsLike } from '../../drivers/nats/nats.ts'
import { type Phase, RETRY_DEFAULTS, type Stoppable, topicOf } from '../../flow/index.ts'
import type { ConsumerConfig, StreamConfig } from './api.ts'
import { decode, encode, type NatsDecode, type NatsEncode } from './encoding.ts'
import { NatsPublisher } from './publisher.ts'
import {
  checkedName,
  checkedPattern,
  checkedSubject,
  defaultDeadOf,
  type NatsStreamOptions,
  nanoseconds,
  streamConfig,
} from './setup.ts'
import { NatsSource } from './source.ts'

/** A NATS server with JetStream. */
export interface NatsOptions {
  /**
   * How to connect: `() => connect({ servers })` of `@nats-io/transport-node`. Every session and publisher then has a
   * connection of its own, made anew when it is lost, and closed by us. Or a connection you have: it is shared, and
   * stays yours.
   */
  connection: NatsLike
  stream: string
  /** Makes the stream when it is not there, and refuses one that is different. Absent: it must be there. */
  create?: NatsStreamOptions
  name?: string
  /** How long an answer of the server may take. Default 10 s. */
  timeout?: Duration
  /** The JetStream domain, where there are several. */
  domain?: string
  /** Where replies come back. Default `_INBOX`; another where permissions ask for it. */
  inboxPrefix?: string
  /** Default: CloudEvents in binary mode, attributes as headers. */
  encode?: NatsEncode
  decode?: NatsDecode
  clock?: Clock
}

/** To which subjects messages go. */
export interface NatsPublisherOptions {
  /** Where messages go: one subject for all, or by message. Default: what an outbox said, or else the message's type. */
  subject?: string | ((message: RawMessage) => string)
}

/** Which stream and consumer are read, and how. */
export interface NatsSourceOptions {
  /** The durable pull consumer. Whoever takes under the same name competes for its messages. */
  group: string
  /** Makes the consumer, and the stream of its dead letters, when they are not there. Default: they must be. */
  create?: boolean
  /** Only messages of this subject, or pattern of subjects. */
  subject?: string
  /** Where a consumer that is made now begins: with all there is (`all`, default) or with what comes (`new`). */
  start?: 'all' | 'new'
  /** How long a message may lie in the hands of somebody who has fallen silent. Default 30 s. Work renews it. */
  ackWait?: Duration
  /** How many messages may be given out or waiting for a retry before no more are given out. Default 65,536. */
  maxPending?: number
  /** How long a request waits for messages. Default 1 s. */
  block?: Duration
  /** How many crashes of its consumers a message survives; not less than the flow's `retry.attempts`. Default 25. */
  maxCrashes?: number
  /** The stream for what was given up. Default: the stream's name and `-dead`. Groups, and streams, may share it. */
  deadLetter?: string
}

/** A JetStream stream as a broker: publishers and sources. */
export class NatsBroker implements Stoppable {
  readonly name: string
  /** As a member of `run`: after consumers and relays. */
  readonly phase: Phase = 'connections'
  readonly stream: string
  readonly #options: NatsOptions
  readonly #create: StreamConfig | undefined
  readonly #timeout: number
  readonly #prefix: string
  readonly #client: NatsClient
  readonly #publishers: NatsPublisher[] = []

  constructor(options: NatsOptions) {
    const where = 'nats'
    checkOptions(where, options, {
      connection: true,
      stream: true,
      create: true,
      name: true,
      timeout: true,
      domain: true,
      inboxPrefix: true,
      encode: true,
      decode: true,
      clock: true,
    })
    checkNats(`${where}: connection`, options.connection)
    this.stream = checkedName(`${where}: stream`, options.stream)
    this.name = options.name ?? 'nats'
    this.#options = options
    this.#create =
      options.create === undefined ? undefined : streamConfig(`${where}: create`, this.stream, options.create)
    this.#timeout = milliseconds(options.timeout ?? '10s', `${where}: timeout`)
    const { domain } = options
    this.#prefix = domain === undefined ? '$JS.API' : `$JS.${checkedName(`${where}: domain`, domain)}.API`
    this.#client = this.#newClient()
    reportOnStderr()
  }

  publisher(options: NatsPublisherOptions = {}): NatsPublisher {
    const where = `publisher ${this.name}`
    checkOptions(where, options, { subject: true })
    const { subject = topicOf } = options
    const choose = typeof subject === 'function' ? subject : () => subject
    if (typeof subject !== 'function') checkedSubject(`${where}: subject`, subject)
    const publisher = new NatsPublisher({
      name: this.name,
      client: this.#newClient(),
      prefix: this.#prefix,
      stream: this.stream,
      create: this.#create,
      subjectOf: (message) => checkedSubject(where, choose(message)),
      fixed: typeof subject !== 'function',
      encode: this.#options.encode ?? encode,
    })
    this.#publishers.push(publisher)
    return publisher
  }

  source(options: NatsSourceOptions): NatsSource {
    checkOptions('nats source', options, {
      group: true,
      create: true,
      subject: true,
      start: true,
      ackWait: true,
      maxPending: true,
      block: true,
      maxCrashes: true,
      deadLetter: true,
    })
    const group = checkedName('nats source: group', options.group)
    const where = `source ${this.stream} of group ${group}`
    const dead = checkedName(`${where}: deadLetter`, options.deadLetter ?? defaultDeadOf(this.stream))
    if (dead === this.stream) {
      throw new WaybillError('INVALID_OPTION', `${where}: deadLetter must not be the stream that is read`)
    }
    const settings = {
      where,
      stream: this.stream,
      group,
      dead,
      block: Math.max(1, milliseconds(options.block ?? '1s', `${where}: block`)),
      maxCrashes: wholeNumber(`${where}: maxCrashes`, options.maxCrashes ?? RETRY_DEFAULTS.maxCrashes),
      timeout: this.#timeout,
      decode: this.#options.decode ?? decode,
      clock: this.#options.clock ?? systemClock,
    }
    const said = this.#said(where, options)
    const start = oneOf(`${where}: start`, options.start ?? 'all', ['all', 'new'])
    const config: ConsumerConfig = {
      durable_name: group,
      ack_policy: 'explicit',
      deliver_policy: start,
      ack_wait: nanoseconds('30s', 'ackWait'),
      max_ack_pending: 65_536,
      max_deliver: -1,
      ...said,
    }
    return new NatsSource(`${this.name}:${group}`, settings, {
      client: this.#client,
      prefix: this.#prefix,
      stream: this.#create,
      consumer: { config, said, creates: options.create ?? false },
    })
  }

  /** Ends its publishers, and the connection that `stats` and dead letters share. Stop consumers and relays first. */
  async close(): Promise<void> {
    await Promise.all([...this.#publishers, this.#client].map((one) => one.close()))
  }

  /** For `run`. */
  async stop(): Promise<void> {
    await this.close()
  }

  /** What was asked for, in JetStream's words. */
  #said(where: string, { subject, ackWait, maxPending }: NatsSourceOptions): Partial<ConsumerConfig> {
    return {
      ...(subject === undefined ? {} : { filter_subject: checkedPattern(`${where}: subject`, subject) }),
      ...(ackWait === undefined ? {} : { ack_wait: nanoseconds(ackWait, `${where}: ackWait`) }),
      ...(maxPending === undefined ? {} : { max_ack_pending: wholeNumber(`${where}: maxPending`, maxPending) }),
    }
  }

  #newClient(): NatsClient {
    const inbox = this.#options.inboxPrefix ?? '_INBOX'
    return new NatsClient(this.#options.connection, { inbox, timeout: this.#timeout })
  }
}

/** NATS JetStream as a broker. */
export function nats(options: NatsOptions): NatsBroker {
  return new NatsBroker(options)
}
