import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream'
import { MsgHdrsImpl, type NatsConnection } from '@nats-io/transport-node'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { command, onPath } from '../../../scripts/services/files.ts'
import { nats } from '../../../src/brokers/nats/index.ts'
import { positionOf } from '../../../src/brokers/nats/member.ts'
import { covers } from '../../../src/brokers/nats/setup.ts'
import { headerRecord } from '../../../src/drivers/nats/nats.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { privateNats } from './private.ts'
import { broker, connecting, fresh, message, NEVER, receive, until } from './support.ts'

const _dead = (reason: string) => ({ kind: 'dead', reason, error: undefined }) as const
const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)

describeWith(['nats'], 'nats: what is there and what was asked for', () => {
  let admin: NatsConnection
  let manager: JetStreamManager
  const url = () => service('nats').url
  beforeAll(async () => {
    admin = await connecting(url())()
    manager = await jetstreamManager(admin)
  })
  afterAll(async () => await admin.close())

  test('nothing is made unless asked for, and the error says what to make', async () => {
    const stream = fresh()
    const mine = nats({ connection: connecting(url()), stream })
    await expect(mine.source({ group: 'g' }).open()).rejects.toThrow(/there is no stream .* create/)
    await expect(mine.publisher().start()).rejects.toThrow(/there is no stream/)
    await manager.streams.add({ name: stream, subjects: [stream] })
    await expect(mine.source({ group: 'g' }).open()).rejects.toThrow(
      /no stream .*-dead for dead letters.*max_msgs_per_subject 1/,
    )
    await manager.streams.add({ name: `${stream}-dead`, subjects: [`${stream}-dead.>`], max_msgs_per_subject: 1 })
    await expect(mine.source({ group: 'g' }).open()).rejects.toThrow(/has no consumer g.*create: true/)
    await manager.consumers.add(stream, { durable_name: 'g', ack_policy: 'explicit' })
    const session = await mine.source({ group: 'g' }).open()
    await session.close()
  })

  test('a stream with other settings is refused, and every difference is named', async () => {
    const stream = fresh()
    await manager.streams.add({ name: stream, subjects: [`${stream}.>`], max_msgs: 10 })
    const create = { subjects: [`${stream}.a`], storage: 'file' } as const
    const mine = nats({ connection: connecting(url()), stream, create })
    await expect(mine.publisher().start()).rejects.toThrow(
      /exists and is different: subjects is \["[^"]*>"\], not \["[^"]*a"\]; discard is "old", not "new"; max_msgs is 10, not -1/,
    )
    const taken = nats({ connection: connecting(url()), stream: fresh(), create: { subjects: [`${stream}.b`] } })
    await expect(taken.publisher().start()).rejects.toThrow(/cannot be made: subjects overlap with an existing stream/)
  })

  test('a consumer that cannot be used is refused', async () => {
    const mine = broker(connecting(url()))
    const { stream } = mine
    await (await mine.source({ group: 'fine', create: true }).open()).close()
    await manager.consumers.add(stream, { durable_name: 'push', ack_policy: 'explicit', deliver_subject: fresh() })
    await manager.consumers.add(stream, { durable_name: 'none', ack_policy: 'none' })
    await manager.consumers.add(stream, { durable_name: 'five', ack_policy: 'explicit', max_deliver: 5 })
    await expect(mine.source({ group: 'push' }).open()).rejects.toThrow(/must be a pull consumer/)
    await expect(mine.source({ group: 'none' }).open()).rejects.toThrow(/ack_policy is none, and must be explicit/)
    await expect(mine.source({ group: 'five' }).open()).rejects.toThrow(/max_deliver is 5: .*advisory/)
    await manager.consumers.add(stream, { durable_name: 'bare', ack_policy: 'explicit', headers_only: true })
    await expect(mine.source({ group: 'bare' }).open()).rejects.toThrow(/headers_only .*without their data/)
    await expect(mine.source({ group: 'fine', ackWait: '5s', subject: `${stream}.x` }).open()).rejects.toThrow(
      /filter_subject is not set, not ".*\.x"; ack_wait is 30000000000, not 5000000000/,
    )
    await manager.streams.add({ name: `${stream}-grave`, subjects: [`${stream}-grave`] })
    await expect(mine.source({ group: 'fine', deadLetter: `${stream}-grave` }).open()).rejects.toThrow(
      /cannot hold dead letters/,
    )
  })

  test('a consumer that the server deletes when nobody reads is told, once', async () => {
    const mine = broker(connecting(url()))
    await (await mine.source({ group: 'lasts', create: true }).open()).close()
    const threshold = { inactive_threshold: 30_000_000_000 }
    await manager.consumers.add(mine.stream, { durable_name: 'goes', ack_policy: 'explicit', ...threshold })
    const telemetry = recordTelemetry(['warning'])
    for (const group of ['goes', 'goes', 'lasts']) await (await mine.source({ group }).open()).close()
    const told = telemetry.of('warning').map((warning) => warning.message)
    telemetry.stop()
    expect(told).toEqual([expect.stringMatching(/^consumer goes is deleted when nobody has read from it for 30 s/)])
    await mine.close()
  })

  test('settings that lose messages are told before the first one', async () => {
    const stream = fresh()
    await manager.streams.add({
      name: stream,
      subjects: [stream],
      max_msgs: 10,
      max_age: 3_600_000_000_000,
      storage: 'memory',
    })
    const telemetry = recordTelemetry(['warning'])
    const mine = nats({ connection: connecting(url()), stream })
    const publisher = mine.publisher()
    await publisher.start()
    const told = telemetry.of('warning').map((warning) => warning.message)
    telemetry.stop()
    expect(told).toContainEqual(expect.stringMatching(/oldest messages are removed, handled or not/))
    expect(told).toContainEqual(expect.stringMatching(/removed after 1 h \(max_age\)/))
    expect(told).toContainEqual(expect.stringMatching(/kept in memory/))
    await publisher.close()
    const silent = fresh()
    await manager.streams.add({ name: silent, subjects: [silent], no_ack: true })
    await expect(
      nats({ connection: connecting(url()), stream: silent })
        .publisher()
        .start(),
    ).rejects.toThrow(/no_ack/)
  })

  test('only messages of the subject that was asked for, and from where', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: ({ type }) => `${mine.stream}.${type}` })
    const [eu, us] = [message('{}', { type: 'order.eu' }), message('{}', { type: 'order.us' })]
    await publisher.publish([us, eu], NEVER)
    const filtered = await mine.source({ group: 'eu', create: true, subject: `${mine.stream}.*.eu` }).open()
    const fromNow = await mine.source({ group: 'now', create: true, start: 'new' }).open()
    expect((await receive(filtered, 1)).map((delivery) => delivery.message.id)).toEqual([eu.id])
    const later = message('{}', { type: 'order.us' })
    await publisher.publish([later], NEVER)
    expect((await receive(fromNow, 1)).map((delivery) => delivery.message.id)).toEqual([later.id])
    for (const session of [filtered, fromNow]) await session.close()
    await publisher.close()
  })
})

