import { describe, expect, it } from 'vitest'
import { Unavailable } from '../../src/core/index.ts'
import { OK, type Outcome } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, type Held, Store, stop } from './support.ts'

describe('what a publisher did not send, since the destination is away', () => {
  it('is not suspected: of one that takes a few in each second nobody is dead, and nobody pays who was not refused', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(100)
    const refused = new Set<string>()
    let second = 0
    let room = 0
    const batch = async (held: readonly Held[]): Promise<readonly Outcome[]> => {
      const now = Math.floor(clock.monotonic() / 1000)
      if (now > second) [second, room] = [now, 5]
      let full: Error | undefined
      return held.map(({ message }): Outcome => {
        if (full !== undefined) return { kind: 'down', error: full, untried: true }
        if (room > 0) {
          room--
          return OK
        }
        refused.add(message.id)
        full = new Unavailable('too many')
        return { kind: 'down', error: full }
      })
    }
    const flow = flowOf(clock, store, { batch, size: 50, ordered: false }, { concurrency: 2 })
    await flow.start()
    await clock.until(() => store.in('done').length + store.in('dead').length === 100, 600_000)
    expect(store.in('dead')).toEqual([])
    const charged = store.settlements.filter(({ settlement }) => settlement.kind === 'retry').map(({ id }) => id)
    expect(charged.filter((id) => !refused.has(id))).toEqual([])
    await stop(clock, flow)
  })

  it.each([1, 30])('waits, and nobody is charged, when nothing is sent at all: %i in a call', async (size) => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(30)
    const until = clock.monotonic() + 10_000
    let inVain = 0
    const batch = async (held: readonly Held[]): Promise<readonly Outcome[]> => {
      if (clock.monotonic() >= until) return held.map(() => OK)
      inVain++
      const error = new Unavailable('it asked for a pause')
      return held.map(() => ({ kind: 'down', error, untried: true }))
    }
    const flow = flowOf(clock, store, { batch, size, ordered: false }, { retry: { attempts: 1 }, concurrency: 2 })
    await flow.start()
    await clock.until(() => store.in('done').length === 30, 120_000)
    expect(store.settlements.filter(({ settlement }) => settlement.kind !== 'done')).toEqual([])
    expect(inVain, 'asked with growing pauses').toBeLessThan(20)
    await stop(clock, flow)
  })

  it('keeps its place in its key', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(12, () => 'k')
    const arrived: string[] = []
    let calls = 0
    const batch = async (held: readonly Held[]): Promise<readonly Outcome[]> => {
      const first = calls++ < 4
      return held.map(({ message }, i): Outcome => {
        if (first && i > 0) return { kind: 'down', error: new Unavailable('away'), untried: i > 1 }
        arrived.push(message.id)
        return OK
      })
    }
    const flow = flowOf(clock, store, { batch, size: 4, ordered: true })
    await flow.start()
    await clock.until(() => store.in('done').length === 12, 600_000)
    expect(arrived).toEqual(store.rows.map(({ message }) => message.id))
    await stop(clock, flow)
  })
})
