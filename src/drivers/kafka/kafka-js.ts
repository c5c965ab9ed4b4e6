import { has } from '../has.ts'
import {
  isRefusal,
  type KafkaAdmin,
  type KafkaClient,
  type KafkaOffset,
  type KafkaProducer,
  type OutgoingRecord,
  type ProducerSettings,
  refusal,
  unavailable,
} from './kafka.ts'
import { kafkaJsConsumer } from './kafka-js-consumer.ts'
import { translated, typeOf } from './kafka-js-errors.ts'
import type { KafkaJs, KafkaJsAdmin, KafkaJsMessage, KafkaJsProducer } from './kafka-js-shapes.ts'

export type KafkaJsClass = new (options: object) => KafkaJs

/** How to reach the cluster, where it is we who make the kafkajs client. */
export interface KafkaJsConnection {
  readonly brokers: readonly string[]
  readonly ssl?: unknown
  readonly sasl?: unknown
  readonly clientId?: string
  /** Milliseconds a request may take. */
  readonly timeout: number
}

/** Few and quick: whoever calls has a longer breath, and wants to know. */
const RETRY = { retries: 4, initialRetryTime: 100, maxRetryTime: 1000 }

export function isKafkaJs(given: unknown): given is KafkaJs {
  return typeof given === 'object' && has(given, 'producer', 'consumer', 'admin', 'logger')
}

export function isKafkaJsClass(given: unknown): given is KafkaJsClass {
  return typeof given === 'function' && has(given.prototype, 'producer', 'consumer', 'admin', 'logger')
}

/**
 * From the class: a client for each use, since clients of one instance share what they know of offsets. Its log is
 * silent, because every trouble reaches us as an error; KAFKAJS_LOG_LEVEL brings it back.
 */
export function kafkaJsOf(made: KafkaJsClass, connection: KafkaJsConnection): KafkaClient {
  const { brokers, ssl, sasl, clientId = 'waybill', timeout } = connection
  const options = {
    brokers: [...brokers],
    clientId,
    ...(ssl === undefined ? {} : { ssl }),
    ...(sasl === undefined ? {} : { sasl }),
    requestTimeout: timeout,
    connectionTimeout: Math.min(timeout, 3000),
    authenticationTimeout: timeout,
    retry: RETRY,
    logLevel: 0,
  }
  return clientOf(() => new made(options))
}

export function kafkaJs(instance: KafkaJs): KafkaClient {
  return clientOf(() => instance)
}

function clientOf(kafka: () => KafkaJs): KafkaClient {
  return {
    driver: 'kafkajs',
    producer: (settings) => producer(kafka(), settings),
    consumer: (settings, events) => kafkaJsConsumer(kafka(), settings, events, RETRY),
    admin: () => admin(kafka()),
  }
}

async function producer(kafka: KafkaJs, settings: ProducerSettings): Promise<KafkaProducer> {
  const { timeout } = settings
  const inner = await connectedProducer(kafka, settings)
  return {
    async send(records) {
      const topics = new Map<string, Traced[]>()
      for (const record of records) {
        const { topic, key, value, headers } = record
        const message: Traced = { key, value, headers, record }
        const messages = topics.get(topic)
        if (messages === undefined) topics.set(topic, [message])
        else messages.push(message)
      }
      const topicMessages = [...topics].map(([topic, messages]) => ({ topic, messages }))
      let responses: readonly { topicName: string; partition: number; errorCode: number }[]
      try {
        responses = await inner.sendBatch({ acks: -1, timeout, topicMessages })
      } catch (error) {
        throw translated(`Kafka has not taken ${records.length} records`, error)
      }
      checkResponses(records, responses)
    },
    close: () => inner.disconnect(),
  }
}

/**
 * An idempotent producer asks for all topics there are when it connects, and fails where a partition of any has no leader.
 * So it is made to ask for its own.
 */
