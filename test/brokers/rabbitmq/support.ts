import { randomBytes } from 'node:crypto'
import amqplib from 'amqplib'
import {
  type AmqpChannel,
  type AmqpClient,
  type AmqpConnection,
  type Rabbitmq,
  type RabbitmqOptions,
  type RabbitmqSourceOptions,
  rabbitmq,
} from '../../../src/brokers/rabbitmq/index.ts'
import { Message, type RawMessage, systemClock } from '../../../src/core/index.ts'
import type { Delivery, Session } from '../../../src/flow/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'

export const client: AmqpClient = amqplib

let made = 0

/** A name nobody else has. */
export function fresh(prefix = 'q'): string {
  return `${prefix}-${randomBytes(5).toString('hex')}-${++made}`
}

export function message(
  data = '{"n":1}',
  attributes: { id?: string; key?: string; type?: string; extensions?: Record<string, string | number> } = {},
): RawMessage {
  const key = attributes.key === undefined ? {} : { partitionkey: attributes.key }
  const { id = `m-${process.pid}-${++made}`, type = 'thing.happened' } = attributes
  return new Message({ id, source: '/test', type, extensions: { ...key, ...attributes.extensions } }, data)
}

export const NEVER = new AbortController().signal

/** Reconnects soon: tests have no second to wait for each. */
export const SOON = { min: 50, max: 500, jitter: 50 } as const

/** A broker with an exchange of its own, which it declares. */
export function brokerAt(url: string, options: Partial<RabbitmqOptions> = {}): Rabbitmq {
  return rabbitmq({ client, url, exchange: fresh('x'), declare: true, reconnect: SOON, ...options })
}

export async function until(what: string, condition: () => unknown, limit = 60_000): Promise<void> {
  const end = performance.now() + limit
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`within ${limit} ms: ${what}`)
    await systemClock.sleep(20)
  }
}

/** Takes until there are so many. */
export async function receive<D extends Delivery>(session: Session<D>, count: number): Promise<D[]> {
  const received: D[] = []
  for (const end = performance.now() + 30_000; received.length < count; ) {
    if (performance.now() > end) throw new Error(`${received.length} of ${count} have come`)
    const taken = await session.take({ count: count - received.length, bytes: 1e8 }, NEVER)
    received.push(...taken)
    if (taken.length === 0) await session.wait!(100, NEVER)
  }
  return received
}

/** As somebody else would use the server: without us. */
export async function plainly<T>(url: string, work: (channel: amqplib.ConfirmChannel) => Promise<T>): Promise<T> {
  const connection = await amqplib.connect(url)
  connection.on('error', () => {})
  try {
    const channel = await connection.createConfirmChannel()
    channel.on('error', () => {})
    return await work(channel)
  } finally {
    await connection.close().catch(() => {})
  }
}

/** Removes what sources of these queues have declared. */
export async function dropQueues(url: string, ...queues: readonly string[]): Promise<void> {
  const parts = ['', '.dead', '.retry.1000ms', '.retry.10000ms', '.retry.60000ms', '.retry.600000ms']
  await plainly(url, async (channel) => {
    for (const queue of queues) for (const part of parts) await channel.deleteQueue(queue + part)
  })
}

/** As a crash does: the connection ends without a word. */
export function sever(connection: AmqpConnection): void {
  const { stream } = connection.connection as { stream: { destroy(error: Error): void } }
  stream.destroy(new Error('killed'))
}

/** A client that remembers every connection and channel it made, to be harmed. */
export function spiedClient(): { client: AmqpClient; connections: AmqpConnection[]; channels: AmqpChannel[] } {
  const connections: AmqpConnection[] = []
  const channels: AmqpChannel[] = []
  return {
    connections,
    channels,
    client: {
      async connect(url, options) {
        const connection = await amqplib.connect(url, options)
        const create = connection.createChannel.bind(connection)
        connection.createChannel = async (given) => {
          const channel = await create(given)
          channels.push(channel)
          return channel
        }
        connections.push(connection)
        return connection
      },
    },
  }
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

export function factory(
  name: string,
  url: () => string,
  source: Partial<RabbitmqSourceOptions> = {},
  options: Partial<RabbitmqOptions> = {},
): BrokerFactory {
  return {
    name,
    features: FEATURES,
    async create() {
      const broker = brokerAt(url(), options)
      const prefix = fresh()
      const groups = new Set<string>()
      const sourceOf = (group: string) => {
        groups.add(`${prefix}.${group}`)
        // More than any case leaves unsettled.
        return broker.source({ queue: `${prefix}.${group}`, prefetch: 2000, ...source })
      }
      return {
        publisher: broker,
        source: sourceOf,
        async deadLetters(group) {
          const letters = await sourceOf(group).deadLetters()
          return letters.map(({ message, reason }) => ({ message: message!, reason }))
        },
        // JSON cannot hold it; nobody noticed before.
        refused: () => new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
        async close() {
          await broker.close()
          await dropQueues(url(), ...groups)
        },
      }
    },
  }
}
