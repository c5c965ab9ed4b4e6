import { afterAll, beforeAll, expect, test } from 'vitest'
import type { KafkaBroker } from '../../../src/brokers/kafka/index.ts'
import { DONE } from '../../../src/flow/index.ts'
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
})
