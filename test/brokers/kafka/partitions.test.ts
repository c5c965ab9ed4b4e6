import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type KafkaBroker, kafka } from '../../../src/brokers/kafka/index.ts'
import { dangersOf } from '../../../src/brokers/kafka/setup.ts'
import { Unavailable } from '../../../src/core/index.ts'
import {
  type ConsumerEvents,
  type KafkaBatch,
  type KafkaClient,
  type OutgoingRecord,
  refusal,
} from '../../../src/drivers/kafka/kafka.ts'
import { kafkaJs } from '../../../src/drivers/kafka/kafka-js.ts'
import { DONE, Flow } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

const ONE = { partitions: 1, replication: 1 }

const nothing = async () => {}

/** A client of one topic with one partition, in which nothing happens by itself. */
function still(
  events: (given: ConsumerEvents) => void,
  send: (records: readonly OutgoingRecord[]) => Promise<void> = nothing,
): KafkaClient {
  return {
    driver: 'still',
    producer: async () => ({ send, close: nothing }),
    async consumer(_, given) {
      events(given)
      return { commit: nothing, seek() {}, pause() {}, resume() {}, heartbeat: nothing, close: nothing }
    },
    admin: async () => ({
      partitions: async (topics) => new Map(topics.map((topic) => [topic, 1])),
      create: nothing,
      bounds: async () => [{ partition: 0, low: 0, high: 1000 }],
      committed: async () => [],
      deleteGroup: nothing,
      close: nothing,
    }),
  }
}

