import { CloudEvent, Kafka as CloudEventsKafka } from 'cloudevents'
import kafkajs from 'kafkajs'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type KafkaBroker, type KafkaSession, kafka } from '../../../src/brokers/kafka/index.ts'
import { partitioner } from '../../../src/brokers/kafka/sender.ts'
import { decodeData, Message } from '../../../src/core/index.ts'
import { DONE, Flow, setTopic } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { addressOf, bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

const ONE = { partitions: 1, replication: 1 }

describeWith(['kafka'], 'kafka and bad input', () => {
  let broker: KafkaBroker
  const url = () => service('kafka').url
  beforeAll(() => {
    broker = onServer(url())
  })
  afterAll(() => broker.close())

  /** Records as somebody else writes them. */
  async function write(topic: string, ...messages: kafkajs.Message[]): Promise<void> {
    const producer = bare(url()).producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner })
    await producer.connect()
    await producer.send({ topic, messages })
    await producer.disconnect()
  }

  test('nobody at the address: down for a publisher, an error that says so for a source; nothing is printed', async () => {
    const printed = [vi.spyOn(console, 'log'), vi.spyOn(console, 'error'), vi.spyOn(process.stdout, 'write')]
    const lost = kafka({ client: kafkajs.Kafka, brokers: ['127.0.0.1:9'], timeout: 1500 })
    const publisher = lost.publisher()
    const outcomes = await publisher.publish([message(), message()], NEVER)
    expect(outcomes).toMatchObject([{ kind: 'down' }, { kind: 'down' }])
    await expect(publisher.start!()).rejects.toThrow(/cannot connect to Kafka: .*ECONNREFUSED|has not responded/)
    const source = lost.source({ topic: 't', group: 'g' })
    await expect(source.open(NEVER)).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    await publisher.close!()
    for (const spy of printed) {
      expect(spy).not.toHaveBeenCalled()
      spy.mockRestore()
    }
  })

  test('TLS or credentials to a plain port: an error at start, and no hot loop', async () => {
    const brokers = [addressOf(url())]
    const sasl = { mechanism: 'plain', username: 'me', password: 'secret' }
    for (const wrong of [{ ssl: { rejectUnauthorized: false } }, { sasl }]) {
      const lost = kafka({ client: kafkajs.Kafka, brokers, timeout: 1500, ...wrong })
      const source = lost.source({ topic: 't', group: 'g' })
      const error = await source.open(NEVER).catch((caught: unknown) => caught)
      expect(String(error)).toMatch(/cannot connect to Kafka/)
      expect(String(error)).not.toContain('secret')
      const telemetry = recordTelemetry(['flow.open_failed'])
      const flow = new Flow({ name: fresh('wrong'), from: source, step: { each() {} } })
      await flow.start()
      await until('it is told', () => telemetry.of('flow.open_failed').length > 0)
      expect(telemetry.of('flow.open_failed').length).toBeLessThan(4)
      await flow.stop()
      telemetry.stop()
    }
  })

  test('missing topics: an error at start or when opening, a failure of the message otherwise; others arrive', async () => {
    const [there, missing] = [fresh(), fresh('missing')]
    await expect(broker.publisher({ topic: missing }).start!()).rejects.toMatchObject({ code: 'UNKNOWN_TOPIC' })
    const source = broker.source({ topic: missing, group: 'g' })
    await expect(source.open(NEVER)).rejects.toThrow(new RegExp(`no topic "${missing}", "${missing}.dead.g"; create`))
    const known = broker.publisher({ topic: there, create: ONE })
    await known.start!()
    await known.close!()
    const publisher = broker.publisher()
    const messages = [
      message('{}', { type: there }),
      message('{}', { type: missing }),
      message('{}', { type: 'no topic!' }),
    ]
    const behind = message('{}', { type: missing, key: 'k' })
    const after = message('{}', { type: missing, key: 'k' })
    setTopic(after, there)
    expect(await publisher.publish([...messages, behind, after], NEVER)).toMatchObject([
      { kind: 'ok' },
      { kind: 'failed', error: { code: 'UNKNOWN_TOPIC' } },
      { kind: 'rejected' },
      { kind: 'failed', error: { code: 'UNKNOWN_TOPIC' } },
      { kind: 'failed', error: { code: 'OUT_OF_ORDER' } },
    ])
    await publisher.close!()
  })

  test('a message larger than the topic allows is rejected alone, and nothing of its key passes it', async () => {
    const topic = fresh()
    const admin = bare(url()).admin()
    await admin.connect()
    const configEntries = [{ name: 'max.message.bytes', value: '20000' }]
    await admin.createTopics({ topics: [{ topic, numPartitions: 1, configEntries }] })
    await admin.disconnect()
    const publisher = broker.publisher({ topic })
    const large = JSON.stringify('x'.repeat(30_000))
    const batch = [
      ...Array.from({ length: 30 }, () => message(JSON.stringify('y'.repeat(1000)))),
      message(large, { key: 'k' }),
      message('{}', { key: 'k' }),
      message(),
    ]
    const outcomes = await publisher.publish(batch, NEVER)
    expect(outcomes.slice(0, 30).every(({ kind }) => kind === 'ok')).toBe(true)
    expect(outcomes.slice(30)).toMatchObject([
      { kind: 'rejected', error: { code: 'MESSAGE_TOO_LARGE' } },
      { kind: 'failed', error: { code: 'OUT_OF_ORDER' } },
      { kind: 'ok' },
    ])
    const error = outcomes[30]!.kind === 'rejected' ? String(outcomes[30]!.error) : ''
    expect(error).toMatch(/with about 3\d{4} bytes it is larger than topic .* allows/)
    expect(error).not.toContain('xxx')
    // By default a request holds less than the server allows, whatever is published at once.
    const plenty = broker.publisher({ topic: `${topic}-2`, create: ONE })
    const many = Array.from({ length: 60 }, () => message(JSON.stringify('z'.repeat(50_000))))
    expect((await plenty.publish(many, NEVER)).every(({ kind }) => kind === 'ok')).toBe(true)
    await publisher.close!()
    await plenty.close!()
  })

  test('records nobody can read go to the dead letters alone; odd headers are no trouble', async () => {
    const topic = fresh()
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, create: ONE })
    const session = await source.open(NEVER)
    const headers = { ce_specversion: '1.0', ce_id: 'a', ce_source: '/s', ce_type: 't' }
    const odd = {
      ...headers,
      list: ['1', '2'],
      bytes: Buffer.from([255, 0]),
      empty: '',
      'content-type': 'application/json',
    }
    await write(
      topic,
      { key: null, value: 'no event' },
      { key: 'k', value: '{"n":1}', headers: odd },
      { key: 'k', value: '{}', headers: { ...headers, ce_id: ['b', 'c'] } },
      {
        key: null,
        value: '{"specversion":"1.0","id":"s","source":"/s","type":"t","data":1}',
        headers: { 'content-type': 'application/cloudevents+json' },
      },
      { key: null, value: null, headers: { ...headers, ce_id: 'nothing' } },
    )
    const got = await receive(session, 3)
    expect(got.map(({ message: { id, data }, key }) => [id, data, key])).toEqual([
      ['a', '{"n":1}', 'k'],
      ['s', '1', undefined],
      ['nothing', '', undefined],
    ])
    await session.settle(
      got.map((delivery, i) => [delivery, i === 0 ? { kind: 'dead', reason: 'odd', error: undefined } : DONE]),
    )
    expect((await source.stats())[0]).toMatchObject({ committed: 5, lag: 0 })
    await session.close()
    const letters = await source.deadLetters()
    expect(letters.map(({ offset, reason }) => [offset, reason])).toEqual([
      [0, expect.stringMatching(/MALFORMED_MESSAGE.*specversion/)],
      [2, expect.stringMatching(/MALFORMED_MESSAGE.*id/)],
      [1, 'odd'],
    ])
    const { list, bytes, empty } = letters[2]!.headers as Record<string, Buffer>
    expect([String(list), [...bytes!], String(empty)]).toEqual(['1,2', [255, 0], ''])
    expect(await source.discard(letters.map(({ id }) => id))).toBe(3)
    expect(await source.deadLetters()).toEqual([])
  })

  test('what an encoder gives that Kafka cannot hold is rejected', async () => {
    const topic = fresh()
    const made: Record<string, unknown> = {
      number: { value: '{}', headers: { n: 1 } },
      list: { value: '{}', headers: { n: ['a', Buffer.from('b')] } },
      nothing: { value: undefined },
    }
    const mine = onServer(url(), {
      encode: ({ id }) => made[id] as never,
      decode: ({ value }) => new Message({ id: 'd', source: '/s', type: 't' }, value!),
    })
    const publisher = mine.publisher({ topic, create: ONE })
    const outcomes = await publisher.publish(
      Object.keys(made).map((id) => message('{}', { id })),
      NEVER,
    )
    expect(outcomes).toMatchObject([
      { kind: 'rejected', error: { message: expect.stringMatching(/a header "n" that is 1; give text/) } },
      { kind: 'ok' },
      { kind: 'rejected', error: { code: 'NOT_SERIALISABLE' } },
    ])
    await publisher.close!()
  })

  test('as the CloudEvents binding for Kafka has it: the official SDK reads and writes the same', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: ONE })
    const source = broker.source({ topic, group: fresh('g'), ...QUICK })
    const session = await source.open(NEVER)
    const event = new CloudEvent({ id: 'x', source: '/sdk', type: 'sdk.made', partitionkey: 'pk', data: { n: 1 } })
    const { headers, key, value } = CloudEventsKafka.binary(event)
    const given = Object.fromEntries(Object.entries(headers).filter(([, header]) => header !== undefined))
    await write(topic, { key: String(key), value: JSON.stringify(value), headers: given as kafkajs.IHeaders })
    await publisher.publish([message('{"n":2}', { id: 'y', key: 'pk' })], NEVER)
    // As Go's and Python's have it, which write the content type as an attribute too.
    const named = { ce_specversion: '1.0', ce_id: 'z', ce_source: '/s', ce_type: 't', ce_datacontenttype: 'text/xml' }
    await write(topic, { key: 'pk', value: '<a/>', headers: named })
    const [theirs, ours, attributed] = await receive(session, 3)
    expect([attributed!.message.datacontenttype, decodeData(attributed!.message)]).toEqual(['text/xml', '<a/>'])
    expect([theirs!.message.id, theirs!.key, JSON.parse(theirs!.message.data as string)]).toEqual(['x', 'pk', { n: 1 }])
    const text = Object.entries(ours!.record.headers).map(([name, header]) => [name, String(header)])
    const record = { headers: Object.fromEntries(text), value: String(ours!.record.value), key: 'pk', body: undefined }
    const read = CloudEventsKafka.toEvent(record as never) as CloudEvent<unknown>
    expect([read.id, read.type, read['partitionkey'], read.data]).toEqual(['y', 'thing.happened', 'pk', { n: 2 }])
    await session.close()
    await publisher.close!()
  })

  test('a key has the partition that Java and kafkajs give it, on the server', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: { partitions: 5, replication: 1 } })
    const keys = Array.from({ length: 20 }, (_, n) => `key ${n}`)
    const sent = keys.map((key) => message('{}', { key }))
    expect((await publisher.publish(sent, NEVER)).every(({ kind }) => kind === 'ok')).toBe(true)
    const headers = { ce_specversion: '1.0', ce_id: 'theirs', ce_source: '/s', ce_type: 't' }
    await write(topic, ...keys.map((key) => ({ key, value: '{}', headers })))
    const session = await broker.source({ topic, group: fresh('g'), ...QUICK }).open(NEVER)
    const [theirs, ours] = [new Map<string, number>(), new Map<string, number>()]
    for (const { key, from, message: one } of await receive(session, 2 * keys.length)) {
      const places = one.id === 'theirs' ? theirs : ours
      places.set(key!, from.partition)
    }
    expect([ours.size, new Set(ours.values()).size]).toEqual([20, 5])
    expect(Object.fromEntries(ours)).toEqual(Object.fromEntries(theirs))
    await session.close()
    await publisher.close!()
  })

  test('members of one group that read different topics each get their own', async () => {
    const [topics, group] = [[fresh(), fresh(), fresh()], fresh('g')]
    const [a, b, c] = topics as [string, string, string]
    const publisher = broker.publisher()
    const sessions: KafkaSession[] = []
    for (const topic of [[a, b], [c], [b]]) sessions.push(await broker.source({ topic, group, ...QUICK }).open(NEVER))
    for (const topic of topics) {
      const sent = Array.from({ length: 20 }, () => message('{}', { type: topic }))
      expect((await publisher.publish(sent, NEVER)).every(({ kind }) => kind === 'ok')).toBe(true)
    }
    const counts = new Map<string, number>()
    await until('all have come', async () => {
      for (const session of sessions) {
        const taken = await session.take({ count: 100, bytes: 1e6 }, NEVER)
        for (const { from } of taken) counts.set(from.topic, (counts.get(from.topic) ?? 0) + 1)
        await session.settle(taken.map((delivery) => [delivery, DONE]))
      }
      return topics.every((topic) => counts.get(topic) === 20)
    })
    for (const session of sessions) await session.close()
    await publisher.close!()
  })

  test('a group that begins with what comes keeps what came while it was away', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: ONE })
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, start: 'latest' })
    const [old, away] = [message(), message()]
    await publisher.publish([old], NEVER)
    await (await source.open(NEVER)).close()
    await publisher.publish([away], NEVER)
    const session = await source.open(NEVER)
    expect((await receive(session, 1)).map(({ message: { id } }) => id)).toEqual([away.id])
    await session.close()
    await publisher.close!()
  })

  test('order of the whole partition, where it is asked for; a client of the user', async () => {
    const mine = kafka({ client: bare(url()), name: 'mine' })
    const topic = fresh()
    const publisher = mine.publisher({ topic, create: ONE })
    await publisher.start!()
    const session = await mine.source({ topic, group: fresh('g'), ...QUICK, order: 'partition' }).open(NEVER)
    await publisher.publish([message(), message('{}', { key: 'k' })], NEVER)
    expect((await receive(session, 2)).map(({ key }) => key)).toEqual([`${topic}/0`, `${topic}/0`])
    await session.close()
    await publisher.close!()
    await mine.close()
  })
})

