import { Redis } from 'ioredis'
import { createClient } from 'redis'
import {
  type RedisStreamsOptions,
  redisStreams,
  type StreamsSourceOptions,
} from '../../../src/brokers/redis-streams/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'
import { fresh } from '../support.ts'

export { fresh, message, NEVER, receive, until } from '../support.ts'

/** A client that opens no connection by itself: only its settings are wanted. */
export function ioredis(url: string): Redis {
  return new Redis(url, { lazyConnect: true })
}

export function nodeRedis(url: string): object {
  return createClient({ url })
}

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
