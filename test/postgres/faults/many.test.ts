import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { scale } from '../../support/scale.ts'
import { type Child, until, type World, world } from './support.ts'

let t: World

beforeEach(async () => {
  t = await world()
})
afterEach(() => t.end())

const events = scale({ test: 600, full: 10_000, torture: 200_000 })
const keys = scale({ test: 20, full: 200, torture: 2000 })
const many = scale({ test: 4, full: 8, torture: 16 })
/** In tier test other files run beside it: an owner that is late by a whole lease loses it, and a kill right then is charged. */
const lease = scale({ test: 2500, full: 1500, torture: 1500 })
const limit = scale({ test: 60_000, full: 300_000, torture: 3_600_000 })

const stop = async (child: Child) => {
  child.kill('SIGTERM')
  expect(await child.finished).toMatchObject({ code: 0 })
}

/** So many of them, all of them at work before there is any. */
const start = async (count: number, job: Parameters<World['child']>[0]) => {
  const children = await Promise.all(Array.from({ length: count }, () => t.child(job)))
  await Promise.all(children.map((child) => child.line('started', limit)))
  return children
}

/** Enough for the relays to see each other at work. */
const slowly = { delay: 2, relay: { batch: 10, maxBatch: 10 } }

describe('many relays', { timeout: limit * 2 }, () => {
  test.each([2, many])('competing, %i processes: nothing is in flight twice', async (count) => {
    const relay = { ...slowly.relay, reader: 'lease', lease: '10s' } as const
    const children = await start(count, { ...slowly, relay })
    await t.fill(events, keys)
    await t.settled(limit)
    await Promise.all(children.map(stop))
    expect(await t.problems({ ordered: false })).toEqual([])
    expect(new Set(t.journal.read().map(({ relay }) => relay)).size).toBe(count)
  })

  test.each([2, many])(
    'one owner at a time, %i processes: nothing is in flight twice, every key in order',
    async (count) => {
      const relay = { ...slowly.relay, reader: 'owner', lease: '10s' } as const
      const children = await start(count, { ...slowly, relay })
      await t.fill(events, keys)
      // Each owner leaves after a share of the work, and another goes on at once.
      for (let left = count; left > 1; left--) {
        await until(() => t.journal.arrived() >= (events * (count - left + 1)) / (count + 1), limit)
        const owner = t.journal.read().findLast(({ what }) => what === 'ok')!.relay
        const [leaving] = children.splice(
          children.findIndex(({ name }) => name === owner),
          1,
        )
        await stop(leaving!)
      }
      await t.settled(limit)
      await Promise.all(children.map(stop))
      expect(await t.problems()).toEqual([])
    },
  )

  test('owners of shards that come, leave and die: every shard moves on, every key stays in order', async () => {
    const written = t.writing(keys)
    const relay = { ...slowly.relay, reader: 'owner', shards: 8, lease } as const
    const begin = () => t.child({ ...slowly, relay })
    const works = async (child: Child) => {
      const before = t.journal.count('ok', child.name)
      await until(() => t.journal.count('ok', child.name) > before + events / 10, limit)
    }
    const first = await begin()
    await works(first)
    const second = await begin()
    await works(second)
    const third = await begin()
    await works(third)
    second.kill('SIGKILL')
    await second.finished
    const opened = t.journal.count('opened')
    await until(() => t.journal.count('opened') > opened, limit)
    const fourth = await begin()
    await works(fourth)
    await stop(first)
    await works(third)
    await works(fourth)
    await written()
    await t.settled(limit)
    await Promise.all([third, fourth].map(stop))
    // Only what the killed one had out may have arrived twice.
    expect(await t.problems({ duplicates: 8 * 20 })).toEqual([])
  })
})
