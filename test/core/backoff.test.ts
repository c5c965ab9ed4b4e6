import { describe, expect, test } from 'vitest'
import { type BackoffOptions, backoff } from '../../src/core/index.ts'

const at = (next: number) => ({ next: () => next, fill: () => {} })

describe('backoff', () => {
  test('grows by its factor up to its maximum', () => {
    const delay = backoff({ min: '1s', max: '10s', jitter: 0 })
    expect([1, 2, 3, 4, 5, 6, 50].map(delay)).toEqual([1000, 2000, 4000, 8000, 10_000, 10_000, 10_000])
  })

  test('adds up to its jitter at random', () => {
    expect(backoff({ random: at(0) })(1)).toBe(1000)
    expect(backoff({ random: at(0.5) })(1)).toBe(1100)
    expect(backoff({ random: at(0.999) })(100)).toBeCloseTo(60_199.8)
    expect(backoff({ jitter: '1m', random: at(0.5) })(2)).toBe(32_000)
  })

  test('stays a number however often it failed', () => {
    expect(backoff({ jitter: 0 })(1e6)).toBe(60_000)
    expect(backoff({ min: 0, jitter: 0 })(1e6)).toBe(0)
    expect(backoff({ factor: 1, jitter: 0 })(1e6)).toBe(1000)
    expect(backoff({ jitter: 0 })(0)).toBe(1000)
  })

  test.each<[BackoffOptions, string]>([
    [{ min: '-1s' }, 'backoff.min: "-1s" is not a duration'],
    [{ max: Number.NaN }, 'backoff.max: NaN is not a duration'],
    [{ factor: 0.5 }, 'backoff.factor: 0.5 is not allowed'],
    [{ minn: 1 } as BackoffOptions, 'unknown option "minn"; did you mean "min"?'],
  ])('%j is refused', (options, text) => {
    expect(() => backoff(options)).toThrow(text)
  })
})
