import { afterEach, expect, test } from 'vitest'
import { seededRandom } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeWith, service } from '../support/services.ts'
import { type World, world } from './outbox-world.ts'
import { until } from './support.ts'

let t: World
afterEach(() => t.end())

for (const server of ['redis', 'redis6']) {
  describeWith([server], `a redis outbox killed again and again, on ${server}`, () => {
    test('20 kills, 50 to 500 events after each start: all that was committed arrives, in order per key', {
      timeout: 600_000,
    }, async () => {
      const kills = scale({ test: 3, full: 20, torture: 200 })
      const random = seededRandom(7)
      t = world(service(server).url, 2)
      let going = true
      const writing = (async () => {
        while (going) {
          // No more than relays can bear: what is pending when they die is charged.
          if ((await t.pending()) < 2000) await t.fill(50, 40)
          else await new Promise((resolve) => setTimeout(resolve, 20))
        }
      })()
      const relay = { lease: '2s', batch: 50, maxBatch: 50 } as const
      const other = t.child({ relay })
      await other.line('started', 60_000)
      for (let kill = 0; kill < kills; kill++) {
        const victim = t.child({ relay })
        await victim.line('started', 60_000)
        const after = 50 + Math.floor(random.next() * 450)
        await until(`${after} have arrived`, () => t.journal.count('ok', victim.name) >= after, 120_000)
        victim.kill('SIGKILL')
        await victim.finished
      }
      going = false
      await writing
      await t.settled(180_000)
      // Of each kill at most what was out: two batches of 50 from each shard.
      expect(await t.problems({ duplicates: kills * 200 })).toEqual([])
      expect(t.journal.arrived()).toBe(t.sent.length)
      const { states } = await t.outbox.admin.stats()
      expect([states.published.count, states.dead.count]).toEqual([t.sent.length, 0])
      expect(await t.outbox.repair({ patience: 0 }).runOnce()).toEqual({
        restored: 0,
        dropped: 0,
        released: 0,
        headed: 0,
      })
    })

    test('an event that kills every relay is dead in the end, and takes nobody along', {
      timeout: 300_000,
    }, async () => {
      t = world(service(server).url)
      await t.fill(20)
      const [poison] = await t.fill(1, 1)
      await t.fill(20)
      // Those beside it are charged too, until it goes out alone.
      const relay = { lease: 1500, retry: { attempts: 8 }, batch: 50, maxBatch: 50 } as const
      for (let deaths = 0; deaths < 20; deaths++) {
        const child = t.child({ relay, poison: poison!.id })
        const ended = await Promise.race([
          child.finished,
          until('nothing is pending', async () => (await t.pending()) === 0, 120_000),
        ])
        if (ended === undefined) break
      }
      await t.settled()
      const { states } = await t.outbox.admin.stats()
      expect([states.dead.count, states.published.count]).toEqual([1, 40])
      expect((await t.outbox.admin.list({ states: ['dead'] }))[0]!.eventId).toBe(poison!.id)
    })
  })
}
