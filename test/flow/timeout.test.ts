import { describe, expect, it } from 'vitest'
import type { SourceDefaults } from '../../src/flow/index.ts'
import { type CallGroup, TimeLimit } from '../../src/flow/time-limit.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, Gate, record, Store, stop } from './support.ts'

function storeWith(clock: FakeClock, defaults: SourceDefaults): Store {
  return Object.assign(new Store(clock), { defaults })
}

describe('what is usual for a source', () => {
  it('is what the flow does: so many at once, so many attempts, so long', async () => {
    const clock = new FakeClock()
    const store = storeWith(clock, { concurrency: 3, retry: { attempts: 2 }, timeout: 500 }).addMany(5)
    const signals: AbortSignal[] = []
    let most = 0
    let inside = 0
    const each = (_: unknown, signal: AbortSignal) => {
      signals.push(signal)
      most = Math.max(most, ++inside)
      return new Promise<void>((_resolve, reject) => {
        const give = () => {
          inside--
          reject(signal.reason)
        }
        signal.addEventListener('abort', give)
      })
    }
    const flow = flowOf(clock, store, { each })
    await flow.start()
    await clock.until(() => store.in('dead').length === 5)
    await stop(clock, flow)
    expect(most).toBe(3)
    expect(signals).toHaveLength(10)
    expect(signals[0]!.reason).toMatchObject({ code: 'TIMEOUT' })
    const reasons = store.settlements.flatMap(({ settlement }) =>
      settlement.kind === 'dead' ? [settlement.reason] : [],
    )
    expect(reasons[0]).toContain('2 attempts: WaybillError [TIMEOUT]: handling thing.happened took longer than 500 ms')
  })

  it('gives way to what the flow was told', async () => {
    const clock = new FakeClock()
    const store = storeWith(clock, { concurrency: 3, retry: { attempts: 2 }, timeout: 500 }).addMany(10)
    const gate = new Gate()
    const options = { concurrency: 4, retry: { attempts: 1 }, timeout: 2000 }
    const flow = flowOf(clock, store, { each: gate.each }, options)
    await flow.start()
    await clock.advance(1999)
    expect([gate.inside.length, store.in('dead').length]).toEqual([4, 0])
    await clock.advance(8)
    expect(store.in('dead').length).toBe(4)
    gate.endAll()
    await stop(clock, flow)
  })

  it('a handler that is in time is not disturbed, and one that throws at once fails at once', async () => {
    const clock = new FakeClock()
    const store = storeWith(clock, { timeout: 500 }).addMany(2)
    const signals: AbortSignal[] = []
    const each = ({ message }: { message: { id: string } }, signal: AbortSignal) => {
      signals.push(signal)
      if (message.id === store.rows[0]!.message.id && signals.length === 1) throw new Error('at once')
    }
    const flow = flowOf(clock, store, { each })
    await flow.start()
    await clock.until(() => store.in('done').length === 2)
    await clock.advance(5000)
    await stop(clock, flow)
    expect(signals.map(({ aborted }) => aborted)).toEqual([false, false, false])
  })
})

describe('without being told', () => {
  const never = () => new Promise<never>(() => {})

  it('a handler has 30 s: one that never returns costs an attempt, its place is free again, and nobody waits for it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(10)
    const late: (() => void)[] = []
    const each = ({ message }: { message: { id: string } }) =>
      message.id === 'm0' ? new Promise<void>((resolve) => late.push(resolve)) : undefined
    const flow = flowOf(clock, store, { each }, { concurrency: 1, retry: { attempts: 2 } })
    await flow.start()
    await clock.advance(29_999)
    expect(store.settlements).toEqual([])
    await clock.advance(2)
    await clock.until(() => store.in('done').length === 9, 1000)
    expect(store.of('m0')).toEqual(['retry'])
    // Its late answer is nobody's.
    late[0]!()
    await clock.settle()
    expect(store.of('m0')).toEqual(['retry'])
    await clock.until(() => store.in('dead').length === 1, 60_000)
    const before = clock.monotonic()
    await stop(clock, flow)
    expect(clock.monotonic() - before).toBeLessThan(1000)
  })

  it('a batch has 60 s: then it is down, nobody is charged, and its signal has told it to give up', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(4)
    const signals: AbortSignal[] = []
    const batch = async (deliveries: readonly unknown[], signal: AbortSignal) => {
      signals.push(signal)
      return signals.length === 1 ? never() : deliveries.map(() => ({ kind: 'ok' as const }))
    }
    const flow = flowOf(clock, store, { batch, size: 10, ordered: false })
    await flow.start()
    await clock.advance(59_999)
    expect(telemetry.of('flow.paused')).toEqual([])
    await clock.advance(2)
    expect(telemetry.of('flow.paused')).toMatchObject([{ error: { code: 'TIMEOUT' } }])
    expect(signals[0]!.aborted).toBe(true)
    await clock.until(() => store.in('done').length === 4)
    expect(store.settlements).toHaveLength(4)
    await stop(clock, flow)
  })

  it('with `false` both take as long as they like', async () => {
    for (const step of [{ each: never }, { batch: never, size: 2, ordered: false }]) {
      const clock = new FakeClock()
      const store = new Store(clock).addMany(2)
      const flow = flowOf(clock, store, step, { timeout: false })
      await flow.start()
      await clock.advance(3_600_000)
      expect(store.settlements).toEqual([])
      await stop(clock, flow)
    }
  })
})

