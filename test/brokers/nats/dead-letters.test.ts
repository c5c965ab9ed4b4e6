import { DiscardPolicy, jetstreamManager } from '@nats-io/jetstream'
import { headers, type NatsConnection } from '@nats-io/transport-node'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Message } from '../../../src/core/index.ts'
import { DONE } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { broker, connecting, message, NEVER, receive, until } from './support.ts'

const dead = (reason: string) => ({ kind: 'dead', reason, error: undefined }) as const
const _kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)

describeWith(['nats'], 'nats and dead letters', () => {
  let admin: NatsConnection
  const url = () => service('nats').url
  beforeAll(async () => {
    admin = await connecting(url())()
  })
  afterAll(async () => await admin.close())

  test('more dead letters than JetStream lists at once are all counted', async () => {
    const mine = broker(connecting(url()))
    const source = mine.source({ group: 'g', create: true })
    await (await source.open())!.close()
    const letters = 100_001
    // Placed there by hand: each is a message of its own subject.
    for (let n = 1; n <= letters; n++) admin.publish(`${mine.stream}-dead.letter.g.${n}`)
    await admin.flush()
    const manager = await jetstreamManager(admin)
    const stored = async () => (await manager.streams.info(`${mine.stream}-dead`)).state.messages
    await until('all are stored', async () => (await stored()) >= letters)
    expect((await source.stats()).dead).toBe(letters)
    await mine.close()
  })

  test('poison goes to the dead letters with reason, attempts and its headers, and can be sent back', async () => {
    const mine = broker(connecting(url()))
    const subject = `${mine.stream}.orders.eu`
    const publisher = mine.publisher({ subject })
    const source = mine.source({ group: 'g', create: true })
    const others = mine.source({ group: 'others', create: true })
    const [session, bystander] = [await source.open(), await others.open()]
    const extensions = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tenantid: 'acme' }
    const sent = new Message({ id: 'ö 1', source: '/shop', type: 'order.placed', extensions }, '{"total": -1}')
    await publisher.publish([sent], NEVER)
    const [first] = await receive(session, 1)
    await session.settle([[first!, { kind: 'retry', after: 0, charged: true, error: undefined }]])
    const [second] = await receive(session, 1)
    await session.settle([[second!, dead('the total is\r\nnegative')]])
    const [seen] = await receive(bystander, 1)
    await bystander.settle([[seen!, DONE]])
    const [letter, ...more] = await source.deadLetters()
    expect(more).toEqual([])
    expect(letter).toMatchObject({
      stream: mine.stream,
      group: 'g',
      subject,
      sequence: 1,
      reason: 'the total is negative',
      attempts: 2,
    })
    expect(letter!.headers).toMatchObject({
      'ce-id': '%C3%B6%201',
      'ce-traceparent': extensions.traceparent,
      'Nats-Msg-Id': `/shop ö%20.1 ${subject}`,
      'Nats-Expected-Stream': mine.stream,
    })
    expect(letter!.message?.id).toBe('ö 1')
    expect(letter!.data.toString()).toBe('{"total": -1}')
    expect((await source.stats()).dead).toBe(1)
    expect((await others.stats()).dead).toBe(0)

    expect(await others.rearm(letter!.id), "another group's letter").toBe(false)
    expect(await source.rearm(letter!.id)).toBe(true)
    expect(await source.rearm(letter!.id)).toBe(false)
    const [again] = await receive(session, 1)
    expect([again!.message.id, again!.attempts, again!.message.data]).toEqual(['ö 1', 0, Buffer.from('{"total": -1}')])
    expect(again!.message.extensions).toEqual(extensions)
    await until('others passed it over', async () => {
      expect(await bystander.take({ count: 1, bytes: 1e6 }, AbortSignal.timeout(100))).toEqual([])
      const { pending, lag } = await others.stats()
      return pending + lag === 0
    })
    // And it may die again.
    await session.settle([[again!, dead('still')]])
    const [last] = await source.deadLetters()
    expect(last).toMatchObject({ reason: 'still', attempts: 1, sequence: 2 })
    expect(await source.discard(last!.id)).toBe(true)
    expect(await source.discard(last!.id)).toBe(false)
    await expect(source.rearm('x')).rejects.toThrow(/no dead letter's id/)
    expect(await source.deadLetters()).toEqual([])
    for (const one of [session, bystander]) await one.close()
    await publisher.close()
    await mine.close()
  })

  test('letters are told page by page, group by group', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const source = mine.source({ group: 'g', create: true })
    const session = await source.open()
    const sent = Array.from({ length: 5 }, () => message())
    await publisher.publish(sent, NEVER)
    const taken = await receive(session, 5)
    await session.settle(taken.map((delivery) => [delivery, dead('no')]))
    const first = await source.deadLetters({ count: 3 })
    const rest = await source.deadLetters({ count: 3, after: first.at(-1)!.id })
    expect([...first, ...rest].map((letter) => letter.message?.id)).toEqual(sent.map(({ id }) => id))
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('messages of others: what cannot be decoded goes to the dead letters alone, and the rest arrives', async () => {
    const mine = broker(connecting(url()))
    const source = mine.source({ group: 'g', create: true, block: 100 })
    const session = await source.open()
    const subject = `${mine.stream}.a`
    const odd = headers()
    odd.append('X-Twice', 'one')
    odd.append('X-Twice', 'two')
    odd.append('ce-id', '%ff')
    odd.append('ce-Specversion', '1.0')
    const structured = '{"specversion":"1.0","id":"s-1","source":"/s","type":"t","data":{"n":1}}'
    const typed = headers()
    typed.set('content-type', 'application/cloudevents+json; charset=utf-8')
    const telemetry = recordTelemetry(['message.dead'])
    admin.publish(subject, 'not json')
    admin.publish(subject, Buffer.from([0xff, 0xfe]), { headers: odd })
    admin.publish(subject)
    admin.publish(subject, structured)
    admin.publish(subject, structured.replace('s-1', 's-2'), { headers: typed })
    const taken = await receive(session, 2)
    expect(taken.map((delivery) => delivery.message.id)).toEqual(['s-1', 's-2'])
    await until('the others are dead', async () => {
      await session.take({ count: 1, bytes: 1e6 }, AbortSignal.timeout(50))
      return (await source.stats()).dead === 3
    })
    expect(telemetry.of('message.dead')).toHaveLength(3)
    telemetry.stop()
    const letters = await source.deadLetters()
    expect(letters.map((letter) => letter.message)).toEqual([undefined, undefined, undefined])
    expect(letters[0]!.data.toString()).toBe('not json')
    expect(letters[1]!.data).toEqual(Buffer.from([0xff, 0xfe]))
    expect(letters[1]!.headers).toMatchObject({ 'X-Twice': 'two', 'ce-id': '%ff' })
    for (const { reason } of letters) expect(reason).toMatch(/MALFORMED_MESSAGE/)
    await session.close()
    await mine.close()
  })

  test('what is larger than the stream of dead letters takes waits, is told, and keeps nobody from being handled', async () => {
    const mine = broker(connecting(url()))
    const source = mine.source({ group: 'g', create: true, block: 100, deadLetter: `${mine.stream}-dead` })
    const session = await source.open()
    const manager = await jetstreamManager(admin)
    await manager.streams.update(`${mine.stream}-dead`, { max_msg_size: 2000 })
    const warnings = recordTelemetry(['warning'])
    const subject = `${mine.stream}.a`
    const large = 'x'.repeat(3000)
    admin.publish(subject, `not json ${large}`)
    const publisher = mine.publisher({ subject })
    const sent = [
      message(JSON.stringify(large), { id: 'large' }),
      message('{}', { id: 'small' }),
      message('{}', { id: 'good' }),
    ]
    await publisher.publish(sent, NEVER)
    const taken = await receive(session, 3)
    expect(taken.map((delivery) => delivery.message.id)).toEqual(['large', 'small', 'good'])
    await session.settle([
      [taken[0]!, dead('no')],
      [taken[1]!, dead('no')],
      [taken[2]!, DONE],
    ])
    expect((await source.deadLetters()).map((letter) => letter.message?.id)).toEqual(['small'])
    const told = warnings.of('warning').map((warning) => warning.message)
    expect(
      told.filter((text) => /too large for the dead letters; it is tried again in ten minutes/.test(text)),
    ).toHaveLength(2)
    warnings.stop()
    // Kept, and not in a hot loop.
    expect((await source.stats()).pending).toBe(2)
    await session.close()
    await mine.close()
  })

  test('a stream of dead letters that is full keeps nobody from being handled: what nobody can read waits, and is told', async () => {
    const mine = broker(connecting(url()))
    const source = mine.source({ group: 'g', create: true, block: 100, deadLetter: `${mine.stream}-dead` })
    const session = await source.open()
    const manager = await jetstreamManager(admin)
    await manager.streams.update(`${mine.stream}-dead`, { max_msgs: 1, discard: DiscardPolicy.New })
    const told = recordTelemetry(['warning', 'message.dead'])
    const subject = `${mine.stream}.a`
    for (const text of ['first', 'second']) admin.publish(subject, `not json ${text}`)
    const publisher = mine.publisher({ subject })
    await publisher.publish([message('{}', { id: 'good' }), message('{}', { id: 'better' })], NEVER)
    const taken = await receive(session, 2)
    expect(taken.map((delivery) => delivery.message.id)).toEqual(['good', 'better'])
    await session.settle(taken.map((delivery) => [delivery, DONE]))
    expect(await session.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
    expect(told.of('warning').map((warning) => warning.message)).toEqual([
      expect.stringMatching(/dead letter is refused.*maximum messages exceeded/),
    ])
    expect(await source.deadLetters()).toHaveLength(1)
    // It is waited for: whatever else the process does goes on meanwhile.
    let [turns, over] = [0, false]
    const turn = () => {
      turns++
      if (!over) setImmediate(turn)
    }
    turn()
    await session.take({ count: 1, bytes: 1e6 }, NEVER)
    over = true
    expect(turns).toBeGreaterThan(10)
    await manager.streams.update(`${mine.stream}-dead`, { max_msgs: -1 })
    await until('the other is buried too', async () => {
      await session.take({ count: 1, bytes: 1e6 }, NEVER)
      return told.of('message.dead').length === 2
    })
    expect(await source.deadLetters()).toHaveLength(2)
    told.stop()
    await session.close()
    await mine.close()
  })

  test('headers that leave no room for those of a letter: it is buried without the largest, and those behind it are too', async () => {
    const mine = broker(connecting(url()))
    const source = mine.source({ group: 'g', create: true, block: 100 })
    const session = await source.open()
    const subject = `${mine.stream}.a`
    const block = (name: string, bytes: number) =>
      Buffer.from(`NATS/1.0\r\n${name}: ${'x'.repeat(bytes)}\r\nPlain: p\r\n\r\n`)
    admin.publish(subject, 'not json', { headers: { encode: () => block('Huge', 65_400) } as never })
    admin.publish(subject, 'not json either')
    await admin.flush()
    const publisher = mine.publisher({ subject })
    const sized = (id: string, bytes: number) =>
      new Message({ id, source: '/s', type: 't', extensions: { note: 'y'.repeat(bytes) } }, '{}')
    const outcomes = await publisher.publish([sized('fits', 65_200), sized('not', 66_000), message()], NEVER)
    expect(outcomes).toMatchObject([
      { kind: 'ok' },
      { kind: 'rejected', error: { message: expect.stringMatching(/header size/) } },
      { kind: 'ok' },
    ])
    const [fits, good] = await receive(session, 2)
    await session.settle([
      [fits!, dead('no')],
      [good!, DONE],
    ])
    await until('all are dead', async () => {
      await session.take({ count: 1, bytes: 1e6 }, NEVER)
      return (await source.stats()).dead === 3
    })
    expect(await source.stats()).toMatchObject({ pending: 0, lag: 0 })
    const letters = [...(await source.deadLetters())].sort((a, b) => a.sequence - b.sequence)
    expect(letters.map((letter) => letter.reason)).toEqual([
      expect.stringMatching(/MALFORMED_MESSAGE.* \[without its largest headers, .*: Huge\]$/),
      expect.stringMatching(/MALFORMED_MESSAGE[^[]*(\[[A-Z_]+\][^[]*)?$/),
      expect.stringMatching(/^no \[without its largest headers, .*: ce-note\]$/),
    ])
    expect(letters[0]).toMatchObject({ headers: { Plain: 'p' }, data: Buffer.from('not json') })
    expect(letters[2]!.message?.id).toBe('fits')
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('a message whose consumers die again and again is given up', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message()], NEVER)
    const source = mine.source({ group: 'g', create: true, maxCrashes: 2, ackWait: 1000, block: 50 })
    const attempts: number[] = []
    const sessions = []
    for (let i = 0; i < 2; i++) {
      const session = await source.open()
      sessions.push(session)
      attempts.push(...(await receive(session, 1)).map((delivery) => delivery.attempts))
    }
    expect(attempts).toEqual([0, 1])
    const last = await source.open()
    sessions.push(last)
    await until('it is dead', async () => {
      expect(await last.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
      return (await source.stats()).dead === 1
    })
    expect(await source.deadLetters()).toMatchObject([{ attempts: 2, reason: expect.stringMatching(/CRASHED/) }])
    for (const session of sessions) await session.close()
    await publisher.close()
    await mine.close()
  })
})