async function connectedProducer(kafka: KafkaJs, settings: ProducerSettings): Promise<KafkaJsProducer> {
  const asking = askingFor(settings.topics, kafka)
  try {
    return await connectProducer(asking, settings)
  } catch (error) {
    // One that was made a moment ago is not known to every server: what is sent to it waits for that.
    if (asking === kafka || !isRefusal(error, 'UNKNOWN_TOPIC')) throw error
    return await connectProducer(kafka, settings)
  }
}

async function connectProducer(kafka: KafkaJs, { partitionOf }: ProducerSettings): Promise<KafkaJsProducer> {
  const inner = kafka.producer({
    idempotent: true,
    maxInFlightRequests: 1,
    allowAutoTopicCreation: false,
    retry: RETRY,
    createPartitioner: () => (about: { partitionMetadata: unknown[]; message: Traced }) => {
      const { message, partitionMetadata } = about
      // Asked again for every retry: a record that moved would leave its sequence number to another.
      message.record.partition ??= partitionOf(message.record, partitionMetadata.length)
      return message.record.partition
    },
  })
  try {
    await inner.connect()
    return inner
  } catch (error) {
    await inner.disconnect().catch(() => {})
    throw translated('cannot connect to Kafka', error)
  }
}

/** Behind it kafkajs keeps how a client makes what knows of its topics. */
const CREATE_CLUSTER = 'private:Kafka:createCluster'

/** A client whose producer knows at once which topics it is for; the same where that is kept elsewhere. */
function askingFor(topics: readonly string[], kafka: KafkaJs): KafkaJs {
  const symbol = Object.getOwnPropertySymbols(kafka).find(({ description }) => description === CREATE_CLUSTER)
  if (symbol === undefined || topics.length === 0) return kafka
  const create = (kafka as unknown as Record<symbol, (options: object) => { targetTopics?: Set<string> }>)[symbol]!
  const value = (options: object) => {
    const cluster = create(options)
    for (const topic of topics) cluster.targetTopics?.add(topic)
    return cluster
  }
  return Object.create(kafka, { [symbol]: { value } })
}

/** What kafkajs asks a partitioner about, and the record it came from. */
interface Traced extends KafkaJsMessage {
  readonly record: OutgoingRecord
}

/**
 * When a leader moves to a broker that has responded already, kafkajs takes that response for the records that were to be
 * sent again, and reports success. So it must have responded for every partition.
 */
function checkResponses(
  records: readonly OutgoingRecord[],
  responses: readonly { topicName: string; partition: number; errorCode: number }[],
): void {
  const responded = new Set(responses.map(({ topicName, partition }) => `${partition} ${topicName}`))
  const missing = records.find(({ topic, partition }) => !responded.has(`${partition} ${topic}`))
  if (missing === undefined) return
  const { topic, partition } = missing
  throw unavailable('Kafka has not taken all records', new Error(`no response for partition ${partition} of ${topic}`))
}

