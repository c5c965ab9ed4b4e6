import { describe, expect, test } from 'vitest'
import { RetryLater } from '../../src/core/index.ts'
import type { Settled } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, type Held, record, Store, stop } from './support.ts'

/** As a database refuses what it can never write. */
const refusal = (code = '22021') => Object.assign(new Error('refused'), { code, severity: 'ERROR' })

type Refuses = (settled: Settled<Held>) => boolean

/** A source that refuses a whole batch when it refuses one of it, as a statement does. */
function storeThatRefuses(clock: FakeClock, refuses: Refuses, error: () => unknown = refusal): Store {
  const store = new Store(clock)
  store.before.settle = (batch) => {
    if (batch.some(refuses)) throw error()
  }
  return store
}

const failing = (...ids: string[]) => ({
  each: ({ message }: Held) => {
    if (ids.includes(message.id)) throw new Error(`bad text of ${message.id}`)
  },
})

const BAD: Refuses = ([, settlement]) => settlement.kind === 'retry'

describe('a settlement that can never be written', () => {
  test('because of what it says: the message is dead with a plain reason, and the others are settled', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = storeThatRefuses(clock, BAD).addMany(100)
    const flow = flowOf(clock, store, failing('m17', 'm60'), { concurrency: 100 })
    await flow.start()
    await clock.until(() => store.in('done').length === 98 && store.in('dead').length === 2)
    const [dead] = store.settlements.filter(({ id }) => id === 'm17')
    expect(dead!.settlement).toMatchObject({ kind: 'dead', reason: 'its settlement was refused: 22021' })
    expect(telemetry.of('settlement.refused')).toMatchObject([
      { flow: 'f', id: 'm17', type: 'thing.happened', settlement: 'retry', dead: true },
      { flow: 'f', id: 'm60', settlement: 'retry', dead: true },
    ])
    expect(telemetry.of('message.dead').map(({ id }) => id)).toEqual(['m17', 'm60'])
    await stop(clock, flow)
  })

  test('runOnce counts it as dead', async () => {
    const clock = new FakeClock()
    const store = storeThatRefuses(clock, BAD).addMany(10)
    const flow = flowOf(clock, store, failing('m3'))
    expect(await flow.runOnce()).toEqual({ taken: 10, done: 9, retry: 0, dead: 1, release: 0 })
    await stop(clock, flow)
  })

  for (const deadKey of ['block', 'continue'] as const) {
    test(`of a key: dead, and the key goes on as dead keys do (${deadKey})`, async () => {
      const clock = new FakeClock()
      const store = new Store(clock, { deadKey })
      store.before.settle = (batch) => {
        if (batch.some(BAD)) throw refusal()
      }
      for (let i = 0; i < 5; i++) store.add(`a${i}`, 'a').add(`b${i}`, 'b')
      const flow = flowOf(clock, store, failing('a1'), { retry: { deadKey } })
      await flow.start()
      const done = deadKey === 'block' ? 6 : 9
      await clock.until(() => store.in('done').length === done)
      await clock.advance(10_000)
      expect(store.in('dead')).toEqual(['a1'])
      expect(store.in('done')).toHaveLength(done)
      await stop(clock, flow)
    })
  }

  test('in no form: it is put aside and told once, the others go on, and the flow stops in time', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = storeThatRefuses(clock, ([{ message }]) => message.id === 'm5').addMany(300)
    const handled: string[] = []
    const each = ({ message }: Held) => void handled.push(message.id)
    const flow = flowOf(clock, store, { each }, { concurrency: 5 })
    await flow.start()
    await clock.until(() => store.in('done').length === 299)
    await clock.advance(600_000)
    expect(
      handled.filter((id) => id === 'm5'),
      'dispatched once in this session',
    ).toHaveLength(1)
    expect(telemetry.of('settlement.refused')).toMatchObject([{ id: 'm5', settlement: 'done', dead: false }])
    expect(telemetry.of('message.dead')).toEqual([])
    const tries = telemetry.of('flow.settle_failed').filter(({ count }) => count === 1)
    expect(tries.length, 'tried again, once a minute').toBeGreaterThan(8)
    expect(tries.length).toBeLessThan(25)
    const before = clock.monotonic()
    await stop(clock, flow)
    expect(clock.monotonic() - before).toBeLessThan(1000)
  })

  test('in no form: runOnce does not wait for it', async () => {
    const clock = new FakeClock()
    const store = storeThatRefuses(clock, ([{ message }]) => message.id === 'm3').addMany(10)
    const flow = flowOf(clock, store, { each: () => {} })
    expect(await flow.runOnce()).toMatchObject({ taken: 10 })
    expect(store.in('done')).toHaveLength(9)
    await stop(clock, flow)
  })

  test('and can be later: it is written as it was decided', async () => {
    const clock = new FakeClock()
    let broken = true
    const store = storeThatRefuses(clock, ([{ message }]) => broken && message.id === 'm5').addMany(10)
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.until(() => store.in('done').length === 9)
    await clock.advance(10_000)
    broken = false
    await clock.until(() => store.in('done').length === 10, 61_000)
    expect(store.of('m5')).toEqual(['done'])
    await stop(clock, flow)
  })

  test('of some: what is put aside takes the room of nobody', async () => {
    const clock = new FakeClock()
    const store = storeThatRefuses(clock, ([{ message }]) => Number(message.id.slice(1)) < 7).addMany(40)
    const flow = flowOf(clock, store, { each: () => {} }, { buffer: { count: 8 } })
    await flow.start()
    await clock.until(() => store.in('done').length === 33)
    await clock.advance(10_000)
    const takes = store.events.filter((event) => event.kind === 'take')
    expect(takes.at(-1)!.demand.count, 'the whole buffer').toBe(8)
    await stop(clock, flow)
  })

  test('takes no room from others while it is aside, nor when it is written', async () => {
    const clock = new FakeClock()
    let broken = true
    const bad = ({ message }: Held) => broken && ['m0', 'm1', 'm2'].includes(message.id)
    const store = storeThatRefuses(clock, ([delivery]) => bad(delivery)).addMany(20)
    const flow = flowOf(clock, store, { each: () => {} }, { buffer: { count: 4 } })
    await flow.start()
    await clock.until(() => store.in('done').length === 17)
    await clock.advance(10_000)
    const asked = () => store.events.filter((event) => event.kind === 'take').at(-1)!.demand.count
    expect(asked()).toBe(4)
    broken = false
    await clock.until(() => store.in('done').length === 20, 61_000)
    await clock.advance(10_000)
    expect(asked()).toBe(4)
    await stop(clock, flow)
  })

  test('of many: no more are taken than fit twice, and a person is told', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = storeThatRefuses(clock, () => true).addMany(100)
    const flow = flowOf(clock, store, { each: () => {} }, { buffer: { count: 12 } })
    await flow.start()
    await clock.advance(300_000)
    expect(store.unsettled).toBeLessThanOrEqual(24)
    expect(telemetry.of('warning').map(({ message }) => message)).toEqual([
      expect.stringMatching(/nothing more is taken/),
    ])
    await stop(clock, flow)
  })

  test('with an error nobody knows: found when others are written, and put aside', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = storeThatRefuses(
      clock,
      ([{ message }]) => message.id === 'm5',
      () => new Error('hm'),
    ).addMany(300)
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.until(() => store.in('done').length === 299, 120_000)
    expect(telemetry.of('settlement.refused')).toMatchObject([{ id: 'm5', dead: false }])
    await stop(clock, flow)
  })

  test('of many, with an error nobody knows: the others wait for a few seconds at most', async () => {
    const clock = new FakeClock()
    const culprits = new Set(Array.from({ length: 30 }, (_, i) => `m${i * 3 + 1}`))
    const refuses: Refuses = ([{ message }]) => culprits.has(message.id)
    const store = storeThatRefuses(clock, refuses, () => new Error('boom')).addMany(100)
    const flow = flowOf(clock, store, { each: () => {} }, { concurrency: 100 })
    await flow.start()
    const began = clock.monotonic()
    await clock.until(() => store.in('done').length === 70)
    expect(clock.monotonic() - began).toBeLessThan(5000)
    await stop(clock, flow)
  })

  test('alone, with an error nobody knows: others that come later are not kept waiting', async () => {
    const clock = new FakeClock()
    const store = storeThatRefuses(
      clock,
      ([{ message }]) => message.id === 'm0',
      () => new Error('hm'),
    ).addMany(1)
    const flow = flowOf(clock, store, { each: () => {} }, { concurrency: 2 })
    await flow.start()
    await clock.advance(60_000)
    for (let i = 1; i < 50; i++) store.add(`m${i}`)
    await clock.until(() => store.in('done').length === 49, 300_000)
    await stop(clock, flow)
  })

  test('alone for a moment, with an error nobody knows: others that come then wait for a few seconds at most', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const refuses: Refuses = ([{ message }]) => message.id === 'm0'
    const store = storeThatRefuses(clock, refuses, () => new Error('hm')).addMany(1)
    const flow = flowOf(clock, store, { each: () => {} }, { concurrency: 2 })
    await flow.start()
    await clock.until(() => telemetry.of('flow.settle_failed').length >= 4)
    const began = clock.monotonic()
    store.add('m1')
    await clock.until(() => store.in('done').length === 1, 300_000)
    expect(clock.monotonic() - began).toBeLessThan(10_000)
    await stop(clock, flow)
  })

  test('an outage puts nobody aside, however long it takes', async () => {
    for (const error of [() => new Error('hm'), () => Object.assign(new Error('gone'), { code: 'ECONNREFUSED' })]) {
      const clock = new FakeClock()
      const telemetry = record()
      let away = true
      const store = storeThatRefuses(clock, () => away, error).addMany(30)
      const flow = flowOf(clock, store, { each: () => {} })
      await flow.start()
      await clock.advance(3_600_000)
      away = false
      await clock.until(() => store.in('done').length === 30, 61_000)
      expect(telemetry.of('settlement.refused')).toEqual([])
      await stop(clock, flow)
    }
  })

  test('one that cannot be given back stops its key, and nobody else', async () => {
    const clock = new FakeClock()
    const broken = new Set(['a1', 'a2'])
    const refuses: Refuses = ([{ message }, { kind }]) => broken.has(message.id) && kind === 'release'
    const store = storeThatRefuses(clock, refuses).add('a0', 'a')
    const order: string[] = []
    let failures = 1
    const each = ({ message: { id } }: Held) => {
      if (id === 'a0' && failures-- > 0) throw new Error('later')
      order.push(id)
    }
    // Another of the key comes while the source is being told of the first: it is to be given back.
    store.afterTake = () => clock.sleep(10)
    const flow = flowOf(clock, store, { each }, { poll: 5, maxPoll: 5 })
    await flow.start()
    await clock.until(() => store.events.some(({ kind }) => kind === 'take'))
    store.add('a1', 'a').add('a2', 'a').add('a3', 'a')
    const { settle } = store.before
    store.before.settle = async (batch) => {
      await clock.sleep(20)
      await settle!(batch)
    }
    await clock.advance(50)
    store.addMany(20)
    await clock.until(() => store.in('done').length >= 20, 10_000)
    broken.delete('a1')
    await clock.advance(120_000)
    expect(order.filter((id) => id.startsWith('a'))).toEqual([])
    broken.delete('a2')
    await clock.until(() => store.in('done').length === 24, 120_000)
    expect(order.filter((id) => id.startsWith('a'))).toEqual(['a0', 'a1', 'a2', 'a3'])
    await stop(clock, flow)
  })

  test('a key whose retry cannot be written stands still, without being asked for again and again', async () => {
    const clock = new FakeClock()
    const store = storeThatRefuses(clock, ([{ message }]) => message.id === 'a0')
    for (let i = 0; i < 5; i++) store.add(`a${i}`, 'a')
    const flow = flowOf(clock, store, failing('a0'))
    await flow.start()
    await clock.advance(60_000)
    expect(store.in('done')).toEqual([])
    expect(store.events.filter(({ kind }) => kind === 'take').length).toBeLessThan(100)
    store.add('b0', 'b')
    await clock.until(() => store.in('done').includes('b0'), 10_000)
    await stop(clock, flow)
  })
})

test('a delay is never longer than a year', async () => {
  const clock = new FakeClock()
  const store = new Store(clock).addMany(2)
  const each = ({ message }: Held) => {
    if (message.id === 'm0') throw new RetryLater(1e18)
  }
  const flow = flowOf(clock, store, { each })
  await flow.runOnce()
  const [settled] = store.settlements.filter(({ id }) => id === 'm0')
  expect(settled!.settlement).toMatchObject({ kind: 'retry', after: 365 * 86_400_000 })
  await stop(clock, flow)
})
