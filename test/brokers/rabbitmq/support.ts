import type { Duplex } from 'node:stream'
import amqplib from 'amqplib'
import {
  type AmqpChannel,
  type AmqpClient,
  type AmqpConnection,
  type RabbitmqBroker,
  type RabbitmqOptions,
  type RabbitmqSourceOptions,
  rabbitmq,
} from '../../../src/brokers/rabbitmq/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import type { BrokerFactory } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh } from '../support.ts'

export { fresh, message, NEVER, receive, until } from '../support.ts'

export const client: AmqpClient = amqplib

const both = ['rabbitmq', 'rabbitmq4']
/** For `scale()`: the oldest version of the server always, the newer one beside it in the longer tiers. */
export const SERVERS = { test: ['rabbitmq'], full: both, torture: both }

export function describeServers(
  servers: readonly string[],
  title: string,
  body: (url: () => string, server: string) => void,
): void {
  for (const server of servers) {
    describeWith([server], `${server}: ${title}`, () => body(() => service(server).url, server))
  }
}

/** Reconnects soon: tests have no second to wait for each. */
export const SOON = { min: 50, max: 500, jitter: 50 } as const

/** A broker with an exchange of its own, which it declares. */
export function brokerAt(url: string, options: Partial<RabbitmqOptions> = {}): RabbitmqBroker {
  return rabbitmq({ client, url, exchange: fresh('x'), declare: true, reconnect: SOON, ...options })
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
  socketOf(connection).destroy(new Error('killed'))
}

/** Of amqplib as it is now; only tests reach for it. */
export function socketOf(connection: AmqpConnection): Duplex {
  return (connection as unknown as { connection: { stream: Duplex } }).connection.stream
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
