import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { systemClock } from '../../src/core/index.ts'

describe('sleep', () => {
  beforeEach(() => void vi.useFakeTimers())
  afterEach(() => void vi.useRealTimers())

  const watch = (ms: number, signal?: AbortSignal) => {
    const state = { awake: false }
    void systemClock.sleep(ms, signal).then(() => {
      state.awake = true
    })
    return state
  }

  test('ends when its time has come', async () => {
    const slept = watch(1000)
    await vi.advanceTimersByTimeAsync(999)
    expect(slept.awake).toBe(false)
    await vi.advanceTimersByTimeAsync(1)
    expect(slept.awake).toBe(true)
  })

  test('longer than a timer can hold is as long as asked', async () => {
    const days = 60 * 86_400_000
    const slept = watch(days)
    await vi.advanceTimersByTimeAsync(days - 1)
    expect(slept.awake).toBe(false)
    await vi.advanceTimersByTimeAsync(1)
    expect(slept.awake).toBe(true)
  })

  test('ends at once when aborted, and leaves no timer', async () => {
    const abort = new AbortController()
    const slept = watch(60 * 86_400_000, abort.signal)
    abort.abort()
    await vi.advanceTimersByTimeAsync(0)
    expect(slept.awake).toBe(true)
    expect(vi.getTimerCount()).toBe(0)
    const late = watch(1000, abort.signal)
    await vi.advanceTimersByTimeAsync(0)
    expect(late.awake).toBe(true)
  })
})