describeWith(['nats'], 'nats: servers one cannot use', () => {
  const source = (connection: Parameters<typeof nats>[0]['connection'], options = {}) =>
    nats({ connection, stream: 'S', timeout: 2000, ...options }).source({ group: 'g' })

  test('a wrong address, credentials or TLS are one clear error, and down for a publisher', async () => {
    const server = await privateNats('authorization { user: ann, password: secret }')
    const wrong = [
      connecting('nats://127.0.0.1:1'),
      connecting('nats://no.such.host.invalid:4222'),
      connecting(server.url),
      connecting(server.url, { user: 'ann', pass: 'wrong' }),
      connecting(server.url, { user: 'ann', pass: 'secret', tls: {} }),
    ]
    for (const connection of wrong) {
      const error = await source(connection)
        .open()
        .catch((reason: unknown) => reason)
      expect(error).toMatchObject({ code: 'UNAVAILABLE', message: expect.stringMatching(/^cannot connect to NATS: /) })
      expect(String(error)).not.toMatch(/wrong|secret/)
      const publisher = nats({ connection, stream: 'S' }).publisher()
      await expect(publisher.publish([message()], NEVER)).rejects.toThrow(/cannot connect to NATS/)
      await publisher.close()
    }
    const right = connecting(server.url, { user: 'ann', pass: 'secret' })
    await expect(source(right).open()).rejects.toThrow(/there is no stream S/)
  })

  test.skipIf(onPath('openssl') === null)(
    'a certificate nobody vouches for is refused, and one that is known not',
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'waybill-nats-'))
      const [key, certificate] = [join(folder, 'key.pem'), join(folder, 'certificate.pem')]
      const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1']
      await command('openssl', [
        'req',
        '-x509',
        '-newkey',
        'rsa:2048',
        '-nodes',
        '-keyout',
        key,
        '-out',
        certificate,
        ...names,
      ])
      chmodSync(folder, 0o755)
      chmodSync(key, 0o644)
      const server = await privateNats(`tls { cert_file: "${certificate}", key_file: "${key}" }`)
      await expect(source(connecting(server.url)).open()).rejects.toThrow(/cannot connect to NATS: .*self-signed/)
      const ca = readFileSync(certificate, 'utf8')
      await expect(source(connecting(server.url, { tls: { ca } })).open()).rejects.toThrow(/there is no stream S/)
      rmSync(folder, { recursive: true })
    },
  )

  test('JetStream is not enabled: said so, for source and publisher', async () => {
    const server = await privateNats('# no jetstream')
    const connection = connecting(server.url)
    await expect(source(connection).open()).rejects.toThrow(/JetStream is not enabled/)
    const publisher = nats({ connection, stream: 'S' }).publisher()
    await expect(publisher.start()).rejects.toMatchObject({ code: 'UNSUPPORTED_SERVER' })
    await publisher.close()
  })

  test('a subject one may not publish to is told at once', async () => {
    const permissions = 'permissions { publish { allow: ["$JS.>", "S.a"] }, subscribe: ">" }'
    const server = await privateNats(`authorization { users: [ { user: ann, password: x, ${permissions} } ] }`)
    const connection = connecting(server.url, { user: 'ann', pass: 'x' })
    const mine = nats({ connection, stream: 'S', create: { subjects: ['S.>'] } })
    const publisher = mine.publisher({ subject: ({ type }) => type })
    const began = performance.now()
    const [allowed, denied] = ['S.a', 'S.b'].map((type) => message('{}', { type }))
    const outcomes = await publisher.publish([allowed!, denied!], NEVER)
    expect(kinds(outcomes)).toEqual(['ok', 'failed'])
    expect(outcomes[1]).toMatchObject({ error: { code: 'FORBIDDEN', message: expect.stringMatching(/S\.b/) } })
    expect(performance.now() - began).toBeLessThan(5000)
    await publisher.close()
    // One subject for all: no message is to blame.
    const fixed = mine.publisher({ subject: 'S.b' })
    expect(await fixed.publish([message()], NEVER)).toMatchObject([{ kind: 'down', error: { code: 'FORBIDDEN' } }])
    await fixed.close()
  })

  test('a right to ask for messages that is missing is told, and not taken for a server that is silent', async () => {
    const permissions = 'permissions { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } }'
    const server = await privateNats(`authorization { users: [ { user: ann, password: x, ${permissions} } ] }`)
    const mine = broker(connecting(server.url, { user: 'ann', pass: 'x' }))
    const session = await mine.source({ group: 'g', create: true, block: 100 }).open()
    await until('it is told', () =>
      session.take({ count: 1, bytes: 1e6 }, NEVER).then(
        () => false,
        (error) => error.code === 'FORBIDDEN' && /MSG\.NEXT/.test(error.message),
      ),
    )
    expect(session.lost.aborted).toBe(false)
    await session.close()
    await mine.close()
  })

  test('a connection that was handed over and closed asks for a way to connect', async () => {
    const server = await privateNats()
    const connection = await connecting(server.url)()
    const mine = broker(connection)
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    expect(kinds(await publisher.publish([message()], NEVER))).toEqual(['ok'])
    await publisher.close()
    expect(connection.isClosed(), 'it stays its owner’s').toBe(false)
    const session = await mine.source({ group: 'g', create: true }).open()
    await connection.close()
    expect(session.lost.aborted).toBe(true)
    await session.close()
    await expect(mine.source({ group: 'g' }).open()).rejects.toThrow(/give a function that connects/)
  })
})

