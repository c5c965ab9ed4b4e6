/** Samples of the guides on brokers, and the second one on Redis: each is run here, as it stands. */
import { beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { freePort } from '../../scripts/services/ports.ts'
import { httpSender } from '../../src/brokers/http/index.ts'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import type { RawMessage } from '../../src/core/index.ts'
import { Router } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { redis } from '../../src/redis/index.ts'
import { onServer, QUICK } from '../brokers/kafka/support.ts'
import { connecting, broker as natsBroker } from '../brokers/nats/support.ts'
import { brokerAt, dropQueues } from '../brokers/rabbitmq/support.ts'
import { ioredis } from '../brokers/redis-streams/support.ts'
import { fresh, message, NEVER, receive } from '../brokers/support.ts'
import { admin as redisAt, standalone } from '../support/redis-topologies.ts'
import { describeWith, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { OrderPlaced, play, playUntil } from './play.ts'

// Samples log to the console.
let log = vi.spyOn(console, 'log')
beforeEach(() => {
  log = vi.spyOn(console, 'log').mockImplementation(() => {})
  onTestFinished(() => log.mockRestore())
})

interface Source {
  open(signal?: AbortSignal): Promise<unknown>
}

/** Publishes these and settles each as dead. The session is opened first: it declares what they go through. */
async function bury(source: Source, publish: (messages: RawMessage[]) => Promise<unknown>, ...ids: readonly string[]) {
  const session = (await source.open(NEVER)) as Parameters<typeof receive>[0]
  await publish(ids.map((id) => message('{}', { id, type: 'order.placed' })))
  const deliveries = await receive(session, ids.length)
  const dead = { kind: 'dead', reason: 'the card is gone', error: undefined } as const
  await session.settle(deliveries.map((delivery) => [delivery, dead]))
  await session.close()
}

/** What a sample takes and gives without a server: nothing of it connects before it is started. */
const wired = () => ({ db: memory(), billing: new Router('billing').on(OrderPlaced, () => {}) })

test('rabbitmq, nats, kafka: a relay and a consumer, which connect when they start', async () => {
  const made = [await play('rabbitmq', 1, wired()), await play('nats', 1, wired()), await play('kafka', 1, wired())]
  for (const { relay, consumer } of made) {
    expect([relay.status().state, consumer.status().state]).toEqual(['stopped', 'stopped'])
  }
})

test('http: an event that is sent is handled once, and everything ends at a SIGTERM', async () => {
  const [port, secret] = [await freePort(), `whsec_${Buffer.alloc(32, 7).toString('base64')}`]
  vi.stubEnv('PORT', String(port)).stubEnv('HOOK_SECRET', secret)
  onTestFinished(() => void vi.unstubAllEnvs())
  const url = `http://127.0.0.1:${port}/hooks`
  const sender = httpSender({ url, secrets: [secret], allow: ['127.0.0.1'] })
  const handle = vi.fn(async () => {})
  const order = OrderPlaced({ orderId: 'A-1', total: 30 })
  await playUntil('http', 1, { db: memory(), OrderPlaced, handle }, async () => {
    const sent = async () => (await sender.publish([order] as never, NEVER))[0]!.kind === 'ok'
    await eventually('it is answered', sent)
    expect(await sent()).toBe(true)
  })
  await sender.close()
  expect(handle).toHaveBeenCalledOnce()
  await expect(fetch(url)).rejects.toThrow('fetch failed')
})

describeWith(['rabbitmq'], 'the sample on dead letters of RabbitMQ', () => {
  test('rabbitmq: they are listed, one is sent back, those without an attempt are dropped', async () => {
    const [broker, queue] = [brokerAt(service('rabbitmq').url), fresh('billing')]
    const source = broker.source({ queue, topics: ['order.*'] })
    await bury(source, (messages) => broker.publisher().publish(messages, NEVER), 'the id', 'another')
    await play('rabbitmq', 2, { broker: { source: () => source } })
    expect(log.mock.calls.map(([id, attempts, reason]) => [id, attempts, reason])).toEqual([
      ['the id', 1, 'the card is gone'],
      ['another', 1, 'the card is gone'],
    ])
    expect((await source.deadLetters()).map(({ id }) => id)).toEqual(['another'])
    await broker.stop()
    await dropQueues(service('rabbitmq').url, queue)
  })
})

describeWith(['nats'], 'the sample on dead letters of NATS', () => {
  test('nats: they are listed; numbers that are not there change nothing', async () => {
    const broker = natsBroker(connecting(service('nats').url))
    const source = broker.source({ group: 'billing', create: true })
    const publisher = broker.publisher({ subject: `${broker.stream}.orders` })
    await bury(source, (messages) => publisher.publish(messages, NEVER), 'A-1')
    await play('nats', 2, { broker: { source: () => source } })
    expect(log.mock.calls).toEqual([['1', 'the card is gone', 1, `${broker.stream}.orders`, expect.any(Object)]])
    expect(await source.deadLetters()).toHaveLength(1)
    await publisher.close()
    await broker.close()
  })
})

describeWith(['kafka'], 'the sample on dead letters of Kafka', () => {
  test('kafka: they are listed and sent back', async () => {
    const [broker, topic] = [onServer(service('kafka').url), fresh('orders')]
    const source = broker.source({ topic, group: fresh('billing'), ...QUICK })
    const publisher = broker.publisher({ topic, create: QUICK.create })
    await publisher.start?.()
    await bury(source, (messages) => publisher.publish(messages, NEVER), 'A-1', 'B-2')
    const { letters } = await play('kafka', 2, { broker: { source: () => source } })
    expect(letters.map(({ reason }: { reason: string }) => reason)).toEqual(['the card is gone', 'the card is gone'])
    expect(await source.deadLetters()).toEqual([])
    await publisher.close?.()
    await broker.close()
  })
})

describeWith(['redis'], 'samples of the guides on Redis', () => {
  test('redis-streams: a publisher, a source and a trimmer', async () => {
    const { client, broker } = await play('redis-streams', 1, { url: (await standalone()).url })
    await broker.close()
    client.disconnect()
  })

  test('redis: a message that was applied in part is forgotten and sent back', async () => {
    const server = await standalone()
    const client = redisAt(server)
    const db = redis({ client, tag: 'shop' })
    const streams = redisStreams({ client: ioredis(server.url) })
    const source = streams.source({ stream: 'order.placed', group: 'billing' })
    const publisher = streams.publisher()
    await bury(source, (messages) => publisher.publish(messages, NEVER), 'A-1')
    const claim = '{shop}:inbox:["billing","/shop","A-1"]'
    await client.set(claim, 'partly')
    const [letter] = await source.deadLetters()
    await play('redis', 2, { db, source, letter })
    expect(await client.exists(claim)).toBe(0)
    expect(await source.deadLetters()).toEqual([])
    await streams.close()
    await db.stop()
  })
})
