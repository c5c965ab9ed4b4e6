import { connect } from '@nats-io/transport-node'
import kafkajs from 'kafkajs'
import { expect, test } from 'vitest'
import { kafka } from '../../src/brokers/kafka/index.ts'
import { nats } from '../../src/brokers/nats/index.ts'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { type Delivery, Flow, type Publisher, type Source } from '../../src/flow/index.ts'
import { Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { standalone } from '../support/redis-topologies.ts'
import { describeWith, service } from '../support/services.ts'
import { kafkaWithPassword } from './kafka/private.ts'
import { privateNats } from './nats/private.ts'
import { brokerAt, client, SOON } from './rabbitmq/support.ts'
import { ioredis, nodeRedis } from './redis-streams/support.ts'
import { fresh, message, until } from './support.ts'

interface Closing {
  close(): Promise<void>
}

/** A broker behind an address that refuses, and how a message gets there when it does not. */
const brokers: Record<string, (url: string) => { publisher: Publisher; broker: Closing }> = {
  rabbitmq(url) {
    const broker = brokerAt(url, { unroutable: 'ok' })
    return { broker, publisher: broker.publisher() }
  },
  redis(url) {
    const broker = redisStreams({ client: ioredis(url), timeout: 2000 })
    return { broker, publisher: broker.publisher({ stream: fresh() }) }
  },
  nats(url) {
    const stream = fresh()
    const connection = () => connect({ servers: url, reconnect: false, timeout: 2000 })
    const broker = nats({ connection, stream, create: { subjects: [`${stream}.>`] } })
    return { broker, publisher: broker.publisher({ subject: `${stream}.a` }) }
  },
  kafka(url) {
    const broker = kafka({ client: kafkajs.Kafka, brokers: [new URL(url).host], timeout: 2000 })
    return { broker, publisher: broker.publisher({ topic: fresh(), create: { partitions: 1, replication: 1 } }) }
  },
}

for (const kind of ['rabbitmq', 'redis', 'nats', 'kafka'] as const) {
  describeWith([kind], `${kind} is away when a relay starts`, () => {
    test('it starts, says so, pauses, and publishes when the server comes', async () => {
      const { url } = service(kind)
      const { hostname, port } = new URL(url)
      await using proxy = await faultProxy({ host: hostname, port: Number(port) })
      await proxy.refuse()
      const { broker, publisher } = brokers[kind]!(proxy.url(url))
      const db = memory()
      const quick = { poll: 20, outage: { min: 50, max: 200 } } as const
      const relay = new Relay({ from: db.outbox, to: publisher, name: fresh('relay'), ...quick })
      const warnings = recordTelemetry(['warning'])
      await db.withTransaction((tx) => db.outbox.enqueue(tx, message()))
      await relay.start()
      const told = warnings.of('warning').map(({ message: text }) => text)
      warnings.stop()
      expect(told).toEqual([expect.stringMatching(/cannot be reached yet: .*cannot connect to/)])
      await until('it says why it waits', () => /cannot connect to/.test(relay.status().reason ?? ''))
      expect(['failing', 'paused', 'waiting']).toContain(relay.status().state)
      await proxy.restore()
      await until('it is published', async () => (await db.outbox.admin.stats()).states.published.count === 1)
      expect((await db.outbox.admin.list())[0]).toMatchObject({ attempts: 0 })
      await until('it runs', () => relay.status().state === 'running')
      await relay.stop()
      await publisher.close?.()
      await broker.close()
    })
  })
}

describeWith(['rabbitmq'], 'a login that RabbitMQ refuses', () => {
  const url = () => service('rabbitmq').url
  const refused: [string, () => string, RegExp][] = [
    ['a wrong password', () => url().replace('guest:guest', 'guest:s3cret'), /user "guest" was refused/],
    ['a wrong virtual host', () => `${url()}/nowhere`, /virtual host "nowhere" does not exist/],
  ]
  test.each(refused)('%s is an error of start() of a relay, and of its publisher', async (_, place, text) => {
    const broker = brokerAt(place(), { client, reconnect: SOON })
    const relay = new Relay({ from: memory().outbox, to: broker })
    const error = await relay.start().catch((caught: unknown) => caught)
    expect(error).toMatchObject({ code: 'ACCESS_REFUSED', message: expect.stringMatching(text) })
    expect(String(error)).not.toContain('s3cret')
    await expect(broker.start()).rejects.toMatchObject({ code: 'ACCESS_REFUSED' })
    await broker.close()
  })
})

describeWith(['redis'], 'a login that Redis refuses', () => {
  test('is an error of start(), of a relay and of a consumer', async () => {
    const { url } = await standalone({ requirepass: 'right' })
    for (const place of [url, url.replace('://', '://default:wrong@')]) {
      for (const driver of [ioredis, nodeRedis]) {
        const broker = redisStreams({ client: driver(place), timeout: 2000 })
        await refusedBy(broker.publisher({ stream: fresh() }), broker.source({ stream: fresh(), group: 'g' }))
        await broker.close()
      }
    }
  })

  test('so is a user who may not read, and a server that may lose what must not be lost', async () => {
    const { url } = await standalone({ appendonly: 'no' })
    await ioredis(url).call('ACL', 'SETUSER', 'ann', 'on', '>right', '+@connection', '+cluster', '+info', '~*')
    const ann = redisStreams({ client: ioredis(url.replace('://', '://ann:right@')), timeout: 2000 })
    await expect(consumer(ann.source({ stream: fresh(), group: 'g' })).start()).rejects.toMatchObject({
      code: 'ACCESS_REFUSED',
    })
    const strict = redisStreams({ client: ioredis(url), durability: { required: true } })
    const from = strict.source({ stream: fresh(), group: 'g' })
    await expect(consumer(from).start()).rejects.toMatchObject({ code: 'NOT_DURABLE' })
    for (const broker of [ann, strict]) await broker.close()
  })
})

describeWith(['nats'], 'a login that NATS refuses', () => {
  test('is an error of start(), of a relay and of a consumer', async () => {
    const { url } = await privateNats('authorization { user: ann, password: right }')
    for (const login of [{}, { user: 'ann', pass: 'wrong' }]) {
      const connection = () => connect({ servers: url, reconnect: false, ...login })
      const broker = nats({ connection, stream: 'S', timeout: 2000 })
      await refusedBy(broker.publisher(), broker.source({ group: 'g' }))
      await broker.close()
    }
  })
})

describeWith(['kafka'], 'a login that Kafka refuses', () => {
  test('is an error of start(), of a relay and of a consumer', async () => {
    const url = await kafkaWithPassword('ann', 'right')
    const sasl = { mechanism: 'plain', username: 'ann', password: 'wrong' }
    const broker = kafka({ client: kafkajs.Kafka, brokers: [new URL(url).host], sasl, timeout: 5000 })
    await refusedBy(broker.publisher({ topic: fresh() }), broker.source({ topic: fresh(), group: fresh() }))
    await broker.close()
  })
})

/** Both are told at once that this user is refused, and not in words that hold the password. */
async function refusedBy(publisher: Publisher, from: Source): Promise<void> {
  const relay = new Relay({ from: memory().outbox, to: publisher })
  for (const worker of [relay, consumer(from)]) {
    const error = await worker.start().catch((caught: unknown) => caught)
    expect(error).toMatchObject({ code: 'ACCESS_REFUSED' })
    expect(String(error)).not.toMatch(/wrong/)
  }
}

function consumer(from: Source): Flow<Delivery> {
  return new Flow({ name: fresh('flow'), from, step: { each: () => {} } })
}