describe('nats: options', () => {
  const connection = () => {
    throw new Error('not called')
  }

  test('are checked where they are given, and nothing connects before it must', () => {
    expect(() => nats({ connection: {} as never, stream: 'S' })).toThrow(/no NATS connection/)
    expect(() => nats({ connection, stream: 'a.b' })).toThrow(/stream: "a.b" is not a name/)
    expect(() => nats({ connection, stream: 'S', streem: 'S' } as never)).toThrow(/did you mean "stream"/)
    expect(() => nats({ connection, stream: 'S', create: { subjects: [] } })).toThrow(/name at least one/)
    expect(() => nats({ connection, stream: 'S', create: { subjects: ['a..b'] } })).toThrow(/"a..b" is not a subject/)
    expect(() => nats({ connection, stream: 'S', create: { subjects: ['a'], replicas: 9 } })).toThrow(/replicas/)
    const mine = nats({ connection, stream: 'S' })
    expect(() => mine.publisher({ subject: 'a.*' })).toThrow(/"a.\*" is not a subject/)
    expect(() => mine.source({ group: 'g h' })).toThrow(/group: "g h" is not a name/)
    expect(() => mine.source({ group: 'g', deadLetter: 'S' })).toThrow(/must not be the stream that is read/)
    expect(() => mine.source({ group: 'g', ackWait: 'soon' as never })).toThrow(/ackWait/)
    expect(() => mine.source({ group: 'g', grup: 1 } as never)).toThrow(/did you mean "group"/)
  })

  test('a function that answers something else is told', async () => {
    const mine = nats({ connection: (() => ({})) as never, stream: 'S' })
    await expect(mine.source({ group: 'g' }).open()).rejects.toThrow(/must return a NATS connection/)
  })

  test('what a delivery says of itself, with a domain too', () => {
    const expected = { given: 3, sequence: 17, place: '17-1700000000000000000' }
    expect(positionOf('$JS.ACK.S.g.3.17.5.1700000000000000000.0')).toEqual(expected)
    expect(positionOf('$JS.ACK.hub.AccHash.S.g.3.17.5.1700000000000000000.0')).toEqual(expected)
    expect(positionOf('$JS.ACK.hub.AccHash.S.g.3.17.5.1700000000000000000.0.random')).toEqual(expected)
  })

  test('headers read from bytes are those the client reads, and without bytes the client is asked', () => {
    const texts = [
      'NATS/1.0\r\nce-id: 1\r\nce-type:order.placed\r\nce-source:  /shop \r\n\r\n',
      'NATS/1.0\r\nTwice: a\r\nTwice: b:c\r\nEmpty:\r\nce-subject: gr\u00fc\u00df \u20ac\r\n\r\n',
      'NATS/1.0\r\nno colon\r\nA: 1\r\n\r\n',
      'NATS/1.0\r\n\r\n',
    ]
    for (const text of texts) {
      const bytes = Buffer.from(text)
      const headers = MsgHdrsImpl.decode(bytes)
      const expected = Object.fromEntries([...headers].map(([name, values]) => [name, values.at(-1)]))
      const received = { _rdata: Buffer.concat([bytes, Buffer.from('{"a: 1"}')]), _msg: { hdr: bytes.length } }
      expect(headerRecord(received)).toEqual(expected)
      expect(headerRecord({ headers })).toEqual(expected)
      // A client that keeps something else there.
      for (const hdr of [bytes.length - 1, bytes.length + 1, 5, '9', undefined]) {
        expect(headerRecord({ headers, _rdata: received._rdata, _msg: { hdr } })).toEqual(expected)
      }
      expect(headerRecord({ headers, _rdata: text, _msg: { hdr: bytes.length } })).toEqual(expected)
    }
    expect(headerRecord({})).toEqual({})
  })

  test('patterns of subjects', () => {
    const yes = [
      ['a.>', 'a.b.c'],
      ['a.*', 'a.b'],
      ['>', 'a'],
      ['a', 'a'],
      ['a.>', 'a.*'],
      ['a.>', 'a.>'],
      ['*.b', 'a.b'],
    ]
    const no = [
      ['a.>', 'a'],
      ['a.*', 'a.b.c'],
      ['a.*', 'a.>'],
      ['a', 'a.b'],
      ['a.b', 'a'],
      ['a.b', 'a.*'],
    ]
    for (const [pattern, subject] of yes) expect([pattern, subject, covers(pattern!, subject!)]).toContain(true)
    for (const [pattern, subject] of no) expect([pattern, subject, covers(pattern!, subject!)]).toContain(false)
  })
})
