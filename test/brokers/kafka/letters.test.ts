import kafkajs from 'kafkajs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { KafkaBroker } from '../../../src/brokers/kafka/index.ts'
import { DONE } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

const ONE = { partitions: 1, replication: 1 }
const LARGE = 'x'.repeat(30_000)

describeWith(['kafka'], 'kafka: dead letters that their topic does not take', () => {
  let broker: KafkaBroker
  const url = () => service('kafka').url
  beforeAll(() => {
    broker = onServer(url())
  })
  afterAll(() => broker.close())

  /** A group whose topic for letters takes 20 kB, or as it is set. */
  async function prepared(settings: Record<string, string> = { 'max.message.bytes': '20000' }) {
    const [topic, group] = [fresh(), fresh('g')]
    const admin = bare(url()).admin()
    await admin.connect()
    const configEntries = Object.entries(settings).map(([name, value]) => ({ name, value }))
    await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
    await admin.createTopics({ topics: [{ topic: `${topic}.dead.${group}`, numPartitions: 1, configEntries }] })
    await admin.disconnect()
    return { topic, source: broker.source({ topic, group, ...QUICK, create: ONE }) }
  }

  async function write(topic: string, ...messages: kafkajs.Message[]): Promise<void> {
    const producer = bare(url()).producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner })
    await producer.connect()
    await producer.send({ topic, messages })
    await producer.disconnect()
  }

  test('what is too large is buried without its value, those behind it are handled, and it is re-armed whole', async () => {
    const { topic, source } = await prepared()
    const warnings = recordTelemetry(['warning'])
    await write(
      topic,
      { key: 'a', value: `no event ${LARGE}` },
      { key: 'b', value: 'no event', headers: { large: LARGE } },
      { key: LARGE, value: 'no event' },
      { key: null, value: 'no event either' },
    )
    const publisher = broker.publisher({ topic })
    const sent = [message(JSON.stringify(LARGE), { id: 'large' }), message('{}', { id: 'good' })]
    expect(await publisher.publish(sent, NEVER)).toMatchObject([{ kind: 'ok' }, { kind: 'ok' }])
    const session = await source.open(NEVER)
    const [large, good] = await receive(session, 2)
    expect([large!.message.id, good!.message.id]).toEqual(['large', 'good'])
    await session.settle([
      [large!, { kind: 'dead', reason: 'refused', error: undefined }],
      [good!, DONE],
    ])
    expect((await source.stats())[0]).toMatchObject({ lag: 0 })
    const letters = await source.deadLetters()
    expect(letters.map(({ offset, whole, reason, value }) => [offset, whole, reason, value!.length])).toEqual([
      [0, false, expect.stringContaining('MALFORMED'), 0],
      [1, false, expect.stringContaining('MALFORMED'), 0],
      [2, false, expect.stringContaining('MALFORMED'), 0],
      [3, true, expect.stringContaining('MALFORMED'), 15],
      [4, false, 'refused', 0],
    ])
    const told = warnings.of('warning').map(({ message }) => message)
    expect(told.filter((text) => text.includes('is there without its value'))).toHaveLength(4)
    expect(told.join()).not.toContain('xxx')
    // Nothing of it is handled as an empty message.
    expect(letters[4]!.message).toBeUndefined()
    expect(await source.rearm([letters[4]!.id, letters[3]!.id])).toBe(2)
    const [again] = await receive(session, 1)
    expect([again!.message.id, again!.message.data]).toEqual(['large', JSON.stringify(LARGE)])
    await session.settle([[again!, DONE]])
    await until('the other is a letter again', async () =>
      (await source.deadLetters()).some(({ offset }) => offset > 5),
    )
    await session.close()
    warnings.stop()
    await publisher.close!()
  })

  test('the topic of the dead letters is gone: those behind what nobody can read are handled, and it is buried later', async () => {
    const { topic, source } = await prepared({})
    const session = (await source.open(NEVER))!
    const letters = `${topic}.dead.${source.name.split(':').at(-1)}`
    const admin = bare(url()).admin()
    await admin.connect()
    await admin.deleteTopics({ topics: [letters] })
    const telemetry = recordTelemetry(['warning', 'message.dead'])
    await write(topic, { value: 'no event' })
    const publisher = broker.publisher({ topic })
    const good = [message(), message()]
    await publisher.publish(good, NEVER)
    const taken = await receive(session, 2)
    expect(taken.map((delivery) => delivery.message.id)).toEqual(good.map(({ id }) => id))
    expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
    await expect(session.take({ count: 1, bytes: 1e6 }, NEVER)).rejects.toMatchObject({ code: 'UNKNOWN_TOPIC' })
    expect(telemetry.of('message.dead')).toEqual([])
    const told = telemetry.of('warning').filter((warning) => /dead letters cannot be written/.test(warning.message))
    expect(told.map((warning) => warning.message)).toEqual([expect.stringMatching(/UNKNOWN_TOPIC/)])
    await admin.createTopics({ topics: [{ topic: letters, numPartitions: 1 }] })
    await admin.disconnect()
    await until('it is buried', async () => {
      await session.take({ count: 1, bytes: 1e6 }, NEVER).catch(() => {})
      return telemetry.of('message.dead').length === 1
    })
    expect(await source.deadLetters()).toHaveLength(1)
    telemetry.stop()
    await session.close()
    await publisher.close!()
  })

  test('many at once that are too large together are each buried whole', async () => {
    const { topic, source } = await prepared()
    const publisher = broker.publisher({ topic })
    const sent = Array.from({ length: 40 }, () => message(JSON.stringify('y'.repeat(1000))))
    await publisher.publish(sent, NEVER)
    const session = await source.open(NEVER)
    const got = await receive(session, 40)
    await session.settle(got.map((one) => [one, { kind: 'dead', reason: 'no', error: undefined }]))
    const letters = await source.deadLetters()
    expect(letters.map(({ whole, message: { id } = { id: '' } }) => [whole, id])).toEqual(
      sent.map(({ id }) => [true, id]),
    )
    await session.close()
    await publisher.close!()
  })

  test('a compacted topic refuses letters without a key: they are kept with their place, and a record that is gone stays one', async () => {
    const { topic, source } = await prepared({ 'cleanup.policy': 'compact' })
    await write(topic, { key: null, value: 'no event' }, { key: null, value: 'none' })
    const session = await source.open(NEVER)
    await until('both are buried', async () => {
      await session.take({ count: 1, bytes: 1e6 }, NEVER)
      return (await source.stats())[0]!.lag === 0
    })
    await session.close()
    const letters = await source.deadLetters()
    expect(letters.map(({ offset, whole }) => [offset, whole])).toEqual([
      [0, false],
      [1, false],
    ])
    const admin = bare(url()).admin()
    await admin.connect()
    // kafkajs deletes only of topics that it has met.
    await admin.fetchTopicOffsets(topic)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
    await admin.disconnect()
    const warnings = recordTelemetry(['warning'])
    expect(await source.rearm(letters.map(({ id }) => id))).toBe(1)
    expect(warnings.of('warning').map(({ message }) => message)).toEqual([
      expect.stringMatching(/cannot be re-armed: it holds no value, and the record .*\/0\/0 is gone/),
    ])
    warnings.stop()
    expect((await source.deadLetters()).map(({ offset }) => offset)).toEqual([0])
  })
})
