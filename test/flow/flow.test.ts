import { describe, expect, it } from 'vitest'
import { Reject, RetryLater, Unavailable } from '../../src/core/index.ts'
import { OK } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Gate, type Held, record, Store, stop } from './support.ts'

describe('take, step, settle', () => {
  it('handles what the source gives and settles it as done', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(25)
    const seen: string[] = []
    const flow = flowOf(clock, store, { each: ({ message }) => void seen.push(message.id) })
    await flow.start()
    await clock.until(() => store.in('done').length === 25)
    await stop(clock, flow)
    expect(seen).toEqual(store.rows.map((row) => row.message.id))
    expect(store.settlements).toHaveLength(25)
    expect(store.events.at(-1)).toEqual({ kind: 'close' })
  })

  it('takes no more than the buffer holds, by count', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(100)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 3, buffer: { count: 8 } })
    await flow.start()
    await clock.advance(20_000)
    expect(store.unsettled).toBe(8)
    expect(gate.inside.length).toBe(3)
    gate.endAll()
    await clock.settle()
    expect(store.unsettled).toBeLessThanOrEqual(8)
    expect(store.in('done')).toHaveLength(3)
    await stop(clock, flow)
  })

  it('takes no more than the buffer holds, by bytes', async () => {
    const clock = new FakeClock()
    const store = new Store(clock)
    for (let i = 0; i < 20; i++) store.add(`m${i}`, undefined, 400)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 10, buffer: { count: 100, bytes: 1000 } })
    await flow.start()
    await clock.advance(60_000)
    expect(store.unsettled).toBeLessThanOrEqual(3)
    expect(store.events.filter((event) => event.kind === 'take').every(({ demand }) => demand.bytes <= 1000)).toBe(true)
    gate.endAll()
    await clock.settle()
    expect(store.unsettled).toBeGreaterThan(0)
    await stop(clock, flow)
  })

  it('takes while some of a full half of the buffer only waits for its retry', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).addMany(8)
    const flow = flowOf(
      clock,
      store,
      { each: ({ message }) => (Number(message.id.slice(1)) < 3 ? Promise.reject(new Error('no')) : undefined) },
      { concurrency: 2, buffer: { count: 4 }, retry: { backoff: { min: '1h', max: '1h', jitter: 0 } } },
    )
    await flow.start()
    await clock.until(() => store.in('done').length === 5, 60_000)
    await stop(clock, flow)
  })

  it('says once how many of a type and tenant a batch has handled, and of each only where somebody listens', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(25)
    const telemetry = record()
    const step = { batch: (run: readonly Held[]) => run.map(() => OK), size: 10, ordered: false }
    const flow = flowOf(clock, store, step, { take: 10 })
    await flow.start()
    await clock.until(() => store.in('done').length === 25)
    await stop(clock, flow)
    const counts = telemetry.of('messages.handled').map(({ type, result, count }) => `${count} ${type} ${result}`)
    const [{ type } = { type: '' }] = store.rows.map((row) => row.message)
    expect(counts).toEqual([`10 ${type} done`, `10 ${type} done`, `5 ${type} done`])
  })

  it('asks for more while takes come full, and for the usual again after', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(75)
    const flow = flowOf(clock, store, { each: () => {} }, { take: 10, buffer: { count: 1000 } })
    await flow.start()
    await clock.settle()
    const counts = store.events.flatMap((event) => (event.kind === 'take' ? [event.demand.count] : []))
    expect(counts.slice(0, 5)).toEqual([10, 20, 40, 80, 10])
    await stop(clock, flow)
  })

  it('settles in batches: while one is written the next gathers', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(100)
    store.before.settle = () => clock.sleep(5)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 10, buffer: { count: 100 } })
    await flow.start()
    for (let i = 0; i < 10; i++) {
      await clock.settle()
      gate.endAll()
    }
    await clock.until(() => store.in('done').length === 100)
    expect(store.batches).toEqual([10, 90])
    await stop(clock, flow)
  })

  it('waits for whatever has a then, not only for promises', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    let finish = () => {}
    const thenable = {
      // biome-ignore lint/suspicious/noThenProperty: query builders have one
      then(resolve: () => void) {
        finish = resolve
      },
    }
    const flow = flowOf(clock, store, { each: () => thenable })
    await flow.start()
    await clock.advance(100)
    expect(store.in('done')).toEqual([])
    finish()
    await clock.settle()
    expect(store.in('done')).toEqual(['a'])
    await stop(clock, flow)
  })

  it('does after with what each answered, and only then is it done', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b').add('c')
    const arrived = deferred()
    const flow = flowOf(clock, store, {
      each: async ({ message }: Held) => (message.id === 'c' ? undefined : message.id),
      after: (result) => {
        if (result === 'b') throw new Reject('no')
        return arrived.promise
      },
    })
    await flow.start()
    await clock.settle()
    expect(store.in('done')).toEqual(['c'])
    expect(store.in('dead')).toEqual(['b'])
    arrived.resolve()
    await clock.settle()
    expect(store.in('done')).toEqual(['a', 'c'])
    await stop(clock, flow)
  })
})

