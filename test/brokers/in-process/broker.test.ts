import { describe, expect, test } from 'vitest'
import { InProcessBroker, type InProcessDelivery } from '../../../src/brokers/in-process/index.ts'
import { event, local, Message } from '../../../src/core/index.ts'
import { DONE, RELEASE, type Session, type Settlement, setTopic } from '../../../src/flow/index.ts'
import { Router } from '../../../src/router/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'

const { signal } = new AbortController()
const ALL = { count: 1000, bytes: 1e9 }

function message(id: string, options: { type?: string; key?: string } = {}): Message<string> {
  const extensions = options.key === undefined ? {} : { partitionkey: options.key }
  return new Message({ id, source: '/s', type: options.type ?? 'order.placed', extensions }, '{}')
}

function retry(after: number): Settlement {
  return { kind: 'retry', after, charged: true, error: new Error('again') }
}

function dead(reason: string): Settlement {
  return { kind: 'dead', reason, error: new Error(reason) }
}

async function open(broker: InProcessBroker, name = 'all'): Promise<Session<InProcessDelivery>> {
  return (await broker.source(name).open(signal))!
}

async function take(session: Session<InProcessDelivery>, count = 1000): Promise<readonly InProcessDelivery[]> {
  return await session.take({ count, bytes: 1e9 }, signal)
}

function ids(deliveries: readonly InProcessDelivery[]): string {
  return deliveries.map((delivery) => delivery.message.id).join(' ')
}

function kinds(outcomes: readonly { kind: string }[]): string {
  return outcomes.map(({ kind }) => kind).join(' ')
}

describe('subscriptions', () => {
  test('get the topics they name, by pattern', async () => {
    const broker = new InProcessBroker()
    broker.source('billing', { topics: ['order.*', 'invoice.sent'] })
    broker.source('orders', { topics: ['order.#'] })
    broker.source('all')
    const types = ['order', 'order.placed', 'order.line.added', 'invoice.sent', 'invoice.paid', 'border.placed']
    await broker.publish(types.map((type) => message(type, { type })))
    expect(ids(await take(await open(broker, 'billing')))).toBe('order.placed invoice.sent')
    expect(ids(await take(await open(broker, 'orders')))).toBe('order order.placed order.line.added')
    expect((await take(await open(broker, 'all'))).length).toBe(6)
  })

  test('the topic is the type, or what an outbox said, or what the publisher was given', async () => {
    const broker = new InProcessBroker()
    broker.source('audit', { topics: ['audit'] })
    const marked = message('marked')
    setTopic(marked, 'audit')
    await broker.publish([message('unmarked'), marked])
    await broker.publisher({ topic: 'audit' }).publish([message('fixed')], signal)
    await broker.publisher({ topic: ({ id }) => id }).publish([message('audit'), message('other')], signal)
    expect(ids(await take(await open(broker, 'audit')))).toBe('marked fixed audit')
  })

  test('exist from the moment they are named; what came before is not seen', async () => {
    const broker = new InProcessBroker()
    await broker.publish([message('before')])
    broker.source('all')
    await broker.publish([message('after')])
    expect(ids(await take(await open(broker)))).toBe('after')
  })

  test('get the last messages where they are retained', async () => {
    const broker = new InProcessBroker({ retain: 2 })
    await broker.publish([message('1'), message('2'), message('3', { type: 'other' })])
    broker.source('orders', { topics: ['order.*'] })
    expect(ids(await take(await open(broker, 'orders')))).toBe('2')
    expect(ids(await take(await open(broker, 'all')))).toBe('2 3')
  })

  test('a topic that nobody subscribes to is told once', async () => {
    const recorder = recordTelemetry(['warning'])
    const broker = new InProcessBroker({ name: 'lonely' })
    expect(kinds(await broker.publish([message('1'), message('2')]))).toBe('ok ok')
    recorder.stop()
    expect(recorder.of('warning').map(({ message }) => message)).toEqual([
      'nobody subscribes to order.placed: its messages are dropped',
    ])
  })

  test('the same name joins; other options under the same name are refused', () => {
    const broker = new InProcessBroker()
    const source = broker.source('billing', { topics: ['order.*'], limit: 5 })
    expect(broker.source('billing')).toBe(source)
    expect(broker.source('billing', { topics: ['order.*'], limit: 5 })).toBe(source)
    expect(() => broker.source('billing', { topics: ['#'] })).toThrow('exists already, with other options')
  })

  test('can be removed', async () => {
    const broker = new InProcessBroker()
    const session = await open(broker)
    expect(broker.unsubscribe('all')).toBe(true)
    expect(session.lost.aborted).toBe(true)
    expect(broker.unsubscribe('all')).toBe(false)
    expect(() => broker.stats('all')).toThrow('no subscription "all". Known: none')
  })

  test('bad input is refused with a reason', () => {
    const broker = new InProcessBroker()
    expect(() => new InProcessBroker({ retian: 1 } as never)).toThrow('did you mean "retain"?')
    expect(() => broker.source('')).toThrow('needs a name')
    expect(() => broker.source('a', { topics: [] })).toThrow('list of names')
    expect(() => broker.source('a', { topics: ['a.#.b'] })).toThrow('not at the end')
    expect(() => broker.source('a', { topics: [''] })).toThrow('no pattern')
    expect(() => broker.source('a', { limit: 0 })).toThrow('at least 1')
    expect(() => broker.source('a', { deadKey: 'blok' as never })).toThrow('did you mean "block"?')
    expect(() => broker.publisher({ topic: '' })).toThrow('topic must be')
    expect(() => broker.dead('nope')).toThrow('no subscription "nope"')
  })
})

