import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, Gate, type Held, message, record, Store, stop } from './support.ts'

describe('a source in trouble', () => {
  it('is opened again and again with growing pauses, not in a hot loop', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    store.before.open = () => {
      throw new Error('refused')
    }
    const flow = flowOf(clock, store, { each: () => {} }, { outage: { min: 200, max: 30_000, jitter: 0 } })
    await flow.start()
    await clock.advance(60_000)
    // 0.2 + 0.4 + … + 25.6 s, then every 30 s.
    expect(store.opened).toBe(9)
    expect(telemetry.of('flow.open_failed').map((event) => event.retryIn)).toEqual([
      200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000,
    ])
    store.before = {}
    await clock.until(() => store.in('done').length === 1, 40_000)
    await stop(clock, flow)
  })

  it('is asked again after growing pauses when a take fails, and nothing is lost', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    let takes = 0
    store.before.take = () => {
      takes++
      throw new Error('timeout')
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.advance(60_000)
    expect(takes).toBe(9)
    expect(telemetry.of('flow.take_failed')).toHaveLength(9)
    store.before = {}
    await clock.until(() => store.in('done').length === 1, 40_000)
    await stop(clock, flow)
  })

  it('whose sessions are lost at once is not opened in a hot loop', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    store.before.take = () => store.lose()
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.advance(60_000)
    expect(store.opened).toBeLessThan(12)
    await stop(clock, flow)
  })

  it('that another has the right to read is asked again after the poll interval, and that is no failure', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    let asked = 0
    const open = store.open.bind(store)
    const from = Object.assign(Object.create(store), {
      open: async (signal: AbortSignal) => (++asked < 5 ? undefined : open(signal)),
    })
    const flow = flowOf(clock, from, { each: () => {} }, { poll: 1000 })
    await flow.start()
    await clock.advance(3500)
    expect(asked).toBe(4)
    await clock.advance(1000)
    expect(store.in('done')).toEqual(['a'])
    expect(telemetry.of('flow.open_failed')).toEqual([])
    await stop(clock, flow)
  })

  it('that cannot be told a settlement is told again until it knows, and telemetry says so', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(3)
    let failures = 4
    store.before.settle = () => {
      if (failures-- > 0) throw new Error('connection reset')
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.until(() => store.in('done').length === 3)
    expect(telemetry.of('flow.settle_failed').map(({ count, lost }) => ({ count, lost }))).toEqual(
      // For a reason unknown: after three failures it is tried in pieces.
      [3, 3, 3, 1].map((count) => ({ count, lost: false })),
    )
    expect(store.settlements).toHaveLength(3)
    await stop(clock, flow)
  })

  it('keeps what it cannot settle in its buffer: taking stops, memory does not grow', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(100)
    store.before.settle = () => {
      throw new Error('read-only')
    }
    const flow = flowOf(clock, store, { each: () => {} }, { buffer: { count: 12 } })
    await flow.start()
    await clock.advance(100_000)
    expect(store.unsettled).toBe(12)
    store.before = {}
    await clock.until(() => store.in('done').length === 100)
    await stop(clock, flow)
  })
})

