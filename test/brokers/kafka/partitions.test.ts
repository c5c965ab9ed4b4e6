import { afterAll, beforeAll, expect, test } from 'vitest'
import { type KafkaBroker, kafka } from '../../../src/brokers/kafka/index.ts'
import { dangersOf } from '../../../src/brokers/kafka/setup.ts'
import { Unavailable } from '../../../src/core/index.ts'
import type { KafkaClient } from '../../../src/drivers/kafka/kafka.ts'
import { kafkaJs } from '../../../src/drivers/kafka/kafka-js.ts'
import { DONE, Flow } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

const ONE = { partitions: 1, replication: 1 }

describeWith(['kafka'], 'kafka partitions', () => {
  let broker: KafkaBroker
  beforeAll(() => {
    broker = onServer(service('kafka').url)
  })
  afterAll(() => broker.close())

  test('a partition that was added later is read from its beginning, also where a group began with what came', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: ONE })
    await publisher.start!()
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, start: 'latest' })
    await (await source.open(NEVER)).close()
    const admin = bare(service('kafka').url).admin()
    await admin.connect()
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    const sent = Array.from({ length: 40 }, () => message())
    const other = broker.publisher({ topic })
    await until('the new ones are known', async () => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      return topics[0]!.partitions.length === 4
    })
    await other.publish(sent, NEVER)
    await admin.disconnect()
    const session = await source.open(NEVER)
    const got = await receive(session, 40)
    expect(new Set(got.map(({ from }) => from.partition)).size).toBe(4)
    await session.settle(got.map((delivery) => [delivery, DONE]))
    await session.close()
    await publisher.close!()
    await other.close!()
  })

  test('a topic that was just created and is not known everywhere yet is an outage, and no refusal', async () => {
    const client = bare(service('kafka').url)
    const admin = client.admin.bind(client)
    // What kafkajs throws when several topics are created at once on a busy server.
    const cause = Object.assign(new Error('does not host this topic-partition'), { type: 'UNKNOWN_TOPIC_OR_PARTITION' })
    client.admin = (config) => {
      const inner = admin(config)
      const createTopics = async (given: Parameters<typeof inner.createTopics>[0]) => {
        await inner.createTopics(given)
        throw cause
      }
      return { ...inner, createTopics }
    }
    const mine = kafka({ client })
    const publisher = mine.publisher({ topic: fresh(), create: ONE })
    await expect(publisher.start!()).rejects.toBeInstanceOf(Unavailable)
    expect(await publisher.publish([message()], NEVER)).toMatchObject([{ kind: 'ok' }])
    await mine.close()
  })

  test('a group that begins with what comes does so in all partitions at once, whoever of it reads them', async () => {
    const { url } = service('kafka')
    const [topic, group] = [fresh(), fresh('g')]
    const three = { partitions: 3, replication: 1 }
    const publisher = broker.publisher({ topic, create: three })
    await publisher.publish(
      Array.from({ length: 30 }, () => message()),
      NEVER,
    )
    // As if others of the group had been given the other partitions, and were slow to look where to begin.
    const inner = kafkaJs(bare(url) as never)
    const first: KafkaClient = {
      ...inner,
      consumer: (settings, events) =>
        inner.consumer(settings, {
          joined: (places) => events.joined(places.filter(({ partition }) => partition === 0)),
          revoked: (reason) => events.revoked(reason),
          alive: () => events.alive(),
          records: (batch) => events.records(batch),
          skipped: (place, next) => events.skipped(place, next),
          ended: (error) => events.ended(error),
        }),
    }
    const mine = kafka({ client: first })
    await (await mine.source({ topic, group, ...QUICK, create: three, start: 'latest' }).open(NEVER)).close()
    await mine.close()
    const source = broker.source({ topic, group, ...QUICK, create: three, start: 'latest' })
    expect((await source.stats()).map(({ lag }) => lag)).toEqual([0, 0, 0])
    const session = await source.open(NEVER)
    const next = Array.from({ length: 6 }, () => message())
    await publisher.publish(next, NEVER)
    const got = await receive(session, 6)
    expect(got.map((delivery) => delivery.message.id).sort()).toEqual(next.map(({ id }) => id).sort())
    await session.close()
    await publisher.close!()
  })

  test('reading pauses behind a record that is not done, and goes on when it is', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: ONE })
    const batch = (size: number) => Array.from({ length: size }, () => message(JSON.stringify('x'.repeat(1000))))
    await publisher.publish(batch(10), NEVER)
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, create: ONE, ahead: 10 })
    const session = await source.open(NEVER)
    const [head, ...others] = await receive(session, 10)
    await session.settle(others.map((delivery) => [delivery, DONE]))
    await publisher.publish(batch(10), NEVER)
    // Long enough for several fetches, were there any.
    await session.wait(500, NEVER)
    expect(await session.take({ count: 100, bytes: 1e9 }, NEVER)).toEqual([])
    await session.settle([[head!, DONE]])
    await session.settle((await receive(session, 10)).map((delivery) => [delivery, DONE]))
    expect((await source.stats())[0]).toMatchObject({ committed: 20, lag: 0 })
    await session.close()
    await publisher.close!()
  })

  test('a partition that is paused when a rebalance comes is read again afterwards', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: { partitions: 2, replication: 1 } })
    const batch = (size: number) => Array.from({ length: size }, (_, i) => message('{}', { key: `k${i}` }))
    await publisher.publish(batch(60), NEVER)
    const group = fresh('g')
    const source = () => broker.source({ topic, group, ...QUICK, ahead: 5 })
    const [first, other] = [source(), source()]
    const session = await first.open(NEVER)
    // Unsettled, so that reading pauses in both partitions.
    await receive(session, 2)
    await session.wait(300, NEVER)
    // Another comes and goes: two rebalances, after which all partitions are ours again.
    const visiting = other.open(NEVER)
    await until('the session is lost', () => session.lost.aborted)
    await session.close()
    await (await visiting).close()
    const sent = batch(20)
    await publisher.publish(sent, NEVER)
    const seen = new Set<string>()
    const flow = new Flow({
      name: fresh('again'),
      from: first,
      step: { each: ({ message: { id } }) => void seen.add(id) },
      outage: { min: 20, max: 100 },
    })
    await flow.start()
    await until('all were handled', () => seen.size === 80, 30_000)
    await flow.stop()
    await publisher.close!()
  })

  test('settings that lose records are told once, and tombstones are no dead letters', async () => {
    const topic = fresh()
    const admin = bare(service('kafka').url).admin()
    await admin.connect()
    const configEntries = [{ name: 'cleanup.policy', value: 'compact' }]
    await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1, configEntries }] })
    await admin.disconnect()
    const recorder = recordTelemetry(['warning'])
    const source = broker.source({ topic, group: fresh('g'), ...QUICK })
    const session = await source.open(NEVER)
    const told = recorder.of('warning').map(({ message: text }) => text)
    expect(told.filter((text) => text.includes(`topic ${topic} has one copy`))).toHaveLength(1)
    expect(told.filter((text) => text.includes(`topic ${topic} is compacted`))).toHaveLength(1)
    expect(told.filter((text) => /removes dead letters|min\.insync/.test(text))).toEqual([])
    const producer = bare(service('kafka').url).producer()
    await producer.connect()
    await producer.send({ topic, messages: [{ key: 'k', value: null }] })
    const event = { ce_specversion: '1.0', ce_id: 'e', ce_source: '/s', ce_type: 't' }
    await producer.send({ topic, messages: [{ key: 'k', value: null, headers: event }] })
    await producer.disconnect()
    const [delivery] = await receive(session, 1)
    expect(delivery!.message.id, 'an event without data is an event').toBe('e')
    await session.settle([[delivery!, { kind: 'dead', reason: 'why', error: undefined }]])
    expect((await source.stats())[0]).toMatchObject({ committed: 2, lag: 0 })
    const letters = await source.deadLetters()
    expect(letters).toMatchObject([{ value: null, reason: 'why' }])
    expect(recorder.of('warning').filter(({ message: text }) => text.includes('tombstones'))).toHaveLength(1)
    expect(await source.rearm(letters[0]!.id)).toBe(1)
    const [again] = await receive(session, 1)
    expect([again!.message.id, again!.record.value]).toEqual(['e', null])
    recorder.stop()
    await session.close()
  })

  test.each([
    ['one of two in sync is enough', { replication: 3, settings: { 'min.insync.replicas': '1' } }, false, /insync/],
    [
      'dead letters that go',
      { replication: 3, settings: { 'cleanup.policy': 'delete', 'retention.ms': '3600000' } },
      true,
      /after 1 h/,
    ],
    [
      'compacted dead letters',
      { replication: 3, settings: { 'cleanup.policy': 'compact' } },
      true,
      /nobody has looked at/,
    ],
  ])('a danger: %s', (_, kept, letters, text) => {
    expect(dangersOf({ topic: 't', ...kept }, letters)).toEqual([expect.stringMatching(text)])
    const fine = { 'min.insync.replicas': '2', 'cleanup.policy': 'delete', 'retention.ms': '-1' }
    expect(dangersOf({ topic: 't', replication: 3, settings: fine }, letters)).toEqual([])
  })
})