describe('redelivery', () => {
  test('comes at its time on the injected clock, and wakes whoever waits', async () => {
    const clock = new FakeClock()
    const broker = new InProcessBroker({ clock })
    const session = await open(broker)
    await broker.publish([message('a')])
    await session.settle([[(await take(session))[0]!, retry(5000)]])
    let woken = false
    const waiting = session.wait!(60_000, signal).then(() => {
      woken = true
    })
    await clock.advance(4999)
    expect([woken, ids(await take(session))]).toEqual([false, ''])
    await clock.advance(1)
    await waiting
    const [again] = await take(session)
    expect([again!.message.id, again!.attempts]).toEqual(['a', 1])
  })

  test('a retry that is due sooner than what a waiter knew of wakes it', async () => {
    const clock = new FakeClock()
    const broker = new InProcessBroker({ clock })
    const [one, two] = [await open(broker), await open(broker)]
    await broker.publish([message('a'), message('b')])
    const [a, b] = await take(one)
    await one.settle([[a!, retry(50_000)]])
    const waiting = two.wait!(60_000, signal)
    await one.settle([[b!, retry(10)]])
    await waiting
    await clock.advance(10)
    expect(ids(await take(two))).toBe('b')
  })

  test('what is published wakes whoever waits, at once', async () => {
    const clock = new FakeClock()
    const broker = new InProcessBroker({ clock })
    const session = await open(broker)
    const waiting = session.wait!(60_000, signal)
    expect(clock.sleepers).toBe(1)
    await broker.publish([message('a')])
    await waiting
    expect(clock.sleepers).toBe(0)
  })

  test('each delivery has a message of its own: notes made on one do not reach another', async () => {
    const note = local<string>('note')
    const broker = new InProcessBroker()
    const [one, two] = [await open(broker, 'one'), await open(broker, 'two')]
    const sent = message('a')
    sent.setLocal(note, 'of the publisher')
    await broker.publish([sent])
    const [first] = await take(one)
    expect(first!.message.local(note)).toBeUndefined()
    first!.message.setLocal(note, 'of the first try')
    await one.settle([[first!, RELEASE]])
    expect((await take(one))[0]!.message.local(note)).toBeUndefined()
    expect((await take(two))[0]!.message.local(note)).toBeUndefined()
  })
})

describe('order per key', () => {
  test('while one session has some of a key, another gets none of it', async () => {
    const broker = new InProcessBroker()
    const [one, two] = [await open(broker), await open(broker)]
    await broker.publish(['a1', 'a2', 'b1', 'a3', 'x'].map((id) => message(id, id === 'x' ? {} : { key: id[0]! })))
    const [a1] = await take(one, 1)
    expect(ids(await take(two, 10))).toBe('b1 x')
    expect(ids(await take(one, 1))).toBe('a2')
    await one.settle([[a1!, DONE]])
    expect(ids(await take(two))).toBe('')
    await one.close()
    expect(ids(await take(two))).toBe('a2 a3')
  })

  test('what a lost session had comes again in its old order, before what is newer', async () => {
    const broker = new InProcessBroker()
    const one = await open(broker)
    const sent = ['a1', 'x1', 'b1', 'a2', 'x2', 'b2', 'a3'].map((id) =>
      message(id, id[0] === 'x' ? {} : { key: id[0]! }),
    )
    await broker.publish(sent)
    const taken = await take(one, 6)
    await one.settle([[taken[2]!, DONE]])
    broker.disconnect()
    expect(one.lost.aborted).toBe(true)
    expect(await one.settle([[taken[0]!, DONE]])).toBe(1)
    expect(ids(await take(one))).toBe('')
    expect(ids(await take(await open(broker)))).toBe('a1 x1 a2 x2 b2 a3')
  })

  test('a dead one blocks its key until it is re-armed, and then comes first', async () => {
    const broker = new InProcessBroker()
    const session = await open(broker)
    await broker.publish([message('a1', { key: 'a' }), message('a2', { key: 'a' }), message('b1', { key: 'b' })])
    await session.settle([[(await take(session, 1))[0]!, dead('bad total')]])
    expect(ids(await take(session))).toBe('b1')
    expect(broker.rearm('all', 'a1')).toBe(1)
    const again = await take(session)
    expect(ids(again)).toBe('a1 a2')
    expect(again[0]!.attempts).toBe(0)
  })

  test('a discarded one lets its key go on', async () => {
    const broker = new InProcessBroker()
    const session = await open(broker)
    await broker.publish([message('a1', { key: 'a' }), message('a2', { key: 'a' })])
    await session.settle([[(await take(session, 1))[0]!, dead('bad total')]])
    expect(ids(await take(session))).toBe('')
    expect(broker.discard('all', ({ reason }) => reason === 'bad total')).toBe(1)
    expect(ids(await take(session))).toBe('a2')
    expect(broker.dead('all')).toEqual([])
  })

  test("where dead keys continue, a dead one blocks nobody, and a re-armed one comes at its key's turn", async () => {
    const broker = new InProcessBroker()
    broker.source('all', { deadKey: 'continue' })
    const session = await open(broker)
    await broker.publish([message('a1', { key: 'a' }), message('a2', { key: 'a' })])
    await session.settle([[(await take(session, 1))[0]!, dead('bad')]])
    await session.settle([[(await take(session, 1))[0]!, DONE]])
    await broker.publish([message('a3', { key: 'a' })])
    expect(broker.rearm('all')).toBe(1)
    expect(ids(await take(session))).toBe('a1 a3')
  })
})

