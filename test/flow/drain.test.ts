import { describe, expect, it } from 'vitest'
import { Unavailable } from '../../src/core/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Gate, type Held, record, Store, stop } from './support.ts'

describe('stop', () => {
  it('lets what is in flight finish, gives back the rest at once, and takes no more', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(20)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2, buffer: { count: 6 } })
    await flow.start()
    await clock.settle()
    const stopping = flow.stop()
    await clock.advance(5000)
    expect(store.in('taken')).toEqual(['m0', 'm1'])
    expect(gate.calls.some(({ signal }) => signal.aborted)).toBe(false)
    gate.endAll()
    await clock.settle()
    await stopping
    expect(store.in('done')).toEqual(['m0', 'm1'])
    expect(gate.order).toEqual(['m0', 'm1'])
    expect(store.settlements).toHaveLength(6)
    expect(store.rows.every((row) => row.attempts === 0)).toBe(true)
    expect(store.events.at(-1)).toEqual({ kind: 'close' })
  })

  it('aborts handlers when the grace is over; one that gives up is released, not charged', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b')
    const aborted: number[] = []
    const each = ({ message }: Held, signal: AbortSignal) =>
      new Promise<void>((resolve, reject) => {
        signal.addEventListener('abort', () => {
          aborted.push(clock.monotonic())
          if (message.id === 'a') reject(signal.reason)
          else resolve()
        })
      })
    const flow = flowOf(clock, store, { each }, { grace: '3s' })
    await flow.start()
    await clock.settle()
    const began = clock.monotonic()
    await stop(clock, flow)
    expect(aborted.map((at) => at - began)).toEqual([3000, 3000])
    expect(store.of('a')).toEqual(['release'])
    // It finished after all: finished work is acked, whatever the signal says.
    expect(store.of('b')).toEqual(['done'])
  })

  it.each([
    ['a handler', { each: () => new Promise<never>(() => {}) }],
    ['a publisher', { batch: () => new Promise<never>(() => {}), size: 10, ordered: false }],
  ])('%s that never answers leaves no timer behind: a process can end', async (_, step) => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    const flow = flowOf(clock, store, step, { grace: '2s', timeout: '10m' })
    await flow.start()
    await clock.settle()
    await stop(clock, flow)
    expect(store.of('a')).toEqual(['release'])
    expect(clock.sleepers).toBe(0)
  })

  it('releases what ignores its signal, and ignores its late outcome', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { grace: '2s' })
    await flow.start()
    await clock.settle()
    const began = clock.monotonic()
    await stop(clock, flow)
    expect(clock.monotonic() - began).toBe(3000)
    expect(store.of('a')).toEqual(['release'])
    gate.end('a')
    gate.end('b', new Error('late'))
    await clock.settle()
    expect(store.settlements.map(({ settlement }) => settlement.kind)).toEqual(['release', 'release'])
  })

  it('ignores an outcome that comes while what was given back is being written', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b')
    store.before.settle = () => clock.sleep(500)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { grace: '2s' })
    await flow.start()
    await clock.settle()
    const stopping = flow.stop()
    await clock.advance(3100)
    gate.end('a')
    gate.end('b', new Error('late'))
    await clock.advance(2000)
    await stopping
    expect(store.settlements.map(({ settlement }) => settlement.kind)).toEqual(['release', 'release'])
  })

  it('ends within bounds although settling hangs, and settles nothing twice', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(4)
    const hung = deferred()
    store.before.settle = () => hung.promise
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2, grace: '5s' })
    await flow.start()
    await clock.settle()
    gate.end('m0')
    await clock.settle()
    const began = clock.monotonic()
    await stop(clock, flow)
    expect(clock.monotonic() - began).toBeLessThanOrEqual(13_000)
    hung.resolve()
    await clock.settle()
  })

  it('ends within bounds although closing hangs, taking ignores its signal and extending never answers', async () => {
    for (const where of ['close', 'take', 'extend', 'open'] as const) {
      const clock = new FakeClock()
      const store = new Store(clock, { extendEvery: 1000 }).add('a')
      const hung = deferred()
      store.before[where] = () => hung.promise
      const flow = flowOf(clock, store, { each: () => {} }, { grace: '5s' })
      await flow.start()
      await clock.advance(2000)
      const began = clock.monotonic()
      await stop(clock, flow)
      expect(clock.monotonic() - began, where).toBeLessThanOrEqual(6000)
      // What comes back after all finds nobody: nothing is dispatched, nothing settled, the session is closed.
      const settled = store.settlements.length
      hung.resolve()
      await clock.settle()
      expect(store.settlements.length, where).toBe(settled)
      expect(store.events.at(-1)?.kind, where).toBe(where === 'take' ? 'take' : 'close')
    }
  })

  it('tells a settlement that cannot be written again and again, and gives up when the patience ends', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    store.before.settle = () => {
      throw new Error('read-only')
    }
    const flow = flowOf(clock, store, { each: () => {} }, { grace: '5s' })
    await flow.start()
    await clock.settle()
    await stop(clock, flow)
    const events = telemetry.of('flow.settle_failed')
    expect(events.length).toBeGreaterThan(4)
    expect(events.map(({ lost }) => lost)).toEqual([...events.slice(1).map(() => false), true])
  })

  it('writes what could not be written before, when the source recovers in time', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    let failures = 5
    store.before.settle = () => {
      if (failures-- > 0) throw new Error('away')
    }
    const flow = flowOf(clock, store, { each: () => {} }, { grace: '10s' })
    await flow.start()
    await clock.settle()
    await stop(clock, flow)
    expect(store.of('a')).toEqual(['done'])
  })

  it('releases what a take brings after the stop', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    const slow = deferred()
    store.before.take = () => slow.promise
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each })
    await flow.start()
    await clock.settle()
    const stopping = flow.stop()
    slow.resolve()
    await clock.settle()
    await stopping
    expect(gate.order).toEqual([])
    expect(store.of('a')).toEqual(['release'])
  })

  it('releases what waits for its retry here, once', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).add('a').add('b', 'k').add('c', 'k')
    const each = () => Promise.reject(new Error('no'))
    const flow = flowOf(clock, store, { each }, { retry: { backoff: { min: '1h', max: '1h', jitter: 0 } } })
    await flow.start()
    await clock.advance(10)
    await stop(clock, flow)
    await clock.advance(7_200_000)
    expect(store.settlements.map(({ id, settlement }) => [id, settlement.kind])).toEqual([
      ['a', 'release'],
      ['b', 'release'],
      ['c', 'release'],
    ])
  })

  it('releases what failed together while stopping, uncharged, and what a source could not give again', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).add('down').add('failed')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each })
    await flow.start()
    await clock.settle()
    const stopping = flow.stop()
    await clock.settle()
    gate.end('down', new Unavailable('away'))
    gate.end('failed', new Error('no'))
    await clock.settle()
    await stopping
    expect(store.of('down')).toEqual(['release'])
    expect(store.of('failed')).toEqual(['release'])
  })

  it('can be called twice, before start, and the flow can be started again', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.stop()
    await flow.start()
    await expect(flow.start()).rejects.toMatchObject({ code: 'ALREADY_STARTED' })
    await clock.settle()
    await Promise.all([flow.stop(), flow.stop()])
    store.add('b')
    await flow.start()
    await clock.settle()
    expect(store.in('done')).toEqual(['a', 'b'])
    await stop(clock, flow)
    await flow.finished
  })
})
