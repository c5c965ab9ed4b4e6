import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { faultProxy } from '../../../src/testing/index.ts'
import { until, type World, world } from './support.ts'

let t: World

beforeEach(async () => {
  t = await world()
})
afterEach(() => t.end())

const LEASE = 2500

describe('a relay suspended past its lease', { timeout: 120_000 }, () => {
  test.each(['owner', 'lease'] as const)(
    'reading as %s: another takes over, and what the first settles then changes nothing and is counted',
    async (reader) => {
      await t.fill(40, 4)
      const relay = { reader, lease: LEASE, batch: 10, maxBatch: 10 }
      const first = await t.child({ relay, delay: 300 })
      await until(() => t.journal.count('start', first.name) > 0)
      first.pause()
      const out = t.journal.read().filter(({ what, relay }) => what === 'start' && relay === first.name)
      const second = await t.child({ relay })
      await until(() => t.journal.count('ok', second.name) >= 30)
      await t.settled()
      const { rows: before } = await t.pool.query('SELECT * FROM outbox ORDER BY event_id')
      first.resume()
      await until(() => {
        const lines = t.journal.read().filter(({ relay }) => relay === first.name)
        return lines.some(({ what, stale }) => what === 'lost' || (what === 'settled' && stale! > 0))
      })
      const { rows: after } = await t.pool.query('SELECT * FROM outbox ORDER BY event_id')
      expect(after).toEqual(before)
      await t.fill(10, 4)
      await t.settled()
      for (const child of [first, second]) {
        child.kill('SIGTERM')
        expect(await child.finished).toMatchObject({ code: 0 })
      }
      const expected = { zombies: [first.name], duplicates: out.length, ordered: reader === 'owner', charged: true }
      expect(await t.problems(expected)).toEqual([])
    },
  )
})

describe('an owner cut off from the database but not from the broker', { timeout: 120_000 }, () => {
  test.each(['cut', 'blackHole', 'refuse'] as const)(
    '%s: it stops before its term ends, another goes on, nothing is lost',
    async (fault) => {
      const { hostname, port } = new URL(t.database.url)
      await using proxy = await faultProxy({ host: hostname, port: Number(port) })
      await t.fill(2000, 50)
      const relay = { reader: 'owner', lease: LEASE, batch: 10, maxBatch: 10 } as const
      const first = await t.child({ relay, delay: 5, url: proxy.url(t.database.url) })
      await until(() => t.journal.count('ok', first.name) > 100)
      const second = await t.child({ relay, delay: 5 })
      await second.line('started')
      const opened = t.journal.count('opened', first.name)
      const at = Date.now()
      await proxy[fault]()
      // A cut connection is opened again at once; the other two leave the field to the second.
      if (fault === 'cut') await until(() => t.journal.count('opened', first.name) > opened)
      else await until(() => t.journal.count('ok', second.name) > 0)
      const lines = t.journal.read()
      // On a crowded machine it may have lost its term before, too.
      const lost = lines.filter(({ what, relay, at: when }) => what === 'lost' && relay === first.name && when >= at)
      expect(lost).toHaveLength(1)
      const last = lines.findLast(({ what, relay }) => what === 'start' && relay === first.name)!
      const taken = lines.find(({ what, relay }) => what === 'start' && relay === second.name)
      if (fault !== 'cut') {
        expect(last.at).toBeLessThan(taken!.at)
        expect(last.at - at).toBeLessThan(LEASE)
      }
      await t.settled(60_000)
      await proxy.restore()
      // What the first had out and could not settle went out again.
      expect(await t.problems({ duplicates: 100 })).toEqual([])
      for (const child of [first, second]) {
        child.kill('SIGTERM')
        expect(await child.finished).toMatchObject({ code: 0 })
      }
    },
  )
})

describe('a database that has stopped answering', { timeout: 60_000 }, () => {
  test.each(['owner', 'lease'] as const)('does not keep a relay that reads as %s from stopping', async (reader) => {
    const { hostname, port } = new URL(t.database.url)
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const child = await t.child({ relay: { reader, lease: 1500, grace: '1s' }, url: proxy.url(t.database.url) })
    await t.fill(10)
    await t.settled()
    proxy.blackHole()
    child.kill('SIGTERM')
    await child.line('stopped', 45_000)
  })
})
