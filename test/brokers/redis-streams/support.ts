import { randomBytes } from 'node:crypto'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import {
  type RedisStreamsOptions,
  redisStreams,
  type StreamsSourceOptions,
} from '../../../src/brokers/redis-streams/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import type { Delivery, Session } from '../../../src/flow/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'

/** A client that opens no connection by itself: only its settings are wanted. */
export function ioredis(url: string): Redis {
  return new Redis(url, { lazyConnect: true })
}

export function nodeRedis(url: string): object {
  return createClient({ url })
}

let made = 0

/** A name nobody else has. */
export function fresh(prefix = 's'): string {
  return `${prefix}-${randomBytes(5).toString('hex')}-${++made}`
}

export function message(data = '{"n":1}', attributes: { id?: string; key?: string; type?: string } = {}): RawMessage {
  const extensions = attributes.key === undefined ? {} : { partitionkey: attributes.key }
  const { id = `m-${process.pid}-${++made}`, type = 'thing.happened' } = attributes
  return new Message({ id, source: '/test', type, extensions }, data)
}

export const NEVER = new AbortController().signal

export const FEATURES = {
  groups: true,
  competing: true,
  redelivers: true,
  delays: true,
  attempts: true,
  ordered: true,
  deadLetters: true,
  refuses: true,
} as const

/** What the broker suite needs, for a client. */
export function factory(
  name: string,
  client: () => object,
  streamName: () => string = fresh,
  source: Partial<StreamsSourceOptions> = {},
  options: Partial<RedisStreamsOptions> = {},
): BrokerFactory {
  return {
    name,
    features: FEATURES,
    async create() {
      const stream = streamName()
      const broker = redisStreams({ client: client(), ...options })
      const publisher = broker.publisher({ stream })
      return {
        publisher,
        source: (group) => broker.source({ stream, group, batch: 100, ...source }),
        async deadLetters(group) {
          const letters = await broker.source({ stream, group }).deadLetters()
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
export async function receive<D extends Delivery>(session: Session<D>, count: number): Promise<D[]> {
  const received: D[] = []
  for (const end = performance.now() + 15_000; received.length < count; ) {
    if (performance.now() > end) throw new Error(`${received.length} of ${count} have come`)
    received.push(...(await session.take({ count: count - received.length, bytes: 1e6 }, NEVER)))
  }
  return received
}