async function admin(kafka: KafkaJs): Promise<KafkaAdmin> {
  const inner = kafka.admin({ retry: RETRY })
  try {
    await inner.connect()
  } catch (error) {
    await inner.disconnect().catch(() => {})
    throw translated('cannot connect to Kafka', error)
  }
  return {
    async partitions(topics) {
      const found = new Map<string, number>()
      for (const topic of topics) {
        const count = await partitionsOf(inner, topic)
        if (count > 0) found.set(topic, count)
      }
      return found
    },
    async create(topics) {
      const wanted = topics.map(({ topic, partitions, replication, settings = {} }) => ({
        topic,
        numPartitions: partitions,
        replicationFactor: replication,
        configEntries: Object.entries(settings).map(([name, value]) => ({ name, value })),
      }))
      // One by one: the error of one that exists hides those of others.
      for (const topic of wanted) {
        try {
          await inner.createTopics({ waitForLeaders: true, topics: [topic] })
        } catch (error) {
          const type = typeOf(error)
          if (type === 'TOPIC_ALREADY_EXISTS') continue
          // It was created; kafkajs waits for its leaders, but not for a server that has yet to learn of the topic.
          if (type === 'UNKNOWN_TOPIC_OR_PARTITION') throw unavailable(`topic ${topic.topic} is not known yet`, error)
          if (type === undefined || MAY_PASS.has(type))
            throw unavailable(`topic ${topic.topic} could not be created`, error)
          throw refusal('NOT_ALLOWED', `topic ${topic.topic} could not be created: ${detail(error)}`, error)
        }
      }
    },
    async bounds(topic) {
      const found = await call(`the offsets of ${topic}`, () => inner.fetchTopicOffsets(topic))
      return found.map(({ partition, low, high }) => ({ partition, low: Number(low), high: Number(high) }))
    },
    async committed(groupId, topics) {
      const found = await call(`the offsets of group ${groupId}`, () =>
        inner.fetchOffsets({ groupId, topics: [...topics] }),
      )
      return found.flatMap(({ topic, partitions }) =>
        partitions
          .filter(({ offset }) => Number(offset) >= 0)
          .map(
            ({ partition, offset, metadata }): KafkaOffset => ({
              topic,
              partition,
              offset: Number(offset),
              metadata: metadata ?? '',
            }),
          ),
      )
    },
    async deleteGroup(group) {
      await call(`group ${group}`, () => inner.deleteGroups([group]))
    },
    async kept(topics) {
      const { topics: found } = await call('how topics are kept', () =>
        inner.fetchTopicMetadata({ topics: [...topics] }),
      )
      const settings = await settingsOf(inner, topics)
      return found.map(({ name, partitions }) => ({
        topic: name,
        replication: Math.min(...partitions.map(({ replicas }) => replicas.length)),
        settings: settings.get(name) ?? {},
      }))
    },
    close: () => inner.disconnect(),
  }
}

/** As kafkajs numbers what has settings. */
const OF_TOPIC = 2
const SETTINGS = ['cleanup.policy', 'min.insync.replicas', 'retention.ms', 'unclean.leader.election.enable']

/** Not every user may ask. */
async function settingsOf(
  inner: KafkaJsAdmin,
  topics: readonly string[],
): Promise<Map<string, Record<string, string>>> {
  try {
    const asked = topics.map((name) => ({ type: OF_TOPIC, name, configNames: SETTINGS }))
    const { resources } = await inner.describeConfigs({ includeSynonyms: false, resources: asked })
    return new Map(
      resources.map(({ resourceName, configEntries }) => [
        resourceName,
        Object.fromEntries(configEntries.map(({ configName, configValue }) => [configName, configValue])),
      ]),
    )
  } catch {
    return new Map()
  }
}

async function partitionsOf(inner: KafkaJsAdmin, topic: string): Promise<number> {
  try {
    const { topics } = await inner.fetchTopicMetadata({ topics: [topic] })
    return topics[0]?.partitions.length ?? 0
  } catch (error) {
    const type = typeOf(error)
    if (type === 'UNKNOWN_TOPIC_OR_PARTITION' || type === 'INVALID_TOPIC_EXCEPTION') return 0
    throw translated(`Kafka returned no metadata of topic ${topic}`, error)
  }
}

async function call<T>(what: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw translated(`Kafka does not report ${what}`, error)
  }
}

/** What a cluster says while its controller changes: nobody is refused anything. */
const MAY_PASS = new Set(['NOT_CONTROLLER', 'REQUEST_TIMED_OUT', 'LEADER_NOT_AVAILABLE', 'BROKER_NOT_AVAILABLE'])

/** kafkajs puts the errors of topics into a list. */
function detail(error: unknown): string {
  const { errors } = error as { errors?: unknown }
  const first = Array.isArray(errors) ? errors[0] : error
  return first instanceof Error ? first.message : String(first)
}
