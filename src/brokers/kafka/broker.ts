import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  oneOf,
  type RawMessage,
  reportOnStderr,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import type { KafkaAdmin, KafkaClient } from '../../drivers/kafka/kafka.ts'
import { type KafkaLike, kafkaOf } from '../../drivers/kafka/recognise.ts'
import { type Phase, type Publisher, RETRY_DEFAULTS, type Stoppable, topicOf } from '../../flow/index.ts'
import { checkedTopic, decoderOf, encoderOf, isTombstone, type KafkaDecode, type KafkaEncode } from './encoding.ts'
import type { GroupSettings, TopicShape } from './member.ts'
import { KafkaPublisher } from './publisher.ts'
import { Sender } from './sender.ts'
import { needTopics, warnOfTopics } from './setup.ts'
import { KafkaSource } from './source.ts'

/** A Kafka cluster, over a client of kafkajs. */
export interface KafkaOptions {
  /** The class `Kafka` of kafkajs, and then `brokers`; or a client made with it, whose settings and log are yours. */
  client: KafkaLike
  /** Where to find the cluster: `['host:9092']`. */
  brokers?: readonly string[]
  /** As kafkajs has them. */
  ssl?: unknown
  sasl?: unknown
  clientId?: string
  name?: string
  /** How long a request may take before the server counts as away. Default 10 s. */
  timeout?: Duration
  /** Default: CloudEvents in binary mode, with the partition key as the record's. */
  encode?: KafkaEncode
  decode?: KafkaDecode
  clock?: Clock
}

/** How to make topics that are not there. */
export interface CreateTopics {
  partitions: number
  /** How many brokers have a copy. Default: what the cluster's default is. */
  replication?: number
}

/** To which topics messages go, and with which keys. */
export interface KafkaPublisherOptions {
  /** Where messages go: one topic for all, or by message. Default: what an outbox said, or else the message's type. */
  topic?: string | ((message: RawMessage) => string)
  /** What decides on the partition. Default: the message's key. */
  key?: (message: RawMessage) => string | undefined
  /** How much one request holds at most; the server refuses batches above `max.message.bytes`. Default 900 000. */
  batchBytes?: number
  /** Make `topic` if it is not there. Default: that is an error at start. */
  create?: CreateTopics
}

/** Which topics a group reads, and how. */
export interface KafkaSourceOptions {
  topic: string | readonly string[]
  /** The consumer group. */
  group: string
  /** Where a group begins that is new: with all there is (`earliest`, default) or with what comes (`latest`). */
  start?: 'earliest' | 'latest'
  /** How long the group waits for a member that has fallen silent. Default 30 s; the server sets bounds. */
  session?: Duration
  /** How long a fetch waits for records. Default 1 s. */
  block?: Duration
  /** How far reading may run ahead of a record that is not done, in each partition. Default 10 000. */
  ahead?: number
  /** How many crashes of its consumers a message survives. Default 25. */
  maxCrashes?: number
  /** What stays in order: messages of one key (`key`, default), or all of a partition, one at a time. */
  order?: 'key' | 'partition'
  /** The topic for what was given up. Default: `topic.dead.group`. */
  deadLetter?: string
  /** Make the topics that are not there, the one for dead letters too. Default: that is an error when it opens. */
  create?: CreateTopics
}

/** Kafka as a broker: publishers and sources. */
export class KafkaBroker implements Stoppable {
  readonly name: string
  /** As a member of `run`: after consumers and relays. */
  readonly phase: Phase = 'connections'
  readonly #client: KafkaClient
  readonly #timeout: number
  readonly #clock: Clock
  readonly #options: KafkaOptions
  /** For dead letters. */
  readonly #sender: Sender
  readonly #publishers: KafkaPublisher[] = []

  constructor(options: KafkaOptions) {
    const where = 'kafka'
    const allowed: OptionNames<KafkaOptions> = {
      client: true,
      brokers: true,
      ssl: true,
      sasl: true,
      clientId: true,
      name: true,
      timeout: true,
      encode: true,
      decode: true,
      clock: true,
    }
    checkOptions(where, options, allowed)
    const { client, brokers, ssl, sasl, clientId } = options
    this.#options = options
    this.name = options.name ?? 'kafka'
    this.#timeout = milliseconds(options.timeout ?? '10s', `${where}: timeout`)
    this.#clock = options.clock ?? systemClock
    const connection = {
      ...(brokers === undefined ? {} : { brokers }),
      ...(ssl === undefined ? {} : { ssl }),
      ...(sasl === undefined ? {} : { sasl }),
      ...(clientId === undefined ? {} : { clientId }),
    }
    this.#client = kafkaOf(where, client, { ...connection, timeout: this.#timeout })
    this.#sender = new Sender(this.#client, this.#timeout, this.#clock)
    reportOnStderr()
  }

