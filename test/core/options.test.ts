import { describe, expect, test } from 'vitest'
import {
  checkOptions,
  describe as describeValue,
  nearest,
  type OptionNames,
  oneOf,
  wholeNumber,
} from '../../src/core/index.ts'
import { thrown } from './thrown.ts'

interface Options {
  concurrency?: number
  attempts?: number
  timeout?: number
  key?: string | undefined
}

const ALLOWED: OptionNames<Options> = { concurrency: true, attempts: true, timeout: true, key: true }

test('a URL in an error has neither user nor password, whatever is in them', () => {
  expect(describeValue('redis://u:hunter2@h:6379/0')).toBe('"redis://…@h:6379/0"')
  expect(describeValue(`amqp://u:${'hunter2/?#@'.repeat(9)}@h`)).toBe('"amqp://…@h"')
  expect(describeValue('nats://h:4222')).toBe('"nats://h:4222"')
  expect(describeValue('ann@example.com')).toBe('"ann@example.com"')
  expect(() => checkOptions<Options>('nats', 'nats://u:hunter2@h' as Options, ALLOWED)).toThrow(
    'nats: options must be an object, got "nats://…@h"',
  )
})

describe('an unknown option', () => {
  test.each([
    ['concurency', 'concurrency'],
    ['Concurrency', 'concurrency'],
    ['timeOut', 'timeout'],
    ['attempt', 'attempts'],
    ['kee', 'key'],
  ])('%s is answered with %s', (given, meant) => {
    expect(() => checkOptions<Options>('flow', { [given]: 1 }, ALLOWED)).toThrow(
      `flow: unknown option "${given}"; did you mean "${meant}"? Allowed: concurrency, attempts, timeout, key`,
    )
  })

  test('nothing is suggested when nothing is near', () => {
    expect(() => checkOptions<Options>('flow', { zzzzzzzz: 1 } as Options, ALLOWED)).toThrow(
      expect.objectContaining({
        code: 'UNKNOWN_OPTION',
        message: 'flow: unknown option "zzzzzzzz". Allowed: concurrency, attempts, timeout, key [UNKNOWN_OPTION]',
      }),
    )
  })

  test('known options, and none, pass', () => {
    checkOptions<Options>('flow', undefined, ALLOWED)
    checkOptions<Options>('flow', {}, ALLOWED)
    checkOptions<Options>('flow', { key: undefined, timeout: 1 }, ALLOWED)
  })

  test.each([
    [null, 'null'],
    [[], 'an array'],
    ['10m', '"10m"'],
    [() => {}, 'a function'],
  ])('%s instead of an object is refused', (given, shown) => {
    const error = thrown(() => checkOptions('flow', given as Options, ALLOWED))
    expect(error.code).toBe('INVALID_OPTION')
    expect(error.message).toContain(`flow: options must be an object, got ${shown}`)
  })
})

test('the compiler compares the names with the type', () => {
  const given: Options = {}
  checkOptions('flow', given, { concurrency: true, attempts: true, timeout: true, key: true })
  // @ts-expect-error a name is missing
  checkOptions('flow', given, { concurrency: true, attempts: true, timeout: true })
  // @ts-expect-error no option has this name
  checkOptions('flow', given, { concurrency: true, attempts: true, timeout: true, key: true, retries: true })
  // @ts-expect-error the compiler cannot compare a list
  checkOptions('flow', given, ['concurrency', 'attempts', 'timeout', 'key'])
})

test('the nearest of several is the closest', () => {
  expect(nearest('stopp', ['shop', 'stop', 'start'])).toBe('stop')
  expect(nearest('x', [])).toBeUndefined()
})

test('whole numbers are held to their bounds', () => {
  expect(wholeNumber('size', 3)).toBe(3)
  expect(wholeNumber('size', 0, { min: 0 })).toBe(0)
  for (const wrong of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, '3' as unknown as number]) {
    expect(() => wholeNumber('size', wrong)).toThrow(expect.objectContaining({ code: 'INVALID_OPTION' }))
  }
  expect(() => wholeNumber('size', 11, { max: 10 })).toThrow(
    'size: 11 is not allowed; give a whole number of at least 1 and at most 10',
  )
})

test('one of a few words', () => {
  expect(oneOf('unknown', 'nack', ['nack', 'ack-and-warn'])).toBe('nack')
  expect(() => oneOf('unknown', 'nak', ['nack', 'ack-and-warn'])).toThrow(
    'unknown: "nak" is not allowed; did you mean "nack"? Allowed: nack, ack-and-warn',
  )
})