describe('a lost session', () => {
  it('settles nothing it had taken, tells the handlers, and another is opened', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(4)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2 })
    await flow.start()
    await clock.settle()
    expect(gate.inside).toEqual(['m0', 'm1'])
    const reason = new Error('the lease expired')
    store.lose(reason)
    expect(gate.calls.map((call) => call.signal.reason)).toEqual([reason, reason])
    gate.end('m0')
    gate.end('m1', new Error('told to give up'))
    await clock.settle()
    expect(store.settlements).toEqual([])
    expect(telemetry.of('flow.lost')).toMatchObject([{ unsettled: 4, reason }])
    await clock.until(() => store.opened === 2)
    for (let i = 0; i < 4; i++) {
      gate.endAll()
      await clock.settle()
    }
    expect(store.in('done')).toHaveLength(4)
    await stop(clock, flow)
  })

  it('leaves nothing behind in a flow that goes on: neither a listener nor what it listens for', async () => {
    const clock = new FakeClock()
    const store = new Store(clock)
    const signals: AbortSignal[] = []
    // All who listen share one listener, which goes with the last of them.
    const listeners: number[] = []
    store.before.open = (signal) => {
      signals.push(signal)
      listeners.push(getEventListeners(signal, 'abort').length)
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    for (let session = 1; session <= 12; session++) {
      await clock.until(() => store.opened === session)
      await clock.settle()
      store.lose()
    }
    expect(new Set(signals).size).toBe(1)
    expect(listeners).toEqual(listeners.map(() => 0))
    await stop(clock, flow)
    expect(getEventListeners(signals[0]!, 'abort')).toEqual([])
  })

  it('is left although its settle hangs and its close fails', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    store.before.settle = () => (store.opened === 1 ? new Promise(() => {}) : undefined)
    store.before.close = () => {
      if (store.opened === 1) throw new Error('connection is closed')
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.settle()
    store.lose()
    await clock.until(() => store.in('done').length === 1, 1500)
    expect(store.settlements).toHaveLength(1)
    await stop(clock, flow)
  })

  it.each(['extend', 'close'] as const)('is left within a second or two although its %s hangs', async (where) => {
    const clock = new FakeClock()
    const store = new Store(clock, { extendEvery: 100 })
    store.before[where] = () => (store.opened === 1 ? new Promise(() => {}) : undefined)
    const flow = flowOf(clock, store, { each: () => {} }, { grace: '10s' })
    await flow.start()
    await clock.advance(150)
    store.add('a')
    store.lose()
    await clock.until(() => store.in('done').length === 1, 2500)
    await stop(clock, flow)
  })

  it('is not told to be lost when closing it aborts its signal', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    store.before.close = () => store.controller.abort(new Error('closed'))
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.settle()
    await stop(clock, flow)
    expect(telemetry.of('flow.lost')).toEqual([])
  })

  it('starts over carefully: what was in flight goes out one by one in the next', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(8)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 4 })
    await flow.start()
    await clock.settle()
    expect(gate.inside.length).toBe(4)
    store.lose()
    gate.endAll()
    await clock.until(() => gate.inside.length > 0)
    await clock.advance(100)
    expect(gate.inside).toEqual(['m0'])
    gate.endAll()
    await clock.settle()
    expect(gate.inside).toEqual(['m1'])
    gate.endAll()
    await clock.settle()
    expect(gate.inside).toEqual(['m2', 'm3', 'm4', 'm5'])
    gate.endAll()
    await stop(clock, flow)
  })
})

describe('a session that is not live', () => {
  it('dispatches nothing, and goes on when it is live again', async () => {
    const clock = new FakeClock()
    let live: boolean | 'broken' = true
    const isLive = () => {
      if (live === 'broken') throw new Error('a bug of the source')
      return live
    }
    const store = new Store(clock, { live: isLive }).addMany(5)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 1 })
    await flow.start()
    await clock.settle()
    live = false
    gate.endAll()
    await clock.advance(100_000)
    expect(gate.order).toEqual(['m0'])
    live = 'broken'
    await clock.advance(1000)
    expect(gate.order).toEqual(['m0'])
    live = true
    await clock.advance(1000)
    expect(gate.order).toEqual(['m0', 'm1'])
    gate.endAll()
    await stop(clock, flow)
  })
})

describe('extend', () => {
  it('is called on schedule with all that is unsettled, also while draining', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { extendEvery: 1000 }).addMany(3)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 1, buffer: { count: 3 }, grace: '10s' })
    await flow.start()
    await clock.advance(3500)
    const extends_ = () => store.events.flatMap((event) => (event.kind === 'extend' ? [event] : []))
    const times = extends_().map(({ at }) => at)
    expect(times.slice(1).map((time, i) => time - times[i]!)).toEqual([1000, 1000, 1000])
    expect([...extends_().at(-1)!.ids].sort()).toEqual(['m0', 'm1', 'm2'])
    const stopping = flow.stop()
    await clock.advance(3000)
    expect(extends_().at(-1)!.ids).toEqual(['m0'])
    gate.endAll()
    await clock.settle()
    await stopping
    const count = extends_().length
    await clock.advance(5000)
    expect(extends_()).toHaveLength(count)
  })

  it('covers what waits for its settlement or its retry', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { extendEvery: 100, features: {} }).add('a').add('b')
    store.before.settle = () => clock.sleep(10_000)
    const retry = { backoff: { min: '5s', jitter: 0 } } as const
    const each = ({ message }: Held) => (message.id === 'b' ? Promise.reject(new Error('no')) : undefined)
    const flow = flowOf(clock, store, { each }, { retry })
    await flow.start()
    await clock.advance(1000)
    const last = store.events.findLast((event) => event.kind === 'extend')
    expect(last?.ids).toEqual(['a', 'b'])
    await stop(clock, flow)
  })

  it('that fails is tried again in time for the right not to run out', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { extendEvery: 1000 })
    store.before.extend = () => {
      throw new Error('reset')
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.advance(10_500)
    expect(store.events.filter(({ kind }) => kind === 'extend')).toHaveLength(11)
    await stop(clock, flow)
  })
})

