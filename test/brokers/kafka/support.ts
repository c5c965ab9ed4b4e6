import kafkajs from 'kafkajs'
import {
  type KafkaBroker,
  type KafkaOptions,
  type KafkaPublisherOptions,
  type KafkaSourceOptions,
  kafka,
} from '../../../src/brokers/kafka/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'
import { fresh } from '../support.ts'

export { fresh, message, NEVER, receive, until } from '../support.ts'

export const PARTITIONS = 3

export function addressOf(url: string): string {
  return new URL(url).host
}

/** Our adapter on the server of this URL, made from the class. */
export function onServer(url: string, options: Partial<KafkaOptions> = {}): KafkaBroker {
  return kafka({ client: kafkajs.Kafka, brokers: [addressOf(url)], ...options })
}

/** A client of kafkajs itself, to look from outside. */
export function bare(url: string): kafkajs.Kafka {
  return new kafkajs.Kafka({ brokers: [addressOf(url)], logLevel: kafkajs.logLevel.NOTHING, clientId: 'test' })
}

/** Source options for quick tests: topics are made, and nobody is waited for long. */
export const QUICK = { create: { partitions: PARTITIONS, replication: 1 }, block: 50, session: '6s' } as const

export const FEATURES = { groups: true, competing: true, ordered: true, deadLetters: true, refuses: true } as const

/** What the broker suite needs. */
export function factory(
  name: string,
  make: () => KafkaBroker,
  publisherOptions: Partial<KafkaPublisherOptions> = {},
  sourceOptions: Partial<KafkaSourceOptions> = {},
): BrokerFactory {
  return {
    name,
    features: FEATURES,
    patience: 30_000,
    async create() {
      const topic = fresh()
      const broker = make()
      const { create } = QUICK
      const publisher = broker.publisher({ topic, create, ...publisherOptions })
      await publisher.start!()
      return {
        publisher,
        source: (group) => broker.source({ topic, group, ...QUICK, ...sourceOptions }),
        async deadLetters(group) {
          const letters = await broker.source({ topic, group, ...QUICK }).deadLetters()
          return letters.map(({ message, reason }) => ({ message: message!, reason }))
        },
        // JSON cannot hold it; nobody noticed before.
        refused: () => new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
        async close() {
          await publisher.close!()
          await broker.close()
        },
      }
    },
  }
}
