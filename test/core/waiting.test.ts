import { getEventListeners } from 'node:events'
import { describe, expect, it, vi } from 'vitest'
import { Notifier, onAbort, untilAborted, Wakeup, withDeadline } from '../../src/core/index.ts'
import { FakeClock } from '../../src/testing/index.ts'

describe('those who wait', () => {
  const waiting = (clock: FakeClock) => {
    const wakeup = new Wakeup(clock)
    const over: string[] = []
    const pause = (name: string, ms: number, signal?: AbortSignal) =>
      wakeup.pause(ms, signal).then(() => void over.push(name))
    return { wakeup, over, pause }
  }

  it('go on when they are woken, all of them, and when their time is over', async () => {
    const clock = new FakeClock()
    const { wakeup, over, pause } = waiting(clock)
    void pause('a', 1000)
    void pause('b', 2000)
    await clock.advance(1000)
    expect(over).toEqual(['a'])
    void pause('c', 1000)
    wakeup.wake()
    await clock.settle()
    expect(over).toEqual(['a', 'b', 'c'])
    wakeup.wake()
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
    const { wakeup, over, pause } = waiting(new FakeClock())
    const woken = pause('a', 1000)
    wakeup.wakeSoon()
    wakeup.wakeSoon()
    await Promise.resolve()
    expect(over).toEqual([])
    await woken
    // Nobody waits: nothing is kept for who comes later.
    wakeup.wakeSoon()
    void pause('b', 1000)
    await new Promise((resolve) => setImmediate(resolve))
    expect(over).toEqual(['a'])
    wakeup.wake()
  })
})

const never = () => new Promise<string>(() => {})

describe('onAbort', () => {
  it('calls each once, and now where the signal has aborted', () => {
    const stop = new AbortController()
    const calls: string[] = []
    onAbort(stop.signal, () => calls.push('a'))
    const forget = onAbort(stop.signal, () => calls.push('b'))
    onAbort(stop.signal, () => calls.push('c'))
    forget()
    expect(getEventListeners(stop.signal, 'abort')).toHaveLength(1)
    stop.abort()
    expect(calls).toEqual(['a', 'c'])
    onAbort(stop.signal, () => calls.push('d'))()
    expect(calls).toEqual(['a', 'c', 'd'])
  })

  it('leaves nothing behind when nobody listens any more', () => {
    const { signal } = new AbortController()
    const same = vi.fn()
    const forgets = [onAbort(signal, same), onAbort(signal, same)]
    forgets[0]!()
    forgets[0]!()
    expect(getEventListeners(signal, 'abort')).toHaveLength(1)
    forgets[1]!()
    expect(getEventListeners(signal, 'abort')).toHaveLength(0)
  })

  it('calls the others where one throws', async () => {
    const uncaught = vi.fn()
    const before = process.listeners('uncaughtException')
    process.removeAllListeners('uncaughtException').on('uncaughtException', uncaught)
    const stop = new AbortController()
    const called = vi.fn()
    onAbort(stop.signal, () => {
      throw new Error('a listener failed')
    })
    onAbort(stop.signal, called)
    stop.abort()
    await new Promise((resolve) => setImmediate(resolve))
    process.removeAllListeners('uncaughtException')
    for (const listener of before) process.on('uncaughtException', listener)
    expect(called).toHaveBeenCalledOnce()
    expect(uncaught).toHaveBeenCalledOnce()
  })
})

describe('untilAborted', () => {
  it('gives what the work gives, and listens no longer', async () => {
    const { signal } = new AbortController()
    expect(await untilAborted(Promise.resolve('done'), signal, () => 'instead')).toBe('done')
    const failure = untilAborted(Promise.reject(new Error('failed')), signal, () => 'instead')
    await expect(failure).rejects.toThrow('failed')
    await new Promise((resolve) => setImmediate(resolve))
    expect(getEventListeners(signal, 'abort')).toHaveLength(0)
  })

  it('gives or throws the other when the signal aborts, or has before', async () => {
    const stop = new AbortController()
    const instead = untilAborted(never(), stop.signal, () => 'instead')
    const thrown = untilAborted(never(), stop.signal, () => {
      throw new Error('given up')
    })
    stop.abort()
    expect(await instead).toBe('instead')
    await expect(thrown).rejects.toThrow('given up')
    expect(await untilAborted(never(), stop.signal, () => 'at once')).toBe('at once')
  })
})

describe('withDeadline', () => {
  it('gives what the work gives in time, and leaves no timer', async () => {
    const clock = new FakeClock()
    const { signal } = new AbortController()
    expect(await withDeadline(Promise.resolve('done'), 1000, clock, () => 'late', signal)).toBe('done')
    await expect(withDeadline(Promise.reject(new Error('failed')), 1000, clock, () => 'late')).rejects.toThrow('failed')
    await clock.settle()
    expect(clock.sleepers).toBe(0)
    expect(getEventListeners(signal, 'abort')).toHaveLength(0)
  })

  it('gives or throws the other when its time is over, once', async () => {
    const clock = new FakeClock()
    const late = vi.fn(() => 'late')
    let fail = (_: Error) => {}
    const work = new Promise<string>((_, reject) => {
      fail = reject
    })
    const result = withDeadline(work, 1000, clock, late)
    const thrown = expect(
      withDeadline(work, 1000, clock, () => {
        throw new Error('too late')
      }),
    ).rejects.toThrow('too late')
    await clock.advance(999)
    expect(late).not.toHaveBeenCalled()
    await clock.advance(1)
    expect(await result).toBe('late')
    await thrown
    // Nobody waits for it any more.
    fail(new Error('failed much later'))
    await clock.settle()
    expect(late).toHaveBeenCalledOnce()
  })

  it('is over when its signal aborts', async () => {
    const clock = new FakeClock()
    const stop = new AbortController()
    const result = withDeadline(never(), 1000, clock, () => 'late', stop.signal)
    stop.abort()
    expect(await result).toBe('late')
    await clock.settle()
    expect(clock.sleepers).toBe(0)
  })
})

describe('Changes', () => {
  it('looks again with every change, until the condition holds or the signal aborts', async () => {
    const changes = new Notifier()
    const stop = new AbortController()
    let count = 0
    const over: string[] = []
    void changes.until(() => count >= 2, stop.signal).then(() => over.push('condition'))
    void changes.until(() => false, stop.signal).then(() => over.push('signal'))
    await changes.until(() => true)
    count = 1
    changes.notify()
    count = 2
    await new Promise((resolve) => setImmediate(resolve))
    expect(over).toEqual([])
    changes.notify()
    await new Promise((resolve) => setImmediate(resolve))
    expect(over).toEqual(['condition'])
    stop.abort()
    await new Promise((resolve) => setImmediate(resolve))
    expect(over).toEqual(['condition', 'signal'])
  })
})
