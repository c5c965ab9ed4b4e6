import { afterEach, beforeEach, expect, test } from 'vitest'
import { Reject, RetryLater } from '../../src/index.ts'
import { number, outboxOn, Placed, type TestOutbox } from '../postgres/support.ts'

let t: TestOutbox
beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

test('a plain async function publishes: what it throws is the outcome of that message alone', async () => {
  await t.enqueue([1, 2, 3, 4, 5].map((n) => Placed({ n })))
  const given: number[] = []
  const relay = t.relay({
    retry: { backoff: { min: '1h', max: '1h', jitter: 0 } },
    to: async (message, signal) => {
      given.push(number(message))
      expect(signal).toBeInstanceOf(AbortSignal)
      await new Promise((resolve) => setImmediate(resolve))
      if (number(message) === 2) throw new Error('not yet')
      if (number(message) === 3) throw new Reject('never')
      if (number(message) === 4) throw new RetryLater('2h')
    },
  })
  expect(await relay.runOnce()).toEqual({ taken: 5, done: 2, retry: 2, dead: 1, release: 0 })
  expect(given).toEqual([1, 2, 3, 4, 5])
  const { rows } = await t.pool.query(`SELECT payload ->> 'n' AS n, state, attempts, last_error AS error,
    round(extract(epoch FROM available_at - now()) / 3600)::int AS hours FROM outbox ORDER BY sequence`)
  expect(rows.map(({ n, state, attempts, hours }) => [n, state, attempts, hours])).toEqual([
    ['1', 'published', 0, null],
    ['2', 'retrying', 1, 1],
    ['3', 'dead', 1, null],
    ['4', 'retrying', 1, 2],
    ['5', 'published', 0, null],
  ])
  expect(rows.map(({ error }) => error)).toEqual([
    null,
    expect.stringContaining('not yet'),
    expect.stringContaining('never'),
    expect.any(String),
    null,
  ])
})

test('a function that returns no promise publishes too', async () => {
  await t.enqueue([1, 2].map((n) => Placed({ n })))
  const given: number[] = []
  expect(await t.relay({ to: (message) => given.push(number(message)) }).runOnce()).toMatchObject({ done: 2 })
  expect(given).toEqual([1, 2])
})
