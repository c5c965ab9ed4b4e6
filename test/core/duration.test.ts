import { describe, expect, test } from 'vitest'
import { type Duration, milliseconds, RetryLater } from '../../src/core/index.ts'
import { thrown } from './thrown.ts'

describe('a duration', () => {
  test.each<[Duration, number]>([
    [0, 0],
    [1500, 1500],
    [0.5, 0.5],
    ['250ms', 250],
    ['30s', 30_000],
    ['1.5s', 1500],
    ['10m', 600_000],
    ['24h', 86_400_000],
    ['7d', 604_800_000],
    ['0s', 0],
  ])('%j is %d ms', (given, ms) => {
    expect(milliseconds(given)).toBe(ms)
  })

  test.each([
    [-1, '-1'],
    ['-5s', '"-5s"'],
    [Number.NaN, 'NaN'],
    [Number.POSITIVE_INFINITY, 'Infinity'],
    ['10', '"10"'],
    ['10 m', '"10 m"'],
    ['10M', '"10M"'],
    ['1e3s', '"1e3s"'],
    ['', '""'],
    [null, 'null'],
    [undefined, 'undefined'],
    [10n, '10'],
    [{}, 'an object'],
  ])('%s is refused by name, with what is allowed', (given, shown) => {
    const error = thrown(() => milliseconds(given as Duration, 'relay.poll'))
    expect(error.code).toBe('INVALID_DURATION')
    expect(error.message).toContain(`relay.poll: ${shown} is not a duration; give milliseconds (0 or more)`)
  })

  test('RetryLater takes one', () => {
    expect(new RetryLater('10m').delay).toBe(600_000)
    expect(() => new RetryLater(-1)).toThrow('RetryLater: -1 is not a duration')
  })
})
