import fc from 'fast-check'
import { expect, test } from 'vitest'
import { DONE, RELEASE, type Session, type Settlement } from '../../src/adapter.ts'
import { event } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'

const Written = event<{ n: number }>('thing.written')
const KEYS = ['a', 'b', 'c', undefined]

type Step =
  | { readonly do: 'enqueue'; readonly key: number; readonly delayed: boolean }
  | { readonly do: 'take'; readonly count: number }
  | { readonly do: 'settle'; readonly at: number; readonly as: 'done' | 'retry' | 'dead' | 'release' }
  | { readonly do: 'pass'; readonly ms: number }
  | { readonly do: 'reopen' }
  | { readonly do: 'rearm' }
  | { readonly do: 'discard' }

const step: fc.Arbitrary<Step> = fc.oneof(
  { arbitrary: fc.record({ do: fc.constant('enqueue' as const), key: fc.nat(3), delayed: fc.boolean() }), weight: 6 },
  { arbitrary: fc.record({ do: fc.constant('take' as const), count: fc.integer({ min: 1, max: 4 }) }), weight: 6 },
  {
    arbitrary: fc.record({
      do: fc.constant('settle' as const),
      at: fc.nat(5),
      as: fc.constantFrom('done', 'retry', 'dead', 'release'),
    }),
    weight: 6,
  },
  { arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.nat(150) }), weight: 2 },
  { arbitrary: fc.constant({ do: 'reopen' as const }), weight: 1 },
  { arbitrary: fc.constant({ do: 'rearm' as const }), weight: 1 },
  { arbitrary: fc.constant({ do: 'discard' as const }), weight: 1 },
)

function settlement(as: 'done' | 'retry' | 'dead' | 'release'): Settlement {
  if (as === 'retry') return { kind: 'retry', after: 100, charged: true, error: new Error('retry') }
  if (as === 'dead') return { kind: 'dead', reason: 'dead', error: new Error('dead') }
  return as === 'done' ? DONE : RELEASE
}

/**
 * A relay that keeps one of a key in flight, as a flow does: what it takes behind one of the same key is given back
 * when that one is not done.
 */
async function play(steps: readonly Step[], deadKey: 'block' | 'continue'): Promise<void> {
  const clock = new FakeClock()
  const db = memory({ clock })
  const options = { reader: 'owner', shards: 1, lease: 3_600_000, deletes: false, wake: false, attempts: 9 } as const
  const open = async () => {
    const reader = db.outbox.reader({ ...options, deadKey, clock })
    const session = (await (await reader.assignment())[0]!.open(new AbortController().signal))!
    return { reader, session }
  }
  let { reader, session } = await open()
  let hand: Awaited<ReturnType<Session['take']>>[number][] = []
  const done: { key: string | undefined; n: number }[] = []
  const waiting = new Set<number>()
  const deadOnes = new Set<number>()
  const keyOf = new Map<number, string | undefined>()
  let written = 0

  const settle = async (at: number, as: 'done' | 'retry' | 'dead' | 'release') => {
    const one = hand[at]!
    const number = (delivery: typeof one) => JSON.parse(delivery.message.data as string).n as number
    // Only the first of a key is in flight.
    const first = hand.findIndex((other) => other === one || (one.key !== undefined && other.key === one.key))
    if (first !== at) return
    const behind = hand.filter((other) => other !== one && one.key !== undefined && other.key === one.key)
    const back = as === 'done' || (as === 'dead' && deadKey === 'continue') ? [] : behind
    const stale = await session.settle([[one, settlement(as)], ...back.map((other) => [other, RELEASE] as const)])
    expect(stale).toBe(0)
    hand = hand.filter((other) => other !== one && !back.includes(other))
    const n = number(one)
    waiting.delete(n)
    if (as === 'retry') waiting.add(n)
    if (as === 'dead') deadOnes.add(n)
    if (as === 'done') done.push({ key: one.key, n })
  }
  const take = async (count: number) => {
    for (const delivery of await session.take({ count, bytes: 1e9 }, session.lost)) {
      const n = JSON.parse(delivery.message.data as string).n as number
      expect(hand.some((other) => other.message.id === delivery.message.id)).toBe(false)
      for (const earlier of [...waiting, ...(deadKey === 'block' ? deadOnes : [])]) {
        const same = delivery.key !== undefined && keyOf.get(earlier) === delivery.key
        expect(same && earlier < n, `${n} is given while ${earlier} of its key waits`).toBe(false)
      }
      waiting.delete(n)
      hand.push(delivery)
    }
  }

  for (const one of steps) {
    if (one.do === 'enqueue') {
      const key = KEYS[one.key]
      const n = ++written
      const delayed = one.delayed && key === undefined
      keyOf.set(n, key)
      await db.withTransaction((tx) =>
        db.outbox.enqueue(tx, Written({ n }, key === undefined ? {} : { key }), {
          ...(delayed ? { availableAt: new Date(clock.now() + 50) } : {}),
        }),
      )
    } else if (one.do === 'take') await take(one.count)
    else if (one.do === 'settle') {
      if (hand.length > 0) await settle(one.at % hand.length, one.as)
    } else if (one.do === 'pass') await clock.advance(one.ms)
    else if (one.do === 'reopen') {
      await session.close()
      await reader.close()
      hand = []
      ;({ reader, session } = await open())
    } else if (one.do === 'rearm') {
      await db.outbox.admin.rearm({})
      for (const n of deadOnes) waiting.add(n)
      deadOnes.clear()
    } else {
      await db.outbox.admin.discardDead({}, { by: 'property', note: 'discarded' })
      for (const n of deadOnes) keyOf.delete(n)
      deadOnes.clear()
    }
  }

  // In the end everything comes that nobody has given up.
  await db.outbox.admin.rearm({})
  deadOnes.clear()
  for (let round = 0; round < 200 && done.length < keyOf.size; round++) {
    await clock.advance(100)
    await take(3)
    while (hand.length > 0) await settle(0, 'done')
  }
  expect(new Set(done.map(({ n }) => n)).size).toBe(done.length)
  expect(done.map(({ n }) => n).sort((a, b) => a - b)).toEqual([...keyOf.keys()].sort((a, b) => a - b))
  if (deadKey === 'block') {
    for (const key of ['a', 'b', 'c']) {
      const order = done.filter((one) => one.key === key).map(({ n }) => n)
      expect(order).toEqual([...order].sort((a, b) => a - b))
    }
  }
  await session.close()
  await reader.close()
}

test.each(['block', 'continue'] as const)(
  'whatever happens, nothing is lost and keys stay in order (%s)',
  async (deadKey) => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60, size: 'max' }), (steps) => play(steps, deadKey)),
      { numRuns: scale({ test: 60, full: 500, torture: 20_000 }) },
    )
  },
)
