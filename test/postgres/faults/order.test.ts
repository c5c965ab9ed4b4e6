import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { Placed, record } from './business.ts'
import { until, type World, world } from './support.ts'

let t: World

beforeEach(async () => {
  t = await world()
})
afterEach(() => t.end())

describe('numbers are no order of commits', () => {
  test('a number drawn early and committed late goes out before the next of its key, however it is read', async () => {
    const relay = t.relay()
    await relay.runOnce()
    const early = await t.pool.connect()
    for (let round = 1; round <= scale({ test: 20, full: 500, torture: 50_000 }); round++) {
      await early.query('BEGIN')
      const first = Placed({ n: 2 * round }, { key: 'a' })
      await t.db.outbox.enqueue(early, first)
      await record(early, [first])
      // Others draw higher numbers and are read: the place read up to passes the first.
      await t.fill(3)
      await relay.runOnce()
      await early.query('COMMIT')
      const second = Placed({ n: 2 * round + 1 }, { key: 'a' })
      await t.db.withTransaction(async (tx) => {
        await t.db.outbox.enqueue(tx, second)
        await record(tx, [second])
      })
      await relay.runOnce()
    }
    early.release()
    while ((await relay.runOnce()).taken > 0);
    expect(await t.problems()).toEqual([])
  })

  test('also when the relay holds and releases keys meanwhile', async () => {
    const random = seededRandom('order')
    const failing = new Set<string>()
    const relay = t.relay({
      retry: { backoff: { min: 0, jitter: 0 }, attempts: 1000 },

      inner: {
        name: 'moody',
        features: {},
        publish: async (messages) =>
          messages.map(({ id }) => {
            if (random.integer(3) > 0 || failing.size > 1000) return { kind: 'ok' }
            failing.add(id)
            return { kind: 'failed', error: new Error('moody') }
          }),
      },
    })
    for (let round = 0; round < scale({ test: 15, full: 300, torture: 10_000 }); round++) {
      await t.fill(30, 7)
      await relay.runOnce()
    }
    for (let round = 0; (await relay.runOnce()).taken > 0 && round < 5000; round++);
    await t.settled()
    expect(await t.problems({ charged: true })).toEqual([])
  })

  test('also when it reads ahead', async () => {
    const random = seededRandom('ahead')
    const failed = new Set<string>()
    // The next of a key is just not taken when one fails: it is among what was read ahead.
    await t.fill(scale({ test: 600, full: 5000, torture: 500_000 }), 17)
    const relay = t.relay({
      batch: 5,
      maxBatch: 5,
      retry: { backoff: { min: 50, max: 50, jitter: 0 }, attempts: 1000 },

      inner: {
        name: 'moody',
        features: {},
        publish: async (messages) =>
          messages.map(({ id }) => {
            if (failed.has(id) || random.integer(12) > 0) return { kind: 'ok' }
            failed.add(id)
            return { kind: 'failed', error: new Error('moody') }
          }),
      },
    })
    await relay.start()
    await t.settled(100_000)
    expect(failed.size).toBeGreaterThan(0)
    expect(await t.problems({ charged: true })).toEqual([])
  })

  test('also long after: a scan begins behind what was published, and not behind what is not committed', async () => {
    const relay = t.relay()
    await relay.start()
    const early = await t.pool.connect()
    await early.query('BEGIN')
    const first = Placed({ n: 1_000_001 }, { key: 'late' })
    await t.db.outbox.enqueue(early, first)
    await record(early, [first])
    const published = () => t.pool.query(`SELECT count(*)::int AS n FROM outbox WHERE state = 'published'`)
    for (let round = 1; round <= 4; round++) {
      await t.fill(1200)
      await until(async () => (await published()).rows[0].n >= round * 1200)
    }
    await early.query('COMMIT')
    early.release()
    const second = Placed({ n: 1_000_002 }, { key: 'late' })
    await t.db.withTransaction(async (tx) => {
      await t.db.outbox.enqueue(tx, second)
      await record(tx, [second])
    })
    await t.settled()
    expect(await t.problems()).toEqual([])
  })
})
