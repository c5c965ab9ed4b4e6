import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Child, until, type World, world } from './support.ts'
import { tcpBroker, tcpPublisher } from './tcp-broker.ts'

let t: World

beforeEach(async () => {
  t = await world()
})
afterEach(() => t.end())

const state = async (id: string) =>
  (await t.pool.query('SELECT state, attempts FROM outbox WHERE event_id = $1', [id])).rows[0]

describe('poison', { timeout: 120_000 }, () => {
  test.each(['owner', 'lease', 'lease, after a crash'] as const)(
    'reading as %s: an event that always closes the broker connection is charged and finally dead, the others flow',
    async (how) => {
      const reader = how === 'owner' ? 'owner' : 'lease'
      await using broker = await tcpBroker()
      const events = await t.fill(60, 10)
      const poison = events[17]!
      broker.closeOn(poison.id)
      if (how === 'lease, after a crash') {
        const crashed = `UPDATE outbox SET state = 'leased', lease = gen_random_uuid(), available_at = now() WHERE key = $1`
        await t.pool.query(crashed, [poison.key])
      }
      const relay = t.relay({
        reader,
        // Nobody dies here: one that runs out on a busy machine would be an attempt.
        lease: 30_000,
        retry: { attempts: 3, backoff: { min: 50, max: 50, jitter: 0 } },

        outage: { min: 5, max: 20, jitter: 0 },
        inner: tcpPublisher(broker.port),
      })
      await relay.start()
      // An outage looks the same from within, but for others that arrive.
      const written = t.writing(0)
      // Those behind it in its key wait for a person.
      const blocked = reader === 'owner' ? events.filter((one, i) => i > 17 && one.key === poison.key).length : 0
      await until(async () => (await state(poison.id)).state === 'dead', 60_000)
      await written()
      const { rows: all } = await t.pool.query('SELECT count(*)::int AS n FROM outbox')
      await until(() => t.journal.arrived() === all[0].n - 1 - blocked, 60_000)
      await relay.stop()
      expect(await state(poison.id)).toEqual({ state: 'dead', attempts: 3 })
      const { rows } = await t.pool.query(
        `SELECT count(*)::int AS others FROM outbox WHERE attempts > $2 AND event_id <> $1`,
        [poison.id, how === 'lease, after a crash' ? 1 : 0],
      )
      expect(rows).toEqual([{ others: 0 }])
    },
  )

  test.each(['owner', 'lease'] as const)(
    'reading as %s: an event that kills its relay again and again is finally dead, the others arrive',
    async (reader) => {
      const events = await t.fill(40)
      const poison = events[11]!
      const job = { poison: poison.id, relay: { reader, lease: 1500, retry: { attempts: 3 }, batch: 10, maxBatch: 10 } }
      let deaths = 0
      const run = (async () => {
        while ((await state(poison.id)).state !== 'dead') {
          const child: Child = await t.child(job)
          await Promise.race([child.finished, until(async () => (await state(poison.id)).state === 'dead', 60_000)])
          if ((await state(poison.id)).state === 'dead') return child
          deaths++
          if (deaths > 30) throw new Error('it kills on and on')
        }
        return t.child(job)
      })()
      const last = await run
      await t.settled()
      last.kill('SIGTERM')
      await last.finished
      expect(await state(poison.id)).toEqual({ state: 'dead', attempts: 3 })
      expect(await t.problems({ dead: [poison.id], duplicates: 40, charged: reader === 'lease' })).toEqual([])
      expect(deaths).toBeGreaterThanOrEqual(3)
      expect(deaths).toBeLessThan(15)
    },
  )
})
