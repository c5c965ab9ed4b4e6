import { types } from 'node:util'
import { createContext, runInContext } from 'node:vm'
import { describe, expect, test } from 'vitest'
import {
  asError,
  causesOf,
  classifier,
  classify,
  errorSummary,
  Reject,
  RetryLater,
  Unavailable,
} from '../../src/core/index.ts'
import { framesOf } from '../../src/core/thrown.ts'
import { HOSTILE, HOSTILE_REJECTS } from '../support/hostile.ts'

test('a stack that goes through Promise.all is read from its beginning', async () => {
  async function deep() {
    await undefined
    throw new Error('no')
  }
  const error = (await Promise.all([deep()]).catch((thrown) => thrown)) as Error
  expect(error.stack).toContain('Promise.all (index 0)')
  expect(framesOf(error)[0]).toContain('deep')
})

describe('what was thrown', () => {
  test.each(HOSTILE)('%s: becomes an Error that can be read', (_, make) => {
    const given = make()
    const error = asError(given)
    expect(error).toBeInstanceOf(Error)
    expect(typeof error.name).toBe('string')
    expect(typeof error.message).toBe('string')
    for (const one of causesOf(given)) expect(typeof one.message).toBe('string')
    expect(classify(given)).toBe('transient')
    expect(errorSummary(given)).toMatch(/^Error/)
    expect(asError(error)).toBe(error)
  })

  test.each(HOSTILE_REJECTS)('%s: keeps its verdict', (_, make) => {
    expect(asError(make())).toBeInstanceOf(Reject)
    expect(classify(make())).toBe('permanent')
  })

  test.each<[string, unknown]>([
    ['an Error', new Error('plain', { cause: new TypeError('below') })],
    ['a Reject', new Reject('no')],
    ['RetryLater', new RetryLater('1s')],
    ['Unavailable', new Unavailable('away')],
    ['an abort', AbortSignal.abort().reason],
    ['an Error of a driver', Object.assign(new Error('refused'), { code: 'ECONNREFUSED', errno: -111 })],
  ])('%s: is returned as it is', (_, given) => {
    expect(asError(given)).toBe(given)
  })

  test('a getter is read once, and what it said is kept', () => {
    let reads = 0
    class Counted extends Error {
      get code() {
        reads++
        return reads === 1 ? 'ECONNREFUSED' : 'CHANGED'
      }
    }
    const error = asError(new Counted('no connection'))
    expect([error.message, (error as { code?: unknown }).code]).toEqual(['no connection', 'ECONNREFUSED'])
    expect(errorSummary(error)).toBe('Error [ECONNREFUSED]: no connection')
    expect(reads).toBe(1)
  })

  test('an Error of another realm is one', () => {
    const foreign = runInContext("Object.assign(new TypeError('fetch failed'), { code: 'X1' })", createContext({}))
    expect(foreign).not.toBeInstanceOf(Error)
    expect(errorSummary(foreign)).toBe('TypeError [X1]: fetch failed')
  })

  test('a Proxy is never handed on: it may change its mind', () => {
    const kind = asError(new Proxy(new Error('boom'), {}))
    expect([types.isProxy(kind), kind.message]).toEqual([false, 'boom'])
    const below = asError(new Error('boom', { cause: new Proxy(new Error('below'), {}) }))
    expect([types.isProxy(below.cause), (below.cause as Error).message]).toEqual([false, 'below'])
  })

  test('RetryLater keeps its delay however it is wrapped', () => {
    const later = asError(new Proxy(new RetryLater('5s', 'wait', { charged: false }), {}))
    expect(later).toBeInstanceOf(RetryLater)
    expect(later).toMatchObject({ delay: 5000, charged: false, message: 'wait' })
  })

  test('a circle of causes ends, also when it must be copied', () => {
    const first = new Error('first')
    first.cause = new Proxy(first, {})
    expect(causesOf(first).length).toBeLessThan(20)
  })

  test('what is no error is not repeated: it may be the data', () => {
    for (const given of ['4111 1111', { name: '4111', message: '4111' }, [4111]]) {
      expect(errorSummary(given)).not.toContain('4111')
    }
  })
})

describe("a user's classifier", () => {
  test('is shown what was thrown, as it was', () => {
    const seen: unknown[] = []
    classifier((error) => {
      seen.push(error)
      return 'permanent'
    })('a text')
    expect(seen).toEqual(['a text'])
  })

  test.each<[string, unknown]>([
    ['throws', undefined],
    ['says nothing', () => undefined],
    ['answers a promise', async () => 'permanent'],
  ])('that %s leaves the verdict to ours', (_, given) => {
    const broken = (given ??
      (() => {
        throw new Error('bug')
      })) as () => 'permanent'
    expect(classifier(broken)(new Unavailable('away'))).toBe('down')
  })
})
