import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import * as client from 'prom-client'
import { afterEach, expect, test } from 'vitest'
import { observed } from '../../src/core/index.ts'
import { Cleaner } from '../../src/outbox/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { type SagaClient, SagaRunner, saga } from '../../src/saga/index.ts'
import { faultProxy } from '../../src/testing/index.ts'
import { outboxOn, Placed } from '../postgres/support.ts'
import { created, ListLog, orders, world as projectionWorld } from '../projection/support.ts'
import { freshTag } from '../redis/support.ts'
import { freshDatabase, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { listSource } from './support.ts'
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
  // Each has the bound for itself, however many there are: not even what stands in the same index matters.
  await t.pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, key, state)
    SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', 'k' || n, CASE WHEN n % 3 = 0 THEN 'held' ELSE 'dead' END
    FROM generate_series(1, 36000) AS n`)
  const all = await of(25_000)
  for (const state of ['ready', 'dead'] as const) expect(all[state]).toEqual({ count: 24_000, estimated: false })
  for (const state of ['scheduled', 'held'] as const) expect(all[state]).toEqual({ count: 12_000, estimated: false })
  const fewer = await of(20_000)
  expect([fewer.ready, fewer.dead].map(({ estimated }) => estimated)).toEqual([true, true])
  for (const state of ['scheduled', 'held'] as const) expect(fewer[state]).toEqual({ count: 12_000, estimated: false })
})

test('who owns only another part of a table knows that it is not the one to tell', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  const metrics = scraped()
  ends.push(() => metrics.stop())
  // A relay that came before: the first part is its own.
  await t.pool.query(`INSERT INTO outbox_members (member, mode, expires_at) VALUES ('', 'owner/2', 'infinity')`)
  const relay = t.relay({ shards: 2 })
  await relay.start()
  const parts = () => relay.status().children?.filter(({ name }) => name.startsWith('outbox/')) ?? []
  await eventually('it reads the other part', () => parts()[0]?.state === 'running')
  expect(parts().map(({ name }) => name)).toEqual(['outbox/1'])
  expect(await relay.gauges!.leads()).toBe(false)
  expect(await metrics.of('outbox_leader')).toEqual({ '': 0 })
  // 0 would be an alarm: the store does answer.
  expect(await metrics.of('waybill_gauges_up')).toEqual({})
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

test('whatever runs in the background tells when it last succeeded: consumers, sagas, projections, cleaners, repairs', async () => {
  const at = await projectionWorld('postgres', { sagas: true })
  const connection = new IoRedis(service('redis').url)
  const onRedis = redis({ client: connection, tag: freshTag(), outbox: { kind: 'stored' } })
  const metrics = scraped()
  const log = new ListLog()
  const nap = saga('nap', { version: 1 }).step('fine', () => 1)
  const sagas = new SagaRunner({ store: at.db as never, sagas: [nap] as never, name: 'sagas' })
  const billing = new Router('billing').on(Placed, () => {}).consume(listSource([Placed({ n: 1 })]))
  const workers = [
    billing,
    sagas,
    at.projector(log, [orders()], { name: 'views', poll: '20ms' }),
    new Cleaner({ of: at.db.outbox.admin }),
    onRedis.outbox.repair(),
    new Relay({ from: onRedis.outbox as never, to: async () => {}, name: 'to nobody', lease: '3s' }),
  ]
  ends.push(
    () => at.end(),
    () => connection.disconnect(),
    () => onRedis.stop(),
    () => metrics.stop(),
    () => Promise.all(workers.map((worker) => worker.stop())),
  )
  for (const worker of workers) await worker.start()
  const client = sagas.client(nap as never) as never as SagaClient<object, object, object, never>
  await at.db.withTransaction((tx) => client.start(tx as never, {} as never))
  log.append(created('o1'))
  await onRedis.withTransaction((tx) => onRedis.outbox.enqueue(tx as never, [Placed({ n: 1 })]))
  let without: string[] = []
  await eventually(
    'all of them have',
    async () => {
      const times = await metrics.of('waybill_worker_last_success_timestamp_seconds')
      without = [...observed].map(({ name }) => name).filter((name) => !(times[`worker="${name}"`]! > 1.7e9))
      return without.length === 0
    },
    { limit: 20_000, seen: () => without },
  )
  const names = ['billing', 'sagas', 'views', 'order_list_view/1', 'cleaner outbox', 'to nobody', onRedis.outbox.name]
  expect([...observed].map(({ name }) => name)).toEqual(expect.arrayContaining(names))
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
