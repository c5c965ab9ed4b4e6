import { randomBytes } from 'node:crypto'
import kafkajs from 'kafkajs'
import {
  type Kafka,
  type KafkaOptions,
  type KafkaPublisherOptions,
  type KafkaSourceOptions,
  kafka,
} from '../../../src/brokers/kafka/index.ts'
import { Message, type RawMessage, systemClock } from '../../../src/core/index.ts'
import type { Delivery, Session } from '../../../src/flow/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'

export const NEVER = new AbortController().signal

export const PARTITIONS = 3

let made = 0

/** A name nobody else has. */
export function fresh(prefix = 't'): string {
  return `${prefix}-${randomBytes(5).toString('hex')}-${++made}`
}

export function addressOf(url: string): string {
  return new URL(url).host
}

/** Our adapter on the server of this URL, made from the class. */
export function onServer(url: string, options: Partial<KafkaOptions> = {}): Kafka {
  return kafka({ client: kafkajs.Kafka, brokers: [addressOf(url)], ...options })
}

/** A client of kafkajs itself, to look from outside. */
export function bare(url: string): kafkajs.Kafka {
  return new kafkajs.Kafka({ brokers: [addressOf(url)], logLevel: kafkajs.logLevel.NOTHING, clientId: 'test' })
}

/** Source options for quick tests: topics are made, and nobody is waited for long. */
export const QUICK = { create: { partitions: PARTITIONS, replication: 1 }, block: 50, session: '6s' } as const

export function message(data = '{"n":1}', attributes: { id?: string; key?: string; type?: string } = {}): RawMessage {
  const extensions = attributes.key === undefined ? {} : { partitionkey: attributes.key }
  const { id = `m-${process.pid}-${++made}`, type = 'thing.happened' } = attributes
  return new Message({ id, source: '/test', type, extensions }, data)
}

export const FEATURES = { groups: true, competing: true, ordered: true, deadLetters: true, refuses: true } as const

/** What the broker suite needs. */
export function factory(
  name: string,
  make: () => Kafka,
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

/** Takes until there are so many. */
export async function receive<D extends Delivery>(session: Session<D>, count: number, limit = 30_000): Promise<D[]> {
  const received: D[] = []
  for (const end = performance.now() + limit; received.length < count; ) {
    if (performance.now() > end) throw new Error(`${received.length} of ${count} have come`)
    const taken = await session.take({ count: count - received.length, bytes: 1e8 }, NEVER)
    received.push(...taken)
    if (taken.length === 0) await session.wait!(100, NEVER)
  }
  return received
}

export async function until(what: string, condition: () => boolean | Promise<boolean>, limit = 60_000): Promise<void> {
  const end = performance.now() + limit
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`within ${limit} ms: ${what}`)
    await systemClock.sleep(20)
  }
}