describe('a source that breaks the rules of its port', () => {
  it.each([
    ['undefined', () => undefined],
    ['a number', () => 3],
    ['an object', () => ({})],
  ])('and gives %s for a list: told, and asked again after a pause', async (_, bad) => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(3)
    const open = store.open.bind(store)
    let takes = 0
    store.open = async (signal) => {
      const session = await open(signal)
      return { ...session, take: (demand, over) => (takes++ < 2 ? (bad() as never) : session.take(demand, over)) }
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.start()
    await clock.until(() => store.in('done').length === 3)
    expect(telemetry.of('flow.take_failed').map(({ error }) => (error as { code?: string }).code)).toEqual([
      'BAD_SOURCE',
      'BAD_SOURCE',
    ])
    await stop(clock, flow)
  })

  it('and does not say what it can do: it can do nothing but give and settle', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).addMany(3)
    const plain = { name: 'plain', open: store.open.bind(store) } as unknown as Store
    let failures = 1
    const each = () => {
      if (failures-- > 0) throw new Error('once')
    }
    const flow = flowOf(clock, plain, { each })
    await flow.start()
    await clock.until(() => store.in('done').length === 3)
    await stop(clock, flow)
  })

  it('and gives something that is no delivery: the others of the batch are handled, and a failed key goes on', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(6, (i) => `k${i % 2}`)
    // Nobody would know when it has been tried often enough; and this is no message.
    const odd = [
      { message: message('uncounted'), size: 1 },
      { message: { id: 'plain' }, attempts: 0, size: 1 },
    ]
    const seen = new Set<string>()
    const open = store.open.bind(store)
    store.open = async (signal) => {
      const session = await open(signal)
      const take: typeof session.take = async (demand, over) =>
        [undefined, ...(await session.take(demand, over)), null, {}, ...odd] as never
      return { ...session, take }
    }
    let failures = 1
    const each = ({ message: { id } }: Held) => {
      seen.add(id)
      if (failures-- > 0) throw new Error('once')
    }
    const flow = flowOf(clock, store, { each })
    await flow.start()
    await clock.until(() => store.in('done').length === 6)
    expect(seen.size).toBe(6)
    await stop(clock, flow)
  })

  it.each([[undefined], [Number.NaN], ['all']])(
    'and says %s for how many were stale: nothing comes of it',
    async (said) => {
      const clock = new FakeClock()
      const store = new Store(clock).addMany(3)
      const open = store.open.bind(store)
      store.open = async (signal) => {
        const session = await open(signal)
        const settle: typeof session.settle = async (batch) => {
          await session.settle(batch)
          return said as never
        }
        return { ...session, settle }
      }
      const flow = flowOf(clock, store, { each: () => {} })
      expect(await flow.runOnce()).toMatchObject({ done: 3 })
      await stop(clock, flow)
    },
  )
})

describe('a publisher that answers nonsense', () => {
  it.each([
    ['nothing for one', [undefined]],
    ['a word for one', ['ok']],
    ['a kind nobody knows', [{ kind: 'great' }]],
  ])('%s: only that message is charged', async (_, [bad]) => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(10)
    const batch = (deliveries: readonly { message: { id: string } }[]) =>
      deliveries.map(({ message }) => (message.id === 'm3' ? (bad as never) : { kind: 'ok' as const }))
    const options = { retry: { attempts: 2 } }
    const flow = flowOf(clock, store, { batch, size: 10, ordered: false }, options)
    await flow.start()
    await clock.until(() => store.in('done').length === 9 && store.in('dead').length === 1)
    expect(store.of('m3')).toEqual(['retry', 'dead'])
    await stop(clock, flow)
  })
})
