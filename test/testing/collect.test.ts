import { describe, expect, test } from 'vitest'
import { Message, type RawMessage, RetryLater, telemetry } from '../../src/core/index.ts'
import { Flow } from '../../src/flow/index.ts'
import { collector, FakeClock, recordTelemetry, scriptedSource } from '../../src/testing/index.ts'

const signal = new AbortController().signal

function message(id: string, key?: string): RawMessage {
  return new Message({ id, source: '/s', type: 'made', extensions: key ? { partitionkey: key } : {} }, '{}')
}

function kinds(outcomes: readonly { kind: string }[]): string[] {
  return outcomes.map(({ kind }) => kind)
}

describe('collector', () => {
  test('keeps what arrived and refuses what it was told to refuse', async () => {
    const to = collector()
    to.fail({ id: 'b', times: 1, after: '2s' })
    const takeBack = to.reject({ where: ({ id }) => id === 'c' })
    const batch = [message('a'), message('b'), message('c')]
    const outcomes = await to.publish(batch, signal)
    expect(kinds(outcomes)).toEqual(['ok', 'failed', 'rejected'])
    expect(outcomes[1]).toMatchObject({ after: 2000 })
    expect(to.messages.map(({ id }) => id)).toEqual(['a'])
    takeBack()
    expect(kinds(await to.publish(batch, signal))).toEqual(['ok', 'ok', 'ok'])
    expect(to.calls.length).toBe(2)
  })

  test('the newest rule is asked first', async () => {
    const to = collector()
    to.fail({ type: 'made' })
    to.reject({ id: 'a' })
    expect(kinds(await to.publish([message('a'), message('b')], signal))).toEqual(['rejected', 'failed'])
  })

  test('down and crash', async () => {
    const to = collector()
    const up = to.down()
    expect(kinds(await to.publish([message('a')], signal))).toEqual(['down'])
    up()
    to.crash({ id: 'b', times: 1 })
    await expect(to.publish([message('a'), message('b')], signal)).rejects.toThrow('told to crash')
    expect(to.messages).toEqual([])
  })

  test('as an ordered publisher it takes none of a key after one that did not arrive', async () => {
    const to = collector({ ordered: true })
    to.reject({ id: 'a1' })
    const batch = [message('a1', 'a'), message('b1', 'b'), message('a2', 'a'), message('x')]
    expect(kinds(await to.publish(batch, signal))).toEqual(['rejected', 'ok', 'failed', 'ok'])
  })

  test('holds and delays', async () => {
    const clock = new FakeClock()
    const to = collector({ delay: '1s', clock })
    const letGo = to.hold()
    let answered = false
    const publishing = to.publish([message('a')], signal).then(() => {
      answered = true
    })
    await clock.advance(1000)
    expect(answered).toBe(false)
    letGo()
    await publishing
    expect(to.messages.length).toBe(1)
  })

  test('arrived says how far it came', async () => {
    const to = collector()
    const two = to.arrived(2)
    await to.publish([message('a'), message('b')], signal)
    expect((await two).length).toBe(2)
    await expect(to.arrived(3, 10)).rejects.toThrow('2 of 3 messages have arrived')
    to.clear()
    expect([to.messages.length, to.calls.length]).toEqual([0, 0])
  })
})

describe('scripted source', () => {
  test('a flow takes its batches, and every settlement is written down', async () => {
    const error = new Error('no luck')
    const from = scriptedSource([[message('a'), { message: message('b'), attempts: 24 }], [message('c')]], {
      features: { redelivers: true },
    })
    const flow = new Flow({
      name: 'scripted',
      from,
      step: {
        each: ({ message: { id } }) => {
          if (id === 'b') throw error
          if (id === 'c') throw new RetryLater('3s')
        },
      },
    })
    expect(await flow.runOnce()).toMatchObject({ taken: 2, done: 1, dead: 1 })
    expect(await flow.runOnce()).toMatchObject({ taken: 1, retry: 1 })
    await flow.stop()
    expect(from.settlementOf('a')).toEqual({ kind: 'done' })
    expect(from.settlementOf('b')).toMatchObject({ kind: 'dead', error })
    expect(from.settlementOf('c')).toMatchObject({ kind: 'retry', after: 3000, charged: true })
    expect(from.settlements.map(({ message, attempts }) => [message.id, attempts])).toEqual([
      ['a', 0],
      ['b', 24],
      ['c', 0],
    ])
    expect([from.opened, from.closed, from.unsettled]).toEqual([1, 1, 0])
  })

  test('gives no more than was asked for', async () => {
    const from = scriptedSource([[message('a'), message('b'), message('c')]])
    const session = (await from.open(signal))!
    expect((await session.take({ count: 2, bytes: 1 }, signal)).length).toBe(2)
    expect((await session.take({ count: 2, bytes: 1 }, signal)).length).toBe(1)
    expect(from.unsettled).toBe(3)
  })

  test('fails to open, to take and to settle as told, and can be lost', async () => {
    const from = scriptedSource([[new Error('the socket hung up')], [message('a')]])
    from.failOpens(1)
    await expect(from.open(signal)).rejects.toThrow('told to fail')
    const session = (await from.open(signal))!
    const demand = { count: 10, bytes: 1000 }
    await expect(session.take(demand, signal)).rejects.toThrow('hung up')
    const [delivery] = await session.take(demand, signal)
    from.failSettles(1, new Error('read only'))
    await expect(session.settle([[delivery!, { kind: 'done' }]])).rejects.toThrow('read only')
    from.lose('gone')
    expect([session.lost.aborted, session.lost.reason]).toEqual([true, 'gone'])
    expect(await session.settle([[delivery!, { kind: 'done' }]])).toBe(1)
    expect(from.settlements).toEqual([])
  })

  test('a push wakes whoever waits', async () => {
    const from = scriptedSource()
    const session = (await from.open(signal))!
    const waiting = session.wait!(1_000_000, signal)
    from.push(message('a'))
    await waiting
    const settled = from.settled(1)
    const [delivery] = await session.take({ count: 1, bytes: 1 }, signal)
    await session.settle([[delivery!, { kind: 'release' }]])
    expect((await settled)[0]!.settlement.kind).toBe('release')
    await expect(from.settled(2, 10)).rejects.toThrow('1 of 2 settlements')
  })
})

describe('telemetry recorder', () => {
  test('records what it was asked for, in order, until it is stopped', async () => {
    const recorder = recordTelemetry(['warning', 'flow.opened'])
    const next = recorder.next('warning', ({ where }) => where === 'second')
    telemetry.warning.publish({ where: 'first', message: 'm' })
    telemetry['flow.opened'].publish({ flow: 'f' })
    telemetry['worker.started'].publish({ worker: 'w' })
    telemetry.warning.publish({ where: 'second', message: 'm' })
    expect(await next).toEqual({ where: 'second', message: 'm' })
    expect(recorder.events.map(({ name }) => name)).toEqual(['warning', 'flow.opened', 'warning'])
    expect(recorder.of('flow.opened')).toEqual([{ flow: 'f' }])
    await expect(recorder.next('flow.opened', () => false, 10)).rejects.toThrow('no fitting flow.opened among 1')
    recorder.stop()
    telemetry.warning.publish({ where: 'third', message: 'm' })
    expect(recorder.of('warning').length).toBe(2)
    expect(telemetry.warning.active).toBe(false)
    recorder.clear()
    expect(recorder.events).toEqual([])
  })
})