describe('kafka options', () => {
  const client = kafkajs.Kafka
  const mine = kafka({ client, brokers: ['127.0.0.1:9'] })

  test('what makes no sense is refused', () => {
    expect(() => kafka({ client: {} })).toThrow(/an object is no Kafka client that is known here/)
    expect(() => kafka({ client })).toThrow(/brokers: undefined is not a list of "host:port"/)
    expect(() => kafka({ client, brokers: ['kafka://host:9092'] })).toThrow(/not of the form "host:port"/)
    expect(() => kafka({ client, brokers: ['host'] })).toThrow(/"host" is not of the form "host:port"/)
    expect(() => kafka({ client: new client({ brokers: ['h:1'] }), brokers: ['h:1'] })).toThrow(/the client knows that/)
    expect(() => kafka({ client, broker: [] } as never)).toThrow(/did you mean "brokers"/)
    expect(() => mine.source({ topic: 'a b', group: 'g' })).toThrow(/"a b" is no name for a topic/)
    expect(() => mine.source({ topic: [], group: 'g' })).toThrow(/at least one/)
    expect(() => mine.source({ topic: 't', group: '' })).toThrow(/not a name/)
    expect(() => mine.source({ topic: 't', group: 'a b' })).toThrow(/deadLetter: "t.dead.a b" is no name/)
    expect(() => mine.source({ topic: 't', group: 'g', deadLetter: 't' })).toThrow(/must not be a topic that is read/)
    expect(() => mine.source({ topic: 't', group: 'g', sesion: 1 } as never)).toThrow(/did you mean "session"/)
    expect(() => mine.source({ topic: 't', group: 'g', create: { partitions: 0 } })).toThrow(/create.partitions: 0/)
    expect(() => mine.publisher({ create: ONE })).toThrow(/create needs a fixed topic/)
    expect(() => mine.publisher({ topic: '' })).toThrow(/is no name for a topic/)
  })

  test('a key has the partition that Java and kafkajs give it', () => {
    const partition = kafkajs.Partitioners.DefaultPartitioner()
    const ours = partitioner()
    const partitionMetadata = Array.from({ length: 97 }, (_, partitionId) => ({ partitionId, leader: 1 }) as never)
    for (const key of ['', 'a', 'ab', 'abc', 'abcd', 'order-4711', 'Grüße', '你好', 'x'.repeat(300)]) {
      const expected = partition({ topic: 't', partitionMetadata, message: { key, value: null } })
      expect([key, ours({ key: Buffer.from(key) } as never, 97)]).toEqual([key, expected])
    }
  })
})
