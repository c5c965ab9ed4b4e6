import { connect, type NodeConnectionOptions } from '@nats-io/transport-node'
import { type NatsLike, type NatsOptions, type NatsSourceOptions, nats } from '../../../src/brokers/nats/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'
import { fresh, message } from '../support.ts'

export { fresh, message, NEVER, receive, until } from '../support.ts'

/** How to connect, as a user would say it; quick to come back. */
export function connecting(url: string, options: NodeConnectionOptions = {}) {
  return () =>
    connect({ servers: url, reconnectTimeWait: 50, reconnectJitter: 0, maxReconnectAttempts: -1, ...options })
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

/** A broker with a stream of its own, which takes every subject below its name. */
export function broker(connection: NatsLike, options: Partial<NatsOptions> = {}) {
  const stream = options.stream ?? fresh()
  const create = { subjects: [`${stream}.>`] }
  return nats({ connection, stream, create, ...options })
}

/** What the broker suite needs. */
export function factory(
  name: string,
  connection: () => NatsLike | Promise<NatsLike>,
  source: Partial<NatsSourceOptions> = {},
): BrokerFactory {
  return {
    name,
    features: FEATURES,
    async create() {
      const mine = broker(await connection())
      const publisher = mine.publisher({ subject: `${mine.stream}.events` })
      return {
        publisher,
        source: (group) => mine.source({ group, create: true, ...source }),
        async deadLetters(group) {
          const letters = await mine.source({ group }).deadLetters()
          return letters.map((letter) => ({ message: letter.message!, reason: letter.reason }))
        },
        // The server takes one megabyte.
        refused: () => message(JSON.stringify('x'.repeat(1_100_000))),
        async close() {
          await publisher.close()
          await mine.close()
        },
      }
    },
  }
}