describe('handlers of one session share a timer', () => {
  function timed(ms: number) {
    const clock = new FakeClock()
    const gate = new Gate()
    const session = new AbortController()
    const ended: string[] = []
    const pending = new Map<string, CallGroup>()
    const limit = new TimeLimit(session.signal, ms, clock, (late) => {
      for (const [id, group] of pending) if (group === late && pending.delete(id)) ended.push(`${id} TIMEOUT`)
    })
    const begin = (id: string) => {
      const group = limit.group()
      const handling = gate.each({ message: { id, type: 'thing.happened' } } as never, group.signal)
      pending.set(id, group)
      limit.begin(group)
      handling.then(() => {
        if (!pending.delete(id)) return
        limit.end(group)
        ended.push(`${id} done`)
      })
    }
    return { clock, gate, session, ended, begin, limit }
  }

  it('each has its whole time and hardly more, and only who is late is told', async () => {
    const { clock, gate, ended, begin } = timed(600)
    begin('a')
    begin('b')
    await clock.advance(1)
    begin('c')
    await clock.advance(100)
    begin('d')
    gate.end('b')
    await clock.advance(499.9)
    expect(ended).toEqual(['b done'])
    await clock.advance(1.1)
    expect(ended).toEqual(['b done', 'a TIMEOUT', 'c TIMEOUT'])
    await clock.advance(98.9)
    expect(gate.calls[3]!.signal.aborted).toBe(false)
    await clock.advance(2.1)
    expect(ended).toEqual(['b done', 'a TIMEOUT', 'c TIMEOUT', 'd TIMEOUT'])
    expect(gate.calls[3]!.signal.reason).toMatchObject({ code: 'TIMEOUT' })
  })

  it('nothing is timed while nobody works, and a late answer changes nothing', async () => {
    const { clock, gate, ended, begin, limit } = timed(500)
    begin('a')
    begin('b')
    expect(clock.sleepers).toBe(1)
    gate.endAll()
    await clock.settle()
    limit.quiet()
    expect([ended, clock.sleepers]).toEqual([['a done', 'b done'], 0])
    begin('c')
    await clock.advance(502)
    expect(clock.sleepers).toBe(0)
    begin('d')
    gate.end('c')
    await clock.settle()
    expect(clock.sleepers).toBe(1)
    await clock.advance(502)
    expect(ended).toEqual(['a done', 'b done', 'c TIMEOUT', 'd TIMEOUT'])
  })

  it('the end of the session reaches all who work, and who begins after it', async () => {
    const { clock, gate, session, begin } = timed(500)
    begin('a')
    await clock.advance(10)
    begin('b')
    session.abort('over')
    begin('c')
    expect(gate.calls.map(({ signal }) => signal.reason)).toEqual(['over', 'over', 'over'])
    gate.endAll()
    await clock.settle()
    expect(clock.sleepers).toBe(0)
  })
})

it.each([0, '0s'] as const)('a time-out of %s is refused: whoever means none gives false', (timeout) => {
  const clock = new FakeClock()
  expect(() => flowOf(clock, new Store(clock), { each: () => {} }, { timeout })).toThrow(/for no limit give false/)
})
