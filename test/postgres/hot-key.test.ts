import { afterEach, beforeEach, expect, test } from 'vitest'
import { outboxSource } from '../../src/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const HOT = 'hot'

test('a key with nine of ten events does not keep the others waiting, and its order holds', async () => {
  const keyOf = (n: number) => (n % 10 === 0 ? `key ${n % 70}` : HOT)
  await t.enqueue(Array.from({ length: 1500 }, (_, n) => Placed({ n }, { key: keyOf(n) })))
  const order: number[] = []
  const to = async (message: Parameters<typeof number>[0]) => {
    await new Promise((resolve) => setTimeout(resolve, 1))
    order.push(number(message))
  }
  const relay = t.relay({ to, batch: 20, maxBatch: 20 })
  await relay.start()
  await eventually('all to be published', () => order.length >= 1500, { seen: () => order.length })
  await relay.stop()
  // The last of the others would otherwise be among the very last.
  expect(order.findLastIndex((n) => keyOf(n) !== HOT)).toBeLessThan(500)
  const hot = order.filter((n) => keyOf(n) === HOT)
  expect(hot).toEqual(hot.toSorted((a, b) => a - b))
})

test('what a take leaves out comes first when it is asked for again, timers in their place', async () => {
  const clock = new FakeClock()
  const due = { availableAt: new Date(Date.now() - 1000) }
  const enqueue = (n: number, key?: string, options = {}) =>
    t.enqueue(Placed({ n }, key === undefined ? {} : { key }), options)
  await enqueue(1, HOT)
  await enqueue(2, HOT, due)
  await enqueue(3, 'a')
  await enqueue(4)
  await enqueue(5, 'a', due)
  await enqueue(6, HOT)
  const source = outboxSource(t.outbox, { reader: 'owner', wake: false, lease: '1h', clock })
  const session = (await source.open(new AbortController().signal))!
  const take = async (without?: ReadonlySet<string>) => {
    const demand = { count: 100, bytes: 1e9, ...(without === undefined ? {} : { without }) }
    const taken = await session.take(demand, session.lost)
    await session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
    return taken.map(({ message }) => number(message))
  }
  try {
    expect(await take(new Set([HOT]))).toEqual([3, 4, 5])
    expect(await take(new Set([HOT]))).toEqual([])
    await clock.advance(60)
    expect(await take()).toEqual([1, 2, 6])
  } finally {
    await session.close()
  }
})

test('what is held of a key is left out with it', async () => {
  await t.enqueue([1, 2].map((n) => Placed({ n }, { key: HOT })))
  await t.pool.query(`UPDATE outbox SET state = 'held'`)
  const source = outboxSource(t.outbox, { reader: 'owner', wake: false, lease: '1h', clock: new FakeClock() })
  const session = (await source.open(new AbortController().signal))!
  try {
    expect(await session.take({ count: 9, bytes: 1e9, without: new Set([HOT]) }, session.lost)).toEqual([])
    expect(await session.take({ count: 9, bytes: 1e9 }, session.lost)).toHaveLength(2)
  } finally {
    await session.close()
  }
})
