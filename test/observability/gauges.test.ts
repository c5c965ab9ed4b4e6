import pg from 'pg'
import * as client from 'prom-client'
import { afterEach, expect, test } from 'vitest'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { faultProxy } from '../../src/testing/index.ts'
import { outboxOn, Placed } from '../postgres/support.ts'
import { freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { scraped } from './worlds.ts'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

test('while the database is silent a scrape answers within a second, without its gauges, and says so', async () => {
  const database = await freshDatabase()
  const url = new URL(database.url)
  const proxy = await faultProxy({ host: url.hostname, port: Number(url.port) })
  const pool = new pg.Pool({ connectionString: proxy.url(database.url), max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool })
  await db.migrate()
  const metrics = scraped()
  const relay = new Relay({ from: db.outbox, to: async () => {}, lease: '30s' })
  ends.push(
    () => database.drop(),
    () => proxy.close(),
    () => pool.end(),
    () => metrics.stop(),
  )
  await relay.start()
  await eventually('it tells', async () => (await metrics.of('outbox_pending_count'))[''] === 0)
  proxy.blackHole()
  await eventually('it is missed', async () => (await metrics.of('waybill_gauges_up'))[''] === 0)
  for (let scrape = 0; scrape < 3; scrape++) {
    const began = performance.now()
    const text = await metrics.registry.metrics()
    // Long before the server would be given up. What a scrape waits at most is measured in hostile.test.ts.
    expect(performance.now() - began).toBeLessThan(10_000)
    expect(text).toMatch(/^waybill_gauges_up\{table="outbox"\} 0$/m)
    expect(text).not.toMatch(/^outbox_pending_count\{/m)
    // What the process knows by itself is there.
    expect(text).toMatch(/^outbox_paused\{table="outbox"\} 0$/m)
  }
  await proxy.restore()
  await eventually('it tells again', async () => (await metrics.of('outbox_pending_count'))[''] === 0, {
    limit: 60_000,
  })
  await relay.stop()
})

test('numbers up to a million are exact, through their own index; beyond, an estimate that says so', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  await t.pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, available_at)
    SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', CASE WHEN n % 3 = 0 THEN 'scheduled' ELSE 'ready' END,
      CASE WHEN n % 3 = 0 THEN now() + interval '1 day' END FROM generate_series(1, 36000) AS n`)
  const of = async (exactUpTo: number) => (await t.outbox.admin.stats({ exactUpTo, published: false })).states
  // Each state has the bound for itself: together they are more.
  for (const exactUpTo of [1_000_000, 25_000]) {
    const { ready, scheduled } = await of(exactUpTo)
    expect(ready).toEqual({ count: 24_000, estimated: false })
    expect(scheduled).toEqual({ count: 12_000, estimated: false })
  }
  const { ready, scheduled } = await of(20_000)
  expect([scheduled.estimated, ready.estimated]).toEqual([false, true])
  expect(Math.abs(ready.count / 24_000 - 1)).toBeLessThan(0.05)
  // All of them together cost no more than two that have come to the bound: of three, one is an estimate.
  await t.pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state)
    SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', 'dead' FROM generate_series(1, 24000) AS n`)
  const all = await of(25_000)
  expect(all.scheduled).toEqual({ count: 12_000, estimated: false })
  expect([all.ready, all.dead].map(({ estimated }) => estimated).sort()).toEqual([false, true])
})

test('every background loop tells when it last succeeded, and what it has not settled', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  const metrics = scraped()
  ends.push(() => metrics.stop())
  await t.relay({ lease: '3s' }).start()
  await t.enqueue(Placed({ n: 1 }))
  await t.sink.arrived(1)
  const name = 'waybill_worker_last_success_timestamp_seconds'
  await eventually('all of them', async () => {
    const times = await metrics.of(name)
    return ['relay outbox', 'relay outbox: shares', 'outbox'].every((worker) => times[`worker="${worker}"`]! > 1.7e9)
  })
  await eventually(
    'nothing is left',
    async () => (await metrics.of('waybill_worker_unsettled'))['worker="outbox"'] === 0,
  )
})

test('an OpenMetrics parser reads it: no family twice, samples of a family together, one end', async () => {
  const registry = new client.Registry<client.OpenMetricsContentType>()
  registry.setContentType(client.openMetricsContentType as never)
  const { recordMetrics } = await import('../../src/observability/index.ts')
  ends.push(recordMetrics({ client, registry: registry as never }))
  const t = await outboxOn()
  ends.push(() => t.end())
  await t.enqueue(Placed({ n: 1 }))
  await t.relay().runOnce()
  const lines = (await registry.metrics()).trimEnd().split('\n')
  expect(lines.at(-1)).toBe('# EOF')
  const families = new Map<string, string>()
  const series = lines.map((line) => /^\w+(?:\{.*\})?(?= )/.exec(line)?.[0]).filter((one) => one !== undefined)
  expect(series.filter((one, i) => series.indexOf(one) !== i)).toEqual([])
  let current = ''
  for (const line of lines.slice(0, -1)) {
    const type = /^# TYPE (\w+) (\w+)$/.exec(line)
    if (type !== null) {
      current = type[1]!
      expect(families.has(current), current).toBe(false)
      families.set(current, type[2]!)
    }
    if (line.startsWith('#') || line === '') continue
    const name = /^(\w+)/.exec(line)![1]!
    const suffixes = { counter: ['_total'], histogram: ['_bucket', '_sum', '_count'], gauge: [''] }[
      families.get(current)!
    ]!
    expect(
      suffixes.map((suffix) => current + suffix),
      line,
    ).toContain(name)
  }
  expect(families.get('outbox_dispatch')).toBe('counter')
})
