import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream'
import { headers, type NatsConnection } from '@nats-io/transport-node'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { nats } from '../../../src/brokers/nats/index.ts'
import { decodeData } from '../../../src/core/index.ts'
import { DONE, Flow, RELEASE } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { broker, connecting, fresh, message, NEVER, receive, until } from './support.ts'

const DEAD = { kind: 'dead', reason: 'why', error: undefined } as const

describeWith(['nats'], 'nats: messages, streams and consumers that others have made', () => {
  let admin: NatsConnection
  let manager: JetStreamManager
  const url = () => service('nats').url
  beforeAll(async () => {
    admin = await connecting(url())()
    manager = await jetstreamManager(admin)
  })
  afterAll(async () => await admin.close())

  test.each<[string, string, Record<string, string>]>([
    ['a line break in a value', 'NATS/1.0\r\nA: 1\nB: 2\r\nNext: n\r\n\r\n', { A: '1 B: 2', Next: 'n' }],
    ['a space in a name', 'NATS/1.0\r\nX y: a\r\n\r\n', { 'X y': 'a' }],
    ['letters that are no ASCII in a name', 'NATS/1.0\r\nGröße: 9\r\n\r\n', { Größe: '9' }],
    ['a header without a name', 'NATS/1.0\r\n: a\r\nB: b\r\n\r\n', { B: 'b' }],
    ['a status, and what the client cannot read', 'NATS/1.0 503 no\r\nA: 1\nB: 2\r\n\r\n', {}],
  ])('%s, in a message that nobody can decode: it is dead, and the next is handled', async (_, headers, kept) => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.start()
    admin.publish(`${mine.stream}.a`, 'no event', { headers: { encode: () => Buffer.from(headers) } as never })
    await admin.flush()
    const good = message()
    await publisher.publish([good], NEVER)
    const source = mine.source({ group: 'g', create: true, block: 50 })
    const seen: string[] = []
    const step = { each: ({ message: { id } }: { message: { id: string } }) => void seen.push(id) }
    const flow = new Flow({ name: fresh('odd'), from: source, step, outage: { min: 20, max: 100 } })
    await flow.start()
    await until('the next is handled', () => seen.includes(good.id))
    await until('it is dead', async () => (await source.stats()).dead === 1)
    await flow.stop()
    expect(await source.stats()).toMatchObject({ pending: 0, lag: 0 })
    const [letter] = await source.deadLetters()
    expect(letter!.headers).toEqual(kept)
    expect(letter!.data.toString()).toBe('no event')
    await publisher.close()
    await mine.close()
  })

  test('an event whose content type is an attribute, as the binding has it', async () => {
    const mine = broker(connecting(url()))
    const session = await mine.source({ group: 'g', create: true, block: 50 }).open()
    const given = { specversion: '1.0', id: '1', source: '/s', type: 't', datacontenttype: 'text/xml' }
    const sent = headers()
    for (const [name, value] of Object.entries(given)) sent.set(`ce-${name}`, value)
    admin.publish(`${mine.stream}.a`, '<a/>', { headers: sent })
    const { message: read } = (await receive(session, 1))[0]!
    expect([read.id, read.datacontenttype, decodeData(read)]).toEqual(['1', 'text/xml', '<a/>'])
    await session.close()
    await mine.close()
  })

  test.each<[string, object, RegExp]>([
    ['keeps only what a consumer waits for', { retention: 'interest' }, /retention is interest/],
    ['confirms nothing', { no_ack: true }, /no_ack/],
    ['refuses to write anew', { discard: 'new', discard_new_per_subject: true }, /discard_new_per_subject/],
    ['lets nothing be removed', { deny_delete: true, deny_purge: true }, /removed from it \(deny_delete, deny_purge\)/],
  ])('a stream that %s cannot hold dead letters, and is refused', async (_, settings, text) => {
    const mine = broker(connecting(url()))
    const name = `${mine.stream}-dead`
    await manager.streams.add({ name, subjects: [`${name}.>`], max_msgs_per_subject: 1, ...settings })
    await expect(mine.source({ group: 'g', create: true }).open()).rejects.toThrow(text)
    await manager.streams.delete(name)
    await mine.close()
  })

  test('dead letters in memory are warned of, unless the stream itself is there', async () => {
    for (const [storage, count] of [
      ['file', 1],
      ['memory', 0],
    ] as const) {
      const stream = fresh()
      const mine = broker(connecting(url()), { stream, create: { subjects: [`${stream}.>`], storage } })
      const name = `${stream}-dead`
      await manager.streams.add({ name, subjects: [`${name}.>`], max_msgs_per_subject: 1, storage: 'memory' })
      const recorder = recordTelemetry(['warning'])
      await (await mine.source({ group: 'g', create: true }).open()).close()
      const told = recorder.of('warning').filter(({ message: text }) => /dead letters are lost/.test(text))
      recorder.stop()
      expect(told).toHaveLength(count)
      await mine.close()
    }
  })

  test.each<[string, object]>([
    ['how many one request may bring', { max_batch: 5 }],
    ['how long one request may wait', { max_expires: 20_000_000 }],
    ['how many bytes one request may bring', { max_bytes: 4000 }],
  ])('a consumer that limits %s is read within its limit', async (_, limit) => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const sent = Array.from({ length: 20 }, () => message())
    await publisher.publish(sent, NEVER)
    await (await mine.source({ group: 'other', create: true }).open()).close()
    await manager.consumers.add(mine.stream, { durable_name: 'g', ack_policy: 'explicit', ...limit })
    const session = await mine.source({ group: 'g' }).open()
    const got = await receive(session, 20)
    expect(got.map((delivery) => delivery.message.id)).toEqual(sent.map(({ id }) => id))
    await session.settle(got.map((delivery) => [delivery, DONE]))
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('a request that a message fills to the last byte is over with its time, and its session goes on', async () => {
    const mine = broker(connecting(url()), { timeout: 5000 })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const session = await mine.source({ group: 'g', create: true, block: 20 }).open()
    // One of these sizes is that of a message as the server counts it.
    for (let bytes = 280; bytes < 400 && !session.lost.aborted; bytes++) {
      if (bytes % 20 === 0)
        await publisher.publish(
          Array.from({ length: 40 }, () => message()),
          NEVER,
        )
      let got: Awaited<ReturnType<typeof session.take>> = []
      while (got.length === 0 && !session.lost.aborted) got = await session.take({ count: 50, bytes }, NEVER)
      await session.settle(got.map((delivery) => [delivery, DONE]))
    }
    expect(session.lost.reason, 'nobody was silent').toBeUndefined()
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('a stream that keeps messages only for consumers, and has none, is warned of before the first is published', async () => {
    const stream = fresh()
    const create = { subjects: [stream], retention: 'interest' } as const
    const mine = nats({ connection: connecting(url()), stream, create })
    const recorder = recordTelemetry(['warning'])
    const told = () => recorder.of('warning').filter(({ message: text }) => /is confirmed, and gone/.test(text))
    const early = mine.publisher({ subject: stream })
    await early.start()
    expect(told()).toHaveLength(1)
    const session = await mine.source({ group: 'g', create: true }).open()
    const late = nats({ connection: connecting(url()), stream, name: fresh() }).publisher({ subject: stream })
    await late.publish([message()], NEVER)
    expect(told()).toHaveLength(1)
    expect(await receive(session, 1)).toHaveLength(1)
    recorder.stop()
    await session.close()
    await Promise.all([early, late, mine].map((one) => one.close()))
  })

  test('a stream whose messages live for a minute remembers ids for as long, unless more is said', async () => {
    const stream = fresh()
    const publisher = nats({ connection: connecting(url()), stream, create: { subjects: [stream], maxAge: '1m' } })
    const one = publisher.publisher({ subject: stream })
    await one.start()
    expect((await manager.streams.info(stream)).config.duplicate_window).toBe(60_000_000_000)
    await publisher.close()
    const other = nats({
      connection: connecting(url()),
      stream: fresh(),
      create: { subjects: [fresh()], maxAge: '1h' },
    })
    await other.publisher().start()
    expect((await manager.streams.info(other.stream)).config.duplicate_window).toBe(120_000_000_000)
    await other.close()
  })

  test('groups of one name, of two streams that share their dead letters, have nothing else in common', async () => {
    const [a, b] = [broker(connecting(url())), broker(connecting(url()))]
    const options = { group: 'g', create: true, block: 50, deadLetter: fresh('grave'), start: 'new' } as const
    const [toA, toB] = [a, b].map((one) => one.publisher({ subject: `${one.stream}.a` }))
    const [beforeA, beforeB, inA, inB] = [message(), message(), message(), message()]
    await toA!.publish([beforeA], NEVER)
    await toB!.publish([beforeB], NEVER)
    const ofA = await a.source(options).open()
    await toA!.publish([inA], NEVER)
    const [first] = await receive(ofA, 1)
    expect(first!.message.id).toBe(inA.id)
    // Noted as no attempt; the consumer of b is made while that stands there.
    await ofA.settle([[first!, RELEASE]])
    const ofB = await b.source(options).open()
    const [again] = await receive(ofA, 1)
    expect(again!.attempts, 'what was released is not charged').toBe(0)
    await toB!.publish([inB], NEVER)
    const [other] = await receive(ofB, 1)
    expect(other!.message.id, 'it begins with what comes').toBe(inB.id)
    await ofA.settle([[again!, DEAD]])
    await ofB.settle([[other!, DONE]])
    expect(await b.source(options).deadLetters()).toEqual([])
    expect(await b.source(options).stats()).toMatchObject({ dead: 0 })
    const [letter] = await a.source(options).deadLetters()
    expect(letter).toMatchObject({ stream: a.stream, sequence: 2 })
    expect(await b.source(options).rearm(letter!.id)).toBe(false)
    expect(await a.source(options).rearm(letter!.id)).toBe(true)
    expect((await receive(ofA, 1))[0]!.message.id).toBe(inA.id)
    await ofA.close()
    await ofB.close()
    await Promise.all([toA!, toB!, a, b].map((one) => one.close()))
  })
})
