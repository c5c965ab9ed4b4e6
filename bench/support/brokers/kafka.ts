import kafkajs from 'kafkajs'
import { kafka } from 'waybill/kafka'
import {
  type BareEvent,
  type BarePublisher,
  type BrokerBench,
  bareHandler,
  headersOf,
  type Role,
  type Stage,
} from './broker.ts'
import { bareEvents, inParts } from './messages.ts'

/** Published to, and read from. */
const [TOPIC, READ] = ['order.placed', 'orders'] as const
const PARTITIONS = 4

/** Few enough that a record is still in the processor's cache when its turn comes: with thousands it is a tenth slower. */
const IN_HAND = 400
const TUNED = { concurrency: IN_HAND, take: IN_HAND, buffer: { count: IN_HAND } }

const brokerAt = (url: string) => kafka({ client: kafkajs.Kafka as never, brokers: [new URL(url).host] })
const clientAt = (url: string) => {
  return new kafkajs.Kafka({ brokers: [new URL(url).host], clientId: 'bare', logLevel: kafkajs.logLevel.NOTHING })
}

const recordOf = (event: BareEvent) => ({ key: event.key, value: event.data, headers: headersOf(event, 'ce_') })

async function barePublisher(url: string, topic: string = TOPIC): Promise<BarePublisher> {
  const createPartitioner = kafkajs.Partitioners.DefaultPartitioner
  const producer = clientAt(url).producer({ idempotent: true, maxInFlightRequests: 1, createPartitioner })
  await producer.connect()
  return {
    publish: (events) => producer.send({ topic, acks: -1, messages: events.map(recordOf) }),
    close: () => producer.disconnect(),
  }
}

async function bareConsume(url: string, group: string, onEvent: () => void): Promise<() => Promise<void>> {
  const consumer = clientAt(url).consumer({ groupId: group, maxBytesPerPartition: 1024 * 1024 })
  await consumer.connect()
  await consumer.subscribe({ topic: READ, fromBeginning: true })
  const running: Promise<unknown>[] = []
  await consumer.run({
    autoCommit: false,
    partitionsConsumedConcurrently: PARTITIONS,
    eachBatch: async ({ batch: { messages, partition } }) => {
      for (const { value, headers } of messages) {
        // What a handler is chosen by, and what tells a message from its duplicate, are headers.
        if (String(headers!['ce_type']) !== TOPIC || String(headers!['ce_id']) === '') throw new Error('not an event')
        bareHandler(value!.toString())
        onEvent()
      }
      const offset = String(Number(messages.at(-1)!.offset) + 1)
      // Committed after handling; the next batch need not wait for it.
      running.push(consumer.commitOffsets([{ topic: READ, partition, offset }]))
    },
  })
  return async () => {
    // The last batch may still be ending.
    await new Promise((resolve) => setImmediate(resolve))
    await Promise.all(running)
    await consumer.disconnect()
  }
}

async function stage(url: string, role: Role): Promise<Stage> {
  const admin = clientAt(url).admin()
  await admin.connect()
  const topic = role === 'publish' ? TOPIC : READ
  // What rounds have published is not deleted at once, but does not fill the disk either.
  const configEntries = ['retention.bytes', 'segment.bytes'].map((name) => ({ name, value: String(128 * 1024 * 1024) }))
  const created = { topic, numPartitions: PARTITIONS, replicationFactor: 1, configEntries }
  await admin.createTopics({ topics: [created], waitForLeaders: true })
  const bare = await barePublisher(url, topic)
  const end = async () => (await admin.fetchTopicOffsets(topic)).reduce((sum, { high }) => sum + Number(high), 0)
  let began = 0
  return {
    async empty() {
      began = await end()
    },
    count: async () => (await end()) - began,
    async fill(_, events) {
      // The same for all groups: one is filled, and read again and again.
      const missing = events - (await end())
      await inParts(bareEvents(missing), { size: 1000, at: 1 }, (part) => bare.publish(part))
    },
    async left(group) {
      const [committed] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      const done = new Map(committed!.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
      const offsets = await admin.fetchTopicOffsets(topic)
      return offsets.reduce((sum, { partition, high }) => sum + Number(high) - Math.max(0, done.get(partition) ?? 0), 0)
    },
    async close() {
      await bare.close()
      await admin.disconnect()
    },
  }
}

export const kafkaBench: BrokerBench = {
  name: 'kafka',
  server: 'kafka',
  how: {
    'ours publish': `kafkajs, idempotent, acks all, ${PARTITIONS} partitions, requests of up to 1000`,
    'bare publish': 'kafkajs, the same, requests of 1000',
    'ours consume': `group, ${IN_HAND} at once in order of keys, commits after handling`,
    'bare consume': `eachBatch, ${PARTITIONS} partitions at once, type, id and data read, a commit after each batch that nobody waits for`,
  },
  stage,
  publisher: (url) => brokerAt(url).publisher({ topic: TOPIC }),
  barePublisher: (url) => barePublisher(url),
  source(url, group, tuned) {
    const broker = brokerAt(url)
    const source = broker.source({ topic: READ, group, create: { partitions: PARTITIONS, replication: 1 } })
    return { source, consume: tuned ? TUNED : {}, close: () => broker.close() }
  },
  bareConsume,
}