  publisher(options: KafkaPublisherOptions = {}): Publisher {
    const where = `publisher ${this.name}`
    checkOptions(where, options, { topic: true, key: true, batchBytes: true, create: true })
    const { topic = topicOf, key = keyOf } = options
    const fixed = typeof topic === 'string' ? checkedTopic(`${where}: topic`, topic) : undefined
    const shape = shapeOf(where, options.create)
    if (shape !== undefined && fixed === undefined) {
      throw new WaybillError('INVALID_OPTION', `${where}: create needs a fixed topic to create; give topic: 'orders'`)
    }
    const nameOf = typeof topic === 'function' ? topic : () => topic
    const wanted = fixed === undefined ? [] : [{ topic: fixed, ...(shape ?? { partitions: 1, replication: -1 }) }]
    const publisher = new KafkaPublisher({
      name: this.name,
      sender: new Sender(this.#client, this.#timeout, this.#clock),
      topicOf: fixed === undefined ? (message) => named(where, message, nameOf(message)) : () => fixed,
      fixed,
      keyOf: key,
      encode: encoderOf(this.#options.encode),
      batchBytes: wholeNumber(`${where}: batchBytes`, options.batchBytes ?? 900_000),
      prepare: async () => {
        if (wanted.length === 0) return
        await this.#withAdmin(async (admin) => {
          await needTopics(where, admin, wanted, shape !== undefined)
          await warnOfTopics(where, admin, [fixed!], false)
        })
      },
      withAdmin: (work) => this.#withAdmin(work),
    })
    this.#publishers.push(publisher)
    return publisher
  }

  source(options: KafkaSourceOptions): KafkaSource {
    const names: OptionNames<KafkaSourceOptions> = {
      topic: true,
      group: true,
      start: true,
      session: true,
      block: true,
      ahead: true,
      maxCrashes: true,
      order: true,
      deadLetter: true,
      create: true,
    }
    checkOptions('kafka source', options, names)
    const group = checkedGroup(options.group)
    const where = `source ${[options.topic].flat().join(', ')} of group ${group}`
    const topics = [...new Set([options.topic].flat().map((topic) => checkedTopic(`${where}: topic`, topic)))]
    if (topics.length === 0) throw new WaybillError('INVALID_OPTION', `${where}: topic: name at least one`)
    const { deadLetter } = options
    const letters = (topic: string) => checkedTopic(`${where}: deadLetter`, deadLetter ?? `${topic}.dead.${group}`)
    if (topics.some((topic) => topics.includes(letters(topic)))) {
      throw new WaybillError('INVALID_OPTION', `${where}: deadLetter must not be a topic that is read`)
    }
    const ahead = wholeNumber(`${where}: ahead`, options.ahead ?? 10_000)
    const settings: GroupSettings = {
      where,
      group,
      topics,
      letters,
      start: oneOf(`${where}: start`, options.start ?? 'earliest', ['earliest', 'latest']),
      session: Math.max(1, milliseconds(options.session ?? '30s', `${where}: session`)),
      block: Math.max(1, Math.round(milliseconds(options.block ?? '1s', `${where}: block`))),
      ahead,
      buffer: Math.min(ahead, 2000),
      maxCrashes: wholeNumber(`${where}: maxCrashes`, options.maxCrashes ?? RETRY_DEFAULTS.maxCrashes),
      order: oneOf(`${where}: order`, options.order ?? 'key', ['key', 'partition']),
      create: shapeOf(where, options.create),
      decode: decoderOf(this.#options.decode),
      // Whoever decodes by himself may know what a deletion means.
      passesOver: this.#options.decode === undefined ? isTombstone : () => false,
      client: this.#client,
      sender: this.#sender,
      withAdmin: (work) => this.#withAdmin(work),
      clock: this.#clock,
    }
    return new KafkaSource(`${this.name}:${group}`, settings)
  }

  /** Ends its publishers and the connection for dead letters. Stop consumers and relays first. */
  async close(): Promise<void> {
    await Promise.all([...this.#publishers, this.#sender].map((one) => one.close()))
  }

  /** For `run`. */
  async stop(): Promise<void> {
    await this.close()
  }

  /** A connection for the moment: what one knows of topics ages badly. */
  async #withAdmin<T>(work: (admin: KafkaAdmin) => Promise<T>): Promise<T> {
    const admin = await this.#client.admin()
    try {
      return await work(admin)
    } finally {
      await admin.close().catch(() => {})
    }
  }
}

/** Kafka as a broker. */
export function kafka(options: KafkaOptions): KafkaBroker {
  return new KafkaBroker(options)
}

function keyOf(message: RawMessage): string | undefined {
  return message.key
}

/** A message that names an impossible topic is refused for good. */
function named(where: string, message: RawMessage, topic: unknown): string {
  return checkedTopic(`${where}: ${message}`, topic, 'REJECTED')
}

function shapeOf(where: string, create: CreateTopics | undefined): TopicShape | undefined {
  if (create === undefined) return undefined
  checkOptions(`${where}: create`, create, { partitions: true, replication: true })
  const partitions = wholeNumber(`${where}: create.partitions`, create.partitions)
  const { replication } = create
  if (replication === undefined) return { partitions, replication: -1 }
  return { partitions, replication: wholeNumber(`${where}: create.replication`, replication) }
}

function checkedGroup(group: unknown): string {
  if (typeof group === 'string' && group !== '') return group
  throw new WaybillError(
    'INVALID_OPTION',
    `kafka source: group: ${describe(group)} is not a name; give text that is not empty`,
  )
}
