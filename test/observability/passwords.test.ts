import { createServer } from 'node:net'
import { Redis as IoRedis } from 'ioredis'
import kafkajs from 'kafkajs'
import pg from 'pg'
import { afterEach, beforeEach, test } from 'vitest'
import { kafka } from '../../src/brokers/kafka/index.ts'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { event, type Source } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { listen, sender } from '../brokers/http/support.ts'
import { connecting, broker as nats } from '../brokers/nats/support.ts'
import { brokerAt } from '../brokers/rabbitmq/support.ts'
import { freshTag } from '../redis/support.ts'
import { eventually } from '../support/wait.ts'
import { searched, watch } from './secrets-support.ts'

/** In every address here, as it is and as a URL writes it. */
const PASSWORD = 'hunter2'
const Paid = event<{ n: number }>('card.paid')

let seen: ReturnType<typeof watch>
const ends: (() => unknown)[] = []
beforeEach(() => {
  seen = watch()
})
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
  seen.stop()
})

/** Nobody answers there, or somebody who hangs up on each. */
async function away(how: string): Promise<string> {
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.write('HTTP/1.1 400 Bad Request\r\n\r\n')
    socket.destroySoon()
  })
  const port = await listen(server as never)
  if (how === 'refuses') await new Promise((resolve) => server.close(resolve))
  else ends.push(() => new Promise((resolve) => server.close(resolve)))
  return `app:${PASSWORD}@127.0.0.1:${port}`
}

type Started = { start(): Promise<unknown>; stop(): Promise<unknown>; status(): unknown }

function consumes(source: Source): Started {
  return new Router('billing').on(Paid, () => {}).consume(source as never, { poll: '10ms', maxPoll: '20ms' })
}

function onKafka(at: string) {
  const sasl = { mechanism: 'plain', username: 'app', password: PASSWORD } as const
  return kafka({ client: kafkajs.Kafka, brokers: [at.split('@')[1]!], sasl, timeout: '2s' } as never)
}

/** Sends one event to it. */
async function sends(to: object): Promise<Started> {
  const db = memory()
  await db.withTransaction((tx) => db.outbox.enqueue(tx, Paid({ n: 1 })))
  return new Relay({ from: db.outbox, to: to as never, poll: '10ms', maxPoll: '20ms' })
}

const CASES: Readonly<Record<string, (at: string) => Promise<Started>>> = {
  async 'an outbox on PostgreSQL'(at) {
    const pool = new pg.Pool({ connectionString: `postgres://${at}/shop`, connectionTimeoutMillis: 2000 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    return new Relay({ from: postgres({ pool }).outbox, to: async () => {}, poll: '10ms', maxPoll: '20ms' })
  },
  async 'an outbox on Redis'(at) {
    const client = new IoRedis(`redis://${at}`, { retryStrategy: () => 50 })
    client.on('error', () => {})
    const db = redis({ client, tag: freshTag(), outbox: { kind: 'stored' } })
    ends.push(
      () => client.disconnect(),
      () => db.stop(),
    )
    return new Relay({ from: db.outbox as never, to: async () => {}, poll: '10ms', maxPoll: '20ms' })
  },
  async 'a source of RabbitMQ'(at) {
    const broker = brokerAt(`amqp://${at}/shop`)
    ends.push(() => broker.close())
    return consumes(broker.source({ queue: 'billing' }) as never)
  },
  async 'a publisher of RabbitMQ'(at) {
    const broker = brokerAt(`amqp://${at}/shop`)
    ends.push(() => broker.close())
    return sends(broker)
  },
  async 'a source of NATS'(at) {
    const broker = nats(connecting(`nats://${at}`, { reconnect: false, timeout: 1000 }) as never)
    ends.push(() => broker.close())
    return consumes(broker.source({ group: 'billing' }) as never)
  },
  async 'a publisher of NATS'(at) {
    const broker = nats(connecting(`nats://${at}`, { reconnect: false, timeout: 1000 }) as never)
    ends.push(() => broker.close())
    return sends(broker.publisher())
  },
  async 'a publisher of Kafka'(at) {
    const broker = onKafka(at)
    ends.push(() => broker.close())
    return sends(broker.publisher({ topic: 't' }))
  },
  async 'a publisher of Redis streams'(at) {
    const client = new IoRedis(`redis://${at}`, { retryStrategy: () => 50 })
    client.on('error', () => {})
    const broker = redisStreams({ client })
    ends.push(
      () => client.disconnect(),
      () => broker.close(),
    )
    return sends(broker.publisher({ stream: 's' }))
  },
  async 'a publisher of HTTP'(at) {
    const broker = sender(() => `http://${at}/hooks`)
    ends.push(() => broker.close())
    return sends(broker)
  },
  async 'a source of Kafka'(at) {
    const broker = onKafka(at)
    ends.push(() => broker.close())
    return consumes(broker.source({ topic: 't', group: 'g' }) as never)
  },
  async 'a source of Redis streams'(at) {
    const client = new IoRedis(`redis://${at}`, { retryStrategy: () => 50 })
    client.on('error', () => {})
    const broker = redisStreams({ client })
    ends.push(
      () => client.disconnect(),
      () => broker.close(),
    )
    return consumes(broker.source({ stream: 's', group: 'g' }) as never)
  },
}

test.each(Object.keys(CASES).flatMap((what) => ['refuses', 'hangs up'].map((how) => [what, how] as const)))(
  '%s that %s: the password of its address is nowhere',
  async (what, how) => {
    const worker = await CASES[what]!(await away(how))
    ends.push(() => worker.stop())
    let refused: unknown
    const started = worker.start().catch((error: unknown) => {
      refused = error
    })
    const told = () => seen.lines.some((line) => /"error":|error=/.test(line)) || refused !== undefined
    await eventually('it is told', told, { limit: 20_000, seen: () => seen.lines })
    searched('status', JSON.stringify(worker.status()))
    await worker.stop()
    await started
    const chain: string[] = []
    for (let at = refused as Error | undefined; at !== undefined; at = at.cause as Error | undefined) {
      if (!(at instanceof Error)) break
      // Of errors that are ours; a driver's own is its cause, as it was thrown.
      if (at.constructor.name === 'WaybillError' || at.constructor.name === 'Unavailable') chain.push(at.message)
    }
    searched('what start rejects with', chain.join('\n'))
    searched('logs and metrics', await seen.all())
  },
  40_000,
)