describe('when there is nothing', () => {
  it('waits longer and longer, up to poll.max, and shortly again after something came', async () => {
    const clock = new FakeClock()
    const store = new Store(clock)
    const flow = flowOf(clock, store, { each: () => {} }, { poll: 100, maxPoll: 1000 })
    await flow.start()
    await clock.advance(10_000)
    const times = () => store.events.flatMap((event) => (event.kind === 'take' ? [event.at] : []))
    const pauses = (at: number[]) => at.slice(1).map((time, i) => time - at[i]!)
    expect(pauses(times()).slice(0, 6)).toEqual([100, 200, 400, 800, 1000, 1000])
    store.add('a')
    await clock.until(() => store.in('done').length === 1)
    const from = times().length - 1
    await clock.advance(400)
    expect(pauses(times().slice(from)).slice(0, 2)).toEqual([100, 200])
    await stop(clock, flow)
  })

  it('lets the session say when there is more', async () => {
    const clock = new FakeClock()
    const store = new Store(clock)
    let wake = () => {}
    const waits: number[] = []
    store.wait = (ms, signal) => {
      waits.push(ms)
      return new Promise((resolve) => {
        wake = resolve
        signal.addEventListener('abort', () => resolve())
      })
    }
    const flow = flowOf(clock, store, { each: () => {} }, { poll: 100, maxPoll: 400 })
    await flow.start()
    await clock.settle()
    store.add('a')
    wake()
    await clock.settle()
    expect(store.in('done')).toEqual(['a'])
    wake()
    await clock.settle()
    wake()
    await clock.settle()
    expect(waits).toEqual([100, 100, 200, 400])
    await stop(clock, flow)
  })

  it('survives a wait that fails, and backs off', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock)
    store.wait = async () => {
      throw new Error('no listener')
    }
    const flow = flowOf(clock, store, { each: () => {} }, { poll: 1, maxPoll: 1 })
    await flow.start()
    await clock.advance(10_000)
    expect(store.events.filter(({ kind }) => kind === 'take').length).toBeLessThan(40)
    expect(telemetry.of('flow.take_failed').length).toBeGreaterThan(3)
    store.add('a')
    await clock.until(() => store.in('done').length === 1)
    await stop(clock, flow)
  })
})

describe('what a failure means', () => {
  it('an error is retried after a growing pause, and the limit makes it dead', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a')
    const flow = flowOf(
      clock,
      store,
      { each: () => Promise.reject(new Error('no')) },
      { retry: { attempts: 4, backoff: { min: '1s', jitter: 0 } } },
    )
    await flow.start()
    await clock.until(() => store.in('dead').length === 1)
    expect(store.settlements.map(({ settlement }) => ('after' in settlement ? settlement.after : 'dead'))).toEqual([
      1000,
      2000,
      4000,
      'dead',
    ])
    expect(store.row('a').attempts).toBe(3)
    expect(telemetry.of('message.dead')).toMatchObject([{ id: 'a', attempt: 4, reason: '4 attempts: Error: no' }])
    await stop(clock, flow)
  })

  it('the reason of one that had a single attempt counts it as one', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    const each = () => Promise.reject(new Error('no'))
    const telemetry = record()
    const flow = flowOf(clock, store, { each }, { retry: { attempts: 1 } })
    await flow.start()
    await clock.until(() => store.in('dead').length === 1)
    expect(telemetry.of('message.dead')).toMatchObject([{ attempt: 1, reason: '1 attempt: Error: no' }])
    await stop(clock, flow)
  })

  it('Reject is dead at once, RetryLater comes when it said, a sync throw counts as well', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('reject').add('later').add('sync')
    const flow = flowOf(clock, store, {
      each: ({ message, attempts }: Held) => {
        if (message.id === 'sync' && attempts === 0) throw new Error('sync')
        if (message.id === 'reject') return Promise.reject(new Reject('never'))
        return message.id === 'later' && attempts === 0 ? Promise.reject(new RetryLater('7m')) : undefined
      },
    })
    await flow.start()
    await clock.settle()
    expect(store.of('reject')).toEqual(['dead'])
    expect(store.settlements.find(({ id }) => id === 'later')!.settlement).toMatchObject({
      kind: 'retry',
      after: 420_000,
      charged: true,
    })
    expect(store.of('sync')).toEqual(['retry'])
    await clock.until(() => store.in('done').length === 2)
    await stop(clock, flow)
  })

  it('an uncharged RetryLater spends no attempt, and is never dead for it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('busy')
    let calls = 0
    const flow = flowOf(
      clock,
      store,
      {
        each: () => {
          if (++calls < 10) throw new RetryLater('1s', 'another has it', { charged: false })
        },
      },
      { retry: { attempts: 2 } },
    )
    await flow.start()
    await clock.until(() => store.in('done').length === 1)
    await stop(clock, flow)
    expect(calls).toBe(10)
    expect(store.settlements.slice(0, 9)).toMatchObject(
      Array.from({ length: 9 }, () => ({ settlement: { kind: 'retry', after: 1000, charged: false } })),
    )
  })

  it('a classifier of the user decides; one that throws harms nobody', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b')
    const classify = (error: unknown) => {
      if ((error as Error).message === 'b') throw new Error('bug')
      return 'permanent' as const
    }
    const each = ({ message }: Held) => Promise.reject(new Error(message.id))
    const flow = flowOf(clock, store, { each }, { retry: { classify } })
    await flow.start()
    await clock.settle()
    expect(store.of('a')).toEqual(['dead'])
    expect(store.of('b')).toEqual(['retry'])
    await stop(clock, flow)
  })

  it('what the step needs being away pauses the flow, charges nobody and resumes', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(30)
    let up = false
    let calls = 0
    const each = async () => {
      calls++
      if (!up) throw new Unavailable('broker away')
    }
    const flow = flowOf(clock, store, { each }, { concurrency: 10 })
    await flow.start()
    await clock.settle()
    // Ten failed together: that is one failure, not ten.
    expect(telemetry.of('flow.paused')).toMatchObject([{ retryIn: 200, failures: 1 }])
    expect(calls).toBe(10)
    await clock.advance(60_000)
    expect(calls).toBeLessThan(20)
    up = true
    await clock.until(() => store.in('done').length === 30)
    expect(store.settlements.every(({ settlement }) => settlement.kind === 'done')).toBe(true)
    expect(telemetry.of('flow.resumed')).toHaveLength(1)
    await stop(clock, flow)
  })

  it('a pause ends although timers fire a little early', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    let calls = 0
    const early = {
      now: () => clock.now(),
      monotonic: () => clock.monotonic(),
      sleep: (ms: number, signal?: AbortSignal) => clock.sleep(Math.floor(ms) - 1, signal),
    }
    const flow = flowOf(
      clock,
      store,
      { each: () => (++calls < 4 ? Promise.reject(new Unavailable('away')) : undefined) },
      { clock: early },
    )
    await flow.start()
    await clock.until(() => store.in('done').length === 1, 20_000)
    await stop(clock, flow)
  })
})