describe('dead letters', () => {
  test('are kept with what is needed to judge them', async () => {
    const clock = new FakeClock()
    const broker = new InProcessBroker({ clock })
    const session = await open(broker)
    await broker.publish([message('a')])
    await session.settle([[(await take(session))[0]!, retry(0)]])
    await session.settle([[(await take(session))[0]!, dead('2 attempts: bad')]])
    const [letter] = broker.dead('all')
    expect(letter).toMatchObject({ reason: '2 attempts: bad', attempts: 2, at: clock.now() })
    expect(letter!.message.id).toBe('a')
    expect(letter!.error).toBe('Error: 2 attempts: bad')
  })
})

describe('limits', () => {
  test('a full subscription is answered failed, and nothing arrives anywhere', async () => {
    const broker = new InProcessBroker()
    broker.source('small', { limit: 2 })
    broker.source('large')
    expect(kinds(await broker.publish([message('1'), message('2'), message('3')]))).toBe('ok ok failed')
    expect(broker.stats('large').ready).toBe(2)
    const session = await open(broker, 'small')
    const [one] = await take(session, 1)
    expect(kinds(await broker.publish([message('3')]))).toBe('failed')
    await session.settle([[one!, DONE]])
    expect(kinds(await broker.publish([message('3')]))).toBe('ok')
  })

  test('after one of a key did not arrive, none after it does', async () => {
    const broker = new InProcessBroker()
    broker.source('small', { topics: ['narrow'], limit: 1 })
    broker.source('large', { topics: ['wide'] })
    const outcomes = await broker.publish([
      message('a1', { type: 'narrow', key: 'a' }),
      message('a2', { type: 'narrow', key: 'a' }),
      message('a3', { type: 'wide', key: 'a' }),
      message('b1', { type: 'wide', key: 'b' }),
    ])
    expect(kinds(outcomes)).toBe('ok failed failed ok')
    expect(ids(await take(await open(broker, 'large')))).toBe('b1')
  })
})

describe('lifecycle', () => {
  test('a closed broker is down, loses its sessions and opens none', async () => {
    const broker = new InProcessBroker()
    const session = await open(broker)
    await broker.close()
    await broker.close()
    expect(session.lost.aborted).toBe(true)
    expect(kinds(await broker.publish([message('1')]))).toBe('down')
    await expect(broker.source('all').open(signal)).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    await expect(broker.source('new').open(signal)).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    await session.wait!(60_000, signal)
  })

  test('stats add up', async () => {
    const broker = new InProcessBroker()
    const session = await open(broker)
    await broker.publish(['1', '2', '3', '4', '5', '6'].map((id) => message(id, { key: id === '6' ? '5' : id })))
    const [one, two, three] = await take(session, 3)
    await session.settle([
      [one!, DONE],
      [two!, retry(10_000)],
      [three!, dead('bad')],
    ])
    await take(session, 1)
    expect(broker.stats('all')).toEqual({ ready: 2, unsettled: 1, retrying: 1, dead: 1 })
  })

  test('carries typed events to a router, several of it competing', async () => {
    const OrderPlaced = event<{ total: number }>('order.placed')
    const broker = new InProcessBroker()
    let total = 0
    const consumers = [1, 2].map(() =>
      new Router('billing')
        .on(OrderPlaced, ({ data }) => {
          total += data.total
        })
        .consume(broker.source('billing', { topics: ['order.*'] })),
    )
    await broker.publish(Array.from({ length: 100 }, (_, i) => OrderPlaced({ total: i }, { key: `k${i % 7}` })))
    for (const consumer of consumers) await consumer.start()
    const session = await open(broker, 'billing')
    while (broker.stats('billing').ready + broker.stats('billing').unsettled > 0) await session.wait!(5, signal)
    for (const consumer of consumers) await consumer.stop()
    expect(total).toBe(4950)
    expect(await session.take(ALL, signal)).toEqual([])
  })
})
