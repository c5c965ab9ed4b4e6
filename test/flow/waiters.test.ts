import { describe, expect, it } from 'vitest'
import { type Delivery, takeFrom, Waiters } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'

describe('those who wait', () => {
  const waiting = (clock: FakeClock) => {
    const waiters = new Waiters(clock)
    const over: string[] = []
    const pause = (name: string, ms: number, signal?: AbortSignal) =>
      waiters.pause(ms, signal).then(() => void over.push(name))
    return { waiters, over, pause }
  }

  it('go on when they are woken, all of them, and when their time is over', async () => {
    const clock = new FakeClock()
    const { waiters, over, pause } = waiting(clock)
    void pause('a', 1000)
    void pause('b', 2000)
    await clock.advance(1000)
    expect(over).toEqual(['a'])
    void pause('c', 1000)
    waiters.wake()
    await clock.settle()
    expect(over).toEqual(['a', 'b', 'c'])
    waiters.wake()
  })

  it('go on when their signal aborts, or has before, and when there is no time left', async () => {
    const clock = new FakeClock()
    const { over, pause } = waiting(clock)
    const stop = new AbortController()
    void pause('a', 1000, stop.signal)
    stop.abort()
    void pause('b', 1000, stop.signal)
    void pause('c', -5)
    await clock.settle()
    expect(over).toEqual(['a', 'b', 'c'])
  })

  it('are woken once for all that comes in a turn', async () => {
    const { waiters, over, pause } = waiting(new FakeClock())
    const woken = pause('a', 1000)
    waiters.wakeSoon()
    waiters.wakeSoon()
    await Promise.resolve()
    expect(over).toEqual([])
    await woken
    // Nobody waits: nothing is kept for who comes later.
    waiters.wakeSoon()
    void pause('b', 1000)
    await new Promise((resolve) => setImmediate(resolve))
    expect(over).toEqual(['a'])
    waiters.wake()
  })
})

describe('takeFrom', () => {
  const stockOf = (...sizes: number[]) => sizes.map((size) => ({ size }) as Delivery)

  it.each([
    { what: 'by count', demand: { count: 2, bytes: 100 }, given: [1, 2], left: [3, 4] },
    { what: 'by bytes', demand: { count: 9, bytes: 6 }, given: [1, 2, 3], left: [4] },
    { what: 'all', demand: { count: 9, bytes: 100 }, given: [1, 2, 3, 4], left: [] },
  ])('gives what there is room for: $what', ({ demand, given, left }) => {
    const stock = stockOf(1, 2, 3, 4)
    expect(takeFrom(stock, demand).map(({ size }) => size)).toEqual(given)
    expect(stock.map(({ size }) => size)).toEqual(left)
  })

  it('gives at least one, however large, and none where there is none', () => {
    expect(takeFrom(stockOf(50, 1), { count: 9, bytes: 10 })).toHaveLength(1)
    expect(takeFrom([], { count: 9, bytes: 10 })).toEqual([])
  })
})
