import { afterEach, describe, expect, test } from 'vitest'
import { scale } from '../../support/scale.ts'
import { privatePostgres } from '../../support/services.ts'
import { until, type World, world } from './support.ts'
import { tcpBroker, tcpPublisher } from './tcp-broker.ts'

let t: World

afterEach(() => t.end())

const restarts = scale({ test: 2, full: 5, torture: 100 })
const leases = scale({ test: 2, full: 10, torture: 100 })
const limit = scale({ test: 120_000, full: 300_000, torture: 3_600_000 })

/** Commits with patience: a service tries again while its database is away, and may find that it had succeeded. */
async function commitUntil(stop: () => boolean): Promise<void> {
  while (!stop()) await t.fill(10, 20).catch(() => new Promise((resolve) => setTimeout(resolve, 50)))
}

describe('outages', { timeout: limit }, () => {
  test.each(['owner', 'lease'] as const)(
    'PostgreSQL restarted (immediate) again and again, reading as %s: nothing is lost, no attempts are spent',
    async (reader) => {
      const server = await privatePostgres()
      t = await world(server)
      let stop = false
      const writing = commitUntil(() => stop)
      const relay = { reader, lease: 2000, batch: 20, maxBatch: 20 } as const
      const child = await t.child({ relay, delay: 2 })
      for (let i = 0; i < restarts; i++) {
        const before = t.journal.arrived()
        await until(() => t.journal.arrived() > before + 50, 60_000)
        await server.restart('immediate')
      }
      const before = t.journal.arrived()
      await until(() => t.journal.arrived() > before + 50, 60_000)
      stop = true
      await writing
      await t.settled(60_000)
      child.kill('SIGTERM')
      expect(await child.finished).toMatchObject({ code: 0 })
      const ordered = reader === 'owner'
      // Under a lease, what was claimed when the server went down runs out, which counts as an attempt.
      expect(await t.problems({ ordered, duplicates: restarts * 100, charged: !ordered })).toEqual([])
    },
  )

  test.each(['owner', 'lease'] as const)(
    'broker down for many leases, reading as %s: no attempts are spent, and it resumes by itself',
    async (reader) => {
      t = await world()
      await using broker = await tcpBroker()
      // Short, and yet so long that a busy machine renews it in time: one that runs out is an attempt.
      const lease = scale({ test: 3000, full: 3000, torture: 1500 })
      const outage = { min: 20, max: 200, jitter: 0 }
      const relay = t.relay({ reader, lease, outage, inner: tcpPublisher(broker.port) })
      await t.fill(50, 10)
      await relay.start()
      await until(() => t.journal.arrived() === 50)
      await broker.down()
      await t.fill(300, 10)
      const began = Date.now()
      await until(() => Date.now() - began > leases * lease, limit)
      expect(t.journal.arrived()).toBe(50)
      const { rows } = await t.pool.query('SELECT max(attempts) AS attempts FROM outbox')
      expect(rows).toEqual([{ attempts: 0 }])
      await broker.up()
      await t.settled()
      await relay.stop()
      expect(await t.problems({ ordered: reader === 'owner' })).toEqual([])
    },
  )
})
