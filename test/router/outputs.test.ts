import { describe, expect, test } from 'vitest'
import type { Outcome, Publisher } from '../../src/flow/index.ts'
import { Router } from '../../src/router/index.ts'
import { HOSTILE } from '../support/hostile.ts'
import { consume, Placed, raw, Sent } from './support.ts'

const sending = new Router('billing').on(Placed, ({ data }) => Sent({ order: data.order }))

/** Answers `first` for the first message it is given, and ok for all others. */
function publisher(first: () => unknown): Publisher {
  let calls = 0
  const outcome = () => (calls++ === 0 ? first() : { kind: 'ok' }) as Outcome
  return { name: 'foreign', features: {}, publish: async (messages) => messages.map(outcome) }
}

test('a publisher that does not say what it can do is one that keeps no order', async () => {
  const { name, publish } = publisher(() => ({ kind: 'ok' }))
  const to = { name, publish } as unknown as Publisher
  expect((await consume(sending, [raw(), raw()], { to })).kinds).toEqual(['done', 'done'])
})

describe('a publisher for outputs that answers', () => {
  test.each<[string, () => unknown, string]>([
    ['nothing', () => undefined, 'retry'],
    ['an outcome of its own', () => ({ kind: 'perhaps' }), 'retry'],
    ['a pause that is no number', () => ({ kind: 'failed', error: new Error('no'), after: Number.NaN }), 'retry'],
    ['a pause that has passed', () => ({ kind: 'failed', error: new Error('no'), after: -1 }), 'retry'],
    ...HOSTILE.map(
      ([name, make]) => [name, () => ({ kind: 'failed', error: make() }), 'retry'] as [string, () => unknown, string],
    ),
  ])('%s: fails that message, and those after it are sent', async (_, first, kind) => {
    const to = publisher(first)
    expect((await consume(sending, [raw()], { to })).kinds).toEqual([kind])
    expect((await consume(sending, [raw(), raw()], { to })).kinds).toEqual(['done', 'done'])
  })

  test('that a failure is not charged: no attempt is spent', async () => {
    const to = publisher(() => ({ kind: 'failed', error: new Error('busy'), after: 5, charged: false }))
    const { settlements } = await consume(sending, [raw()], { to })
    expect(settlements).toMatchObject([{ kind: 'retry', after: 5, charged: false }])
  })
})
