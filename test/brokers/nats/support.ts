import { randomBytes } from 'node:crypto'
import { connect, type NodeConnectionOptions } from '@nats-io/transport-node'
import { type NatsLike, type NatsOptions, type NatsSourceOptions, nats } from '../../../src/brokers/nats/index.ts'
import { Message, type RawMessage, systemClock } from '../../../src/core/index.ts'
import type { Delivery, Session } from '../../../src/flow/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'

/** How to connect, as a user would say it; quick to come back. */
export function connecting(url: string, options: NodeConnectionOptions = {}) {
  return () =>
    connect({ servers: url, reconnectTimeWait: 50, reconnectJitter: 0, maxReconnectAttempts: -1, ...options })
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

/** Takes until there are so many. */
export async function receive<D extends Delivery>(session: Session<D>, count: number): Promise<D[]> {
  const received: D[] = []
  for (const end = performance.now() + 20_000; received.length < count; ) {
    if (performance.now() > end) throw new Error(`${received.length} of ${count} have come`)
    received.push(...(await session.take({ count: count - received.length, bytes: 1e6 }, NEVER)))
  }
  return received
}

export async function until(what: string, condition: () => Promise<boolean>, limit = 30_000): Promise<void> {
  const end = performance.now() + limit
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`within ${limit} ms: ${what}`)
    await systemClock.sleep(20)
  }
}