describe('runOnce', () => {
  it('takes once, handles all of it, settles, and says how it went', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b').add('c')
    const each = ({ message }: Held) => {
      if (message.id === 'b') throw new Error('no')
      if (message.id === 'c') throw new Reject('never')
    }
    const flow = flowOf(clock, store, { each })
    expect(await flow.runOnce()).toEqual({ taken: 3, done: 1, retry: 1, dead: 1, release: 0 })
    expect(await flow.runOnce()).toEqual({ taken: 0, done: 0, retry: 0, dead: 0, release: 0 })
    expect(store.opened).toBe(1)
    await flow.stop()
    expect(store.events.at(-1)).toEqual({ kind: 'close' })
  })

  it('lets any number of handlers listen to their signal without a warning of Node', async () => {
    const warnings: Error[] = []
    const note = (warning: Error) => warnings.push(warning)
    process.on('warning', note)
    for (const limits of [{}, { timeout: 1000 }]) {
      const clock = new FakeClock()
      const gate = new Gate()
      const each = (delivery: Held, signal: AbortSignal) => {
        signal.addEventListener('abort', () => {})
        return gate.each(delivery, signal)
      }
      const flow = flowOf(clock, new Store(clock).addMany(20), { each }, { concurrency: 20, ...limits })
      const running = flow.runOnce()
      await clock.settle()
      expect(gate.calls).toHaveLength(20)
      for (const call of gate.calls) call.end()
      expect(await running).toMatchObject({ done: 20 })
      await flow.stop()
    }
    // A warning is told in the next turn.
    await new Promise((resolve) => setImmediate(resolve))
    process.off('warning', note)
    expect(warnings).toEqual([])
  })

  it('gives back what the destination was down for', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(5)
    const each = () => Promise.reject(new Unavailable('away'))
    const flow = flowOf(clock, store, { each }, { concurrency: 2, buffer: { count: 5 } })
    expect(await flow.runOnce()).toEqual({ taken: 5, done: 0, retry: 0, dead: 0, release: 5 })
    expect(store.in('ready')).toHaveLength(5)
    await flow.stop()
  })

  it('goes before start: the session is used on, and stop closes it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    const flow = flowOf(clock, store, { each: () => {} })
    await flow.runOnce()
    store.add('b')
    await flow.start()
    await clock.settle()
    expect(store.in('done')).toEqual(['a', 'b'])
    expect(store.opened).toBe(1)
    await expect(flow.runOnce()).rejects.toMatchObject({ code: 'ALREADY_STARTED' })
    await stop(clock, flow)
  })

  it('rejects when the take fails, opens another session when one was lost', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    store.before.take = () => {
      throw new Error('away')
    }
    const flow = flowOf(clock, store, { each: () => {} })
    await expect(flow.runOnce()).rejects.toThrow('away')
    store.before.take = () => store.lose()
    expect(await flow.runOnce()).toMatchObject({ taken: 0 })
    store.before = {}
    expect(await flow.runOnce()).toMatchObject({ done: 1 })
    expect(store.opened).toBe(2)
    await flow.stop()
  })
})
