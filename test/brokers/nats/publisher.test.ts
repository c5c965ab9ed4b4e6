import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream'
import type { NatsConnection } from '@nats-io/transport-node'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { nats } from '../../../src/brokers/nats/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { privateNats } from './private.ts'
import { broker, connecting, fresh, message, NEVER, receive, until } from './support.ts'

const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)

describeWith(['nats'], 'nats: what a publisher is answered', () => {
  let admin: NatsConnection
  let manager: JetStreamManager
  const url = () => service('nats').url
  beforeAll(async () => {
    admin = await connecting(url())()
    manager = await jetstreamManager(admin)
  })
  afterAll(async () => await admin.close())

  test('the same event again is stored once, to another subject it is another, and after the window too', async () => {
    const stream = fresh()
    const create = { subjects: [`${stream}.>`], duplicateWindow: 200 }
    const mine = broker(connecting(url()), { stream, create })
    const publisher = mine.publisher({ subject: (one) => `${stream}.${one.subject ?? 'a'}` })
    const one = message()
    const elsewhere = one.with({ subject: 'b' }) as RawMessage
    const foreign = one.with({ source: '/other' }) as RawMessage
    expect(kinds(await publisher.publish([one, one, elsewhere, foreign, foreign], NEVER))).toEqual(Array(5).fill('ok'))
    const count = async () => (await manager.streams.info(stream)).state.messages
    expect(await count()).toBe(3)
    await until('the window is over, and it is stored again', async () => {
      await publisher.publish([one], NEVER)
      return (await count()) > 3
    })
    await publisher.close()
    await mine.close()
  })

  test('too large is rejected before it is sent, and the connection lives on', async () => {
    const server = await privateNats('max_payload: 32768')
    const mine = broker(connecting(server.url))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const large = message(JSON.stringify('x'.repeat(40_000)))
    // It would fit, but its dead letter would not.
    const tight = message(JSON.stringify('x'.repeat(30_000)))
    const outcomes = await publisher.publish([message(), large, tight, message()], NEVER)
    expect(kinds(outcomes)).toEqual(['ok', 'rejected', 'rejected', 'ok'])
    expect(outcomes[1]).toMatchObject({ error: { code: 'REJECTED', message: expect.stringMatching(/max_payload/) } })
    // One of others that leaves no room: kept, told, and not in a hot loop.
    const foreign = await connecting(server.url)()
    foreign.publish(`${mine.stream}.a`, `not json${'x'.repeat(32_700)}`)
    const source = mine.source({ group: 'g', create: true, block: 50 })
    const session = await source.open()
    const telemetry = recordTelemetry(['warning'])
    await receive(session, 2)
    await until('it was looked at', async () => {
      await session.take({ count: 1, bytes: 1e6 }, NEVER)
      return telemetry.of('warning').some(({ message: text }) => /too large for the dead letters/.test(text))
    })
    expect(await session.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
    expect(telemetry.of('warning').filter(({ message: text }) => /too large/.test(text))).toHaveLength(1)
    telemetry.stop()
    expect(await source.stats()).toMatchObject({ pending: 3, dead: 0 })
    await session.close()
    await foreign.close()
    await publisher.close()
    await mine.close()
  })

  test('a stream that is full is down, and nobody is charged; one that takes no such size rejects', async () => {
    const stream = fresh()
    const create = { subjects: [`${stream}.>`], maxMessages: 2, maxMessageSize: 2000 }
    const mine = broker(connecting(url()), { stream, create })
    const publisher = mine.publisher({ subject: `${stream}.a` })
    const big = message(JSON.stringify('x'.repeat(3000)))
    const outcomes = await publisher.publish([message(), big, message(), message()], NEVER)
    expect(kinds(outcomes)).toEqual(['ok', 'rejected', 'ok', 'down'])
    expect(outcomes[3]).toMatchObject({ error: { message: expect.stringMatching(/maximum messages exceeded/) } })
    await manager.streams.purge(stream)
    expect(kinds(await publisher.publish([message()], NEVER))).toEqual(['ok'])
    await publisher.close()
  })

  test('a subject nobody takes is the message, a stream that is gone is not', async () => {
    const stream = fresh()
    const other = fresh()
    await manager.streams.add({ name: other, subjects: [`${other}.>`] })
    await manager.streams.add({ name: stream, subjects: [`${stream}.>`] })
    const mine = nats({ connection: connecting(url()), stream })
    const publisher = mine.publisher({ subject: ({ type }) => type })
    const to = (type: string) => message('{}', { type })
    const outcomes = await publisher.publish(
      [to(`${stream}.a`), to(`${other}.a`), to(fresh()), to('a b'), to('a.>')],
      NEVER,
    )
    expect(kinds(outcomes)).toEqual(['ok', 'failed', 'failed', 'failed', 'failed'])
    const texts = outcomes.map((outcome) => (outcome.kind === 'ok' ? '' : (outcome.error as Error).message))
    expect(texts[1]).toMatch(/expected stream does not match/)
    expect(texts[2]).toMatch(new RegExp(`no stream takes the subject .*; ${stream} takes ${stream}.>`))
    expect(texts[3]).toMatch(/"a b" is not a subject/)
    expect((await manager.streams.info(other)).state.messages).toBe(0)
    // One subject for all, which another stream takes, or none: no message is to blame.
    for (const subject of [`${other}.a`, fresh()]) {
      const fixed = mine.publisher({ subject })
      expect(kinds(await fixed.publish([message()], NEVER))).toEqual(['down'])
      await fixed.close()
    }
    await manager.streams.delete(stream)
    expect(kinds(await publisher.publish([to(`${stream}.a`)], NEVER))).toEqual(['down'])
    await expect(publisher.publish([to(`${stream}.a`)], NEVER)).rejects.toThrow(/there is no stream/)
    await manager.streams.delete(other)
    await publisher.close()
  })

  test('an answer that is not JetStream’s is no confirmation', async () => {
    const stream = fresh()
    const mine = broker(connecting(url()), { stream, timeout: 3000 })
    const publisher = mine.publisher({ subject: ({ type }) => type })
    const elsewhere = fresh()
    const answers = [
      '{"ok":true,"stream":"other","seq":1}',
      '{"ok":true}',
      'null',
      'no json',
      `{"stream":"${stream}"}`,
      `{"stream":"${stream}","seq":0}`,
      `{"stream":"${stream}","seq":"1"}`,
      '{"error":{"code":503,"description":"not now"}}',
    ]
    const foreign = await connecting(url())()
    const answer = (subject: string, text: string) =>
      foreign.subscribe(subject, { callback: (_, asked) => void asked.respond(text) })
    answer(`${stream}.a`, answers[0]!)
    for (const [i, text] of answers.entries()) answer(`${elsewhere}.${i}`, text)
    await foreign.flush()
    const to = (type: string) => message('{}', { type })
    const outcomes = await publisher.publish(
      [to(`${stream}.a`), ...answers.map((_, i) => to(`${elsewhere}.${i}`))],
      NEVER,
    )
    expect(kinds(outcomes)).toEqual(['ok', ...answers.map(() => 'failed')])
    for (const outcome of outcomes.slice(1)) {
      expect(String((outcome as { error: unknown }).error)).toContain('somebody else who listens')
    }
    expect((await manager.streams.info(stream)).state.messages, 'what is confirmed is stored').toBe(1)
    await foreign.close()
    await publisher.close()
    await mine.close()
  })

  test('a dead letter counts as kept only when its stream has it', async () => {
    const stream = fresh()
    const mine = broker(connecting(url()), { stream, timeout: 3000 })
    const source = mine.source({ group: 'g', create: true, block: 50 })
    const session = await source.open()
    const publisher = mine.publisher({ subject: `${stream}.a` })
    await publisher.publish([message()], NEVER)
    const [delivery] = await receive(session, 1)
    const foreign = await connecting(url())()
    foreign.subscribe(`${stream}-dead.letter.>`, { callback: (_, asked) => void asked.respond('{"ok":true}') })
    await foreign.flush()
    await manager.streams.delete(`${stream}-dead`)
    const dead = { kind: 'dead', reason: 'why', error: undefined } as const
    await expect(session.settle([[delivery!, dead]])).rejects.toThrow()
    expect((await source.stats()).pending, 'it is not given up').toBe(1)
    await session.close()
    await foreign.close()
    await publisher.close()
    await mine.close()
  })

  test('what cannot be written is rejected by its place, and others arrive', async () => {
    const mine = broker(connecting(url()), {
      encode: ({ id, data }) => ({ headers: { 'X-Id': id }, data }),
      decode: ({ headers: { 'X-Id': id }, data }) => new Message({ id: id!, source: '/x', type: 't' }, data),
    })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const forged = message('{}', { id: 'x\r\nNats-Rollup: all' })
    const unwritable = new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage
    const good = message()
    expect(kinds(await publisher.publish([forged, unwritable, good], NEVER))).toEqual(['rejected', 'rejected', 'ok'])
    const session = await mine.source({ group: 'g', create: true }).open()
    expect((await receive(session, 1)).map((delivery) => delivery.message.id)).toEqual([good.id])
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('a publish that is given up by its signal answers', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.start()
    expect(kinds(await publisher.publish([message()], AbortSignal.abort()))).toEqual(['down'])
    await publisher.close()
  })
})