describe('kafka: what is read and waits', () => {
  const headers = { ce_specversion: '1.0', ce_id: 'a', ce_source: '/s', ce_type: 't' }

  /** A session that has one partition, and what its client tells it. */
  async function joined(send?: () => Promise<void>) {
    let events: ConsumerEvents | undefined
    const client = still((given) => {
      events = given
    }, send)
    const mine = kafka({ client })
    const opening = mine.source({ topic: 't', group: 'g' }).open(NEVER)
    await until('it has joined', () => events !== undefined)
    events!.joined([{ topic: 't', partition: 0 }])
    return { mine, session: await opening, events: events! }
  }

  /** Long enough for whatever does not wait. */
  async function turns(): Promise<void> {
    for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate)
  }

  test('records wait up to 16 MB, however few they are: nothing more is read until some are taken', async () => {
    const { mine, session, events } = await joined()
    const value = Buffer.alloc(1024 * 1024, 'x')
    const records = Array.from({ length: 20 }, (_, offset) => ({ offset, key: null, value, headers }))
    let read = false
    const reading = events.records({ topic: 't', partition: 0, from: 0, next: 20, records }).then((taken) => {
      read = taken
    })
    await receive(session, 2)
    await turns()
    expect(read).toBe(false)
    await receive(session, 3)
    await reading
    expect(read).toBe(true)
    await session.close()
    await mine.close()
  })

  test('dead letters that are read from their beginning once more, after a rebalance, are listed and sent back once', async () => {
    const sent: OutgoingRecord[] = []
    const client = still(
      () => {},
      async (records) => void sent.push(...records),
    )
    const letter = { offset: 0, key: null, value: Buffer.from('{}'), headers: { ...headers, 'waybill-group': 'g' } }
    const about = { 'waybill-topic': 't', 'waybill-partition': '0', 'waybill-offset': '7' }
    const first = { topic: 't.dead.g', partition: 0, from: 0, next: 1 }
    const batches: KafkaBatch[] = [
      { ...first, records: [{ ...letter, headers: { ...letter.headers, ...about } }] },
      { ...first, records: [{ ...letter, headers: { ...letter.headers, ...about } }] },
      { ...first, from: 1, next: 1000, records: [] },
    ]
    const { consumer } = client
    client.consumer = async (settings, events) => {
      for (const batch of batches) await events.records(batch)
      return await consumer(settings, events)
    }
    const mine = kafka({ client })
    const source = mine.source({ topic: 't', group: 'g' })
    const letters = await source.deadLetters()
    expect(letters.map(({ id, offset }) => [id, offset])).toEqual([['t.dead.g/0/0', 7]])
    expect(await source.rearm(letters[0]!.id)).toBe(1)
    expect(sent.map(({ topic }) => topic)).toEqual(['t', 't.dead.g'])
    await mine.close()
  })

  test('a dead letter that cannot be written: a take says so once, and the next waits for what comes', async () => {
    let refused = 0
    const { mine, session, events } = await joined(async () => {
      refused++
      throw refusal('UNKNOWN_TOPIC', 'gone')
    })
    const give = (offset: number, given: Record<string, string>) => {
      const record = { offset, key: null, value: Buffer.from('no event'), headers: given }
      return events.records({ topic: 't', partition: 0, from: offset, next: offset + 1, records: [record] })
    }
    const take = () => session.take({ count: 1, bytes: 1e6 }, NEVER)
    await give(0, {})
    await expect(take()).rejects.toMatchObject({ code: 'UNKNOWN_TOPIC' })
    for (const offset of [1, 2]) {
      let over = false
      const taking = take().finally(() => {
        over = true
      })
      taking.catch(() => {})
      await turns()
      expect(over).toBe(false)
      await give(offset, headers)
      expect((await taking).map((delivery) => delivery.record.offset)).toEqual([offset])
      await expect(take()).rejects.toMatchObject({ code: 'UNKNOWN_TOPIC' })
    }
    expect(refused).toBeGreaterThan(1)
    await session.close()
    await mine.close()
  })

  /** Two partitions, a record that nobody can read in the first, and a take that has said so. */
  async function inTrouble() {
    const resumed: number[] = []
    let events: ConsumerEvents | undefined
    const client = still(
      (given) => {
        events = given
      },
      async () => {
        throw refusal('UNKNOWN_TOPIC', 'gone')
      },
    )
    const { consumer } = client
    client.consumer = async (settings, given) => ({
      ...(await consumer(settings, given)),
      resume: ({ partition }) => void resumed.push(partition),
    })
    const mine = kafka({ client })
    const opening = mine.source({ topic: 't', group: 'g', ahead: 10 }).open(NEVER)
    await until('it has joined', () => events !== undefined)
    events!.joined([0, 1].map((partition) => ({ topic: 't', partition })))
    const session = await opening
    const bad = { offset: 0, key: null, value: Buffer.from('no event'), headers: {} }
    await events!.records({ topic: 't', partition: 0, from: 0, next: 1, records: [bad] })
    const take = () => session!.take({ count: 1, bytes: 1e6 }, NEVER)
    await expect(take()).rejects.toMatchObject({ code: 'UNKNOWN_TOPIC' })
    return { mine, session: session!, events: events!, resumed, take }
  }

  test('while a dead letter cannot be written, what is passed over in another partition does not end its reading', async () => {
    const { mine, session, events, resumed, take } = await inTrouble()
    const records = Array.from({ length: 12 }, (_, offset) => ({ offset, key: null, value: null, headers: {} }))
    events.records({ topic: 't', partition: 1, from: 0, next: 12, records }).catch(() => {})
    await turns()
    const taking = take()
    await turns()
    await session.close()
    expect(await taking).toEqual([])
    expect(resumed).toEqual([1])
    await mine.close()
  })

  test('a dead letter that is for another member to write, after a rebalance, is no trouble any more', async () => {
    const { mine, session, events, take } = await inTrouble()
    events.joined([{ topic: 't', partition: 1 }])
    await until('it goes on', () => session.live!())
    for (let i = 0; i < 3; i++) {
      let taken: unknown
      const taking = take().then((all) => (taken = all))
      taking.catch(() => {})
      await turns()
      expect(taken).toEqual([])
    }
    await session.close()
    await mine.close()
  })
})

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

  test.each<[string, (at: number) => { key: string; value: string | null; headers?: Record<string, string> }]>([
    ['tombstones', (at) => ({ key: `k${at}`, value: null })],
    [
      'what was sent back to another group',
      (at) => ({ key: `k${at}`, value: '{}', headers: { 'waybill-only-for': 'x' } }),
    ],
    ['what nobody can read', (at) => ({ key: `k${at}`, value: 'no event' })],
  ])('reading that has paused goes on when the rest is %s, which nobody settles', async (_, made) => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: ONE })
    await publisher.start!()
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, create: ONE, ahead: 10 })
    const session = await source.open(NEVER)
    const producer = bare(service('kafka').url).producer()
    await producer.connect()
    await producer.send({ topic, messages: Array.from({ length: 30 }, (_, at) => made(at)) })
    await producer.disconnect()
    const none: unknown[] = []
    await until('they are passed over', async () => {
      none.push(...(await session.take({ count: 5, bytes: 1e6 }, NEVER)))
      return (await source.stats())[0]!.committed === 30
    })
    expect(none).toEqual([])
    const sent = message()
    await publisher.publish([sent], NEVER)
    expect((await receive(session, 1)).map((delivery) => delivery.message.id)).toEqual([sent.id])
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
      'who was behind may lead',
      { replication: 3, settings: { 'unclean.leader.election.enable': 'true' } },
      false,
      /unclean.*what it had not is lost/,
    ],
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
