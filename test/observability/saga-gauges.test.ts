import pg from 'pg'
import { afterEach, describe, expect, test } from 'vitest'
import { event } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { SagaAdmin, type SagaClient, type SagaDatabase, SagaRunner, saga } from '../../src/saga/index.ts'
import { faultProxy } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { scraped } from './worlds.ts'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

/** Sleeps, for ever as far as tests are concerned. */
const nap = saga('nap', { version: 1 }).sleep('pause', '1d')
const held = saga('held', { version: 1 }).step('charge', () => {
  throw new Error('nobody knows')
})
const SAGAS = [nap, held]

function poolOf(url: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max: 10 })
  pool.on('error', () => {})
  ends.push(() => pool.end())
  return pool
}

function runnerOf(store: SagaDatabase<never>, name: string): SagaRunner {
  const runner = new SagaRunner({ store: store as never, sagas: SAGAS as never, name })
  ends.push(() => runner.stop())
  return runner
}

const STORES = {
  memory: async () => memory() as never as SagaDatabase<never>,
  async postgres() {
    const database = await freshDatabase()
    ends.push(() => database.drop())
    const db = postgres({ pool: poolOf(database.url), sagas: true })
    await db.migrate()
    return db as never as SagaDatabase<never>
  },
}

const metricsOf = () => {
  const metrics = scraped()
  ends.push(() => metrics.stop())
  return metrics
}

describe.each(Object.keys(STORES) as (keyof typeof STORES)[])('sagas on %s', (kind) => {
  test('are counted by type and state, those that wait for a person apart, and the first that is due', async () => {
    const store = await STORES[kind]()
    const metrics = metricsOf()
    const runner = await runnerOf(store, 'one').start()
    const client = runner.client(nap as never) as never as SagaClient<object, object, object, never>
    const start = () => store.withTransaction((tx) => client.start(tx, {} as never))
    await start()
    const id = await start()
    await new SagaAdmin({ store, sagas: SAGAS as never }).hold(id, { by: 'me', note: 'wait' })
    const alive = (type: string, state: string) => `saga="${store.sagas.name}",type="${type}",state="${state}"`
    await eventually('they are counted', async () => {
      const counts = await metrics.of('waybill_saga_alive_count')
      return counts[alive('nap', 'running')] === 1 && counts[alive('nap', 'held')] === 1
    })
    const counts = await metrics.of('waybill_saga_alive_count')
    expect(counts[alive('nap', 'compensating')]).toBe(0)
    // Registered, and there is none of it.
    expect(counts[alive('held', 'running')]).toBe(0)
    const of = (type: string) => `saga="${store.sagas.name}",type="${type}"`
    expect(await metrics.of('waybill_saga_attention_count')).toEqual({ [of('nap')]: 1, [of('held')]: 0 })
    expect((await metrics.of('waybill_saga_oldest_attention_seconds'))[of('nap')]).toBeGreaterThan(0)
    expect((await metrics.of('waybill_saga_oldest_due_seconds'))[of('nap')]).toBe(0)
    expect((await metrics.of('waybill_saga_count_estimated'))[alive('nap', 'running')]).toBe(0)
    expect(await metrics.of('waybill_gauges_up')).toEqual({ [`saga="${store.sagas.name}"`]: 1 })
    // Sagas have no outbox, and no leader of one.
    expect(await metrics.of('outbox_leader')).toEqual({})
  })
})

test('of two runners one tells of all sagas; when it is gone, the other', async () => {
  const database = await freshDatabase()
  ends.push(() => database.drop())
  const stores = [1, 2].map(() => postgres({ pool: poolOf(database.url), sagas: true }))
  await stores[0]!.migrate()
  const [first, second] = stores.map((store, i) => runnerOf(store as never, `runner ${i}`))
  await first!.start()
  await eventually('the first tells', async () => (await first!.gauges!.leads()) === true)
  await second!.start()
  await eventually('the second leaves it to the first', async () => (await second!.gauges!.leads()) === false)
  const metrics = metricsOf()
  expect(await metrics.of('waybill_gauges_up')).toEqual({ 'saga="saga_executions"': 1 })
  await first!.stop()
  await eventually('the second tells', async () => (await second!.gauges!.leads()) === true)
})

test('two stores of one pool, as in two modules of an application, are one to whoever looks', async () => {
  const database = await freshDatabase()
  ends.push(() => database.drop())
  const pool = poolOf(database.url)
  const stores = [1, 2].map(() => postgres({ pool, sagas: true }))
  await stores[0]!.migrate()
  // Both tell: as in one session of PGlite, where each has the lock.
  const metrics = scraped({ gauges: 'all' })
  ends.push(() => metrics.stop())
  for (const [i, store] of stores.entries()) {
    await runnerOf(store as never, `runner ${i}`).start()
    const relay = await new Relay({ from: store.outbox, to: async () => {} }).start()
    ends.push(() => relay.stop())
  }
  const later = { availableAt: new Date(Date.now() + 3_600_000) }
  await stores[0]!.withTransaction((tx) => stores[0]!.outbox.enqueue(tx, event('later')({}), later))
  await pool.query(`INSERT INTO saga_executions (id, saga_type, definition, input, wake_at, status)
    VALUES (gen_random_uuid(), 'nap', 'nap@1#a', '{}', now() + interval '1 day', 'running')`)
  const running = 'saga="saga_executions",type="nap",state="running"'
  await eventually('one saga', async () => (await metrics.of('waybill_saga_alive_count'))[running] === 1)
  await eventually('one event', async () => (await metrics.of('outbox_scheduled_count'))[''] === 1)
})

test('while the database is silent a scrape answers within a second, and says that sagas were not counted', async () => {
  const database = await freshDatabase()
  ends.push(() => database.drop())
  const url = new URL(database.url)
  const proxy = await faultProxy({ host: url.hostname, port: Number(url.port) })
  ends.push(() => proxy.close())
  const db = postgres({ pool: poolOf(proxy.url(database.url)), sagas: true })
  await db.migrate()
  const metrics = metricsOf()
  await runnerOf(db as never, 'one').start()
  const up = async () => (await metrics.of('waybill_gauges_up'))['saga="saga_executions"']
  await eventually('it tells', async () => (await up()) === 1)
  proxy.blackHole()
  await eventually('it is missed', async () => (await up()) === 0)
  const began = performance.now()
  const text = await metrics.registry.metrics()
  // Long before the server would be given up. What a scrape waits at most is measured in hostile.test.ts.
  expect(performance.now() - began).toBeLessThan(10_000)
  expect(text).not.toMatch(/^waybill_saga_alive_count\{/m)
  await proxy.restore()
})

test('more than are counted one by one are estimated, and said to be', async () => {
  const database = await freshDatabase()
  ends.push(() => database.drop())
  const pool = poolOf(database.url)
  const db = postgres({ pool, sagas: true })
  await db.migrate()
  await pool.query(`INSERT INTO saga_executions (id, saga_type, definition, input, wake_at, status)
    SELECT gen_random_uuid(), 'nap', 'nap@1#a', '{}', now() + interval '1 day',
      CASE WHEN n % 10 = 0 THEN 'compensating' ELSE 'running' END FROM generate_series(1, 20000) AS n`)
  await pool.query('ANALYZE saga_executions')
  const [exact] = await db.sagas.stats(1_000_000)
  expect(exact!.counts.running).toEqual({ count: 18_000, estimated: false })
  expect(exact!.counts.compensating).toEqual({ count: 2000, estimated: false })
  const [estimated] = await db.sagas.stats(5000)
  expect(estimated!.counts.running.estimated).toBe(true)
  expect(Math.abs(estimated!.counts.running.count / 18_000 - 1)).toBeLessThan(0.05)
  // No time to count: the same.
  const [hurried] = await db.sagas.stats(1_000_000, 0)
  expect(hurried!.counts.running.estimated).toBe(true)
  expect(Math.abs(hurried!.counts.running.count / 18_000 - 1)).toBeLessThan(0.05)
})

test('each definition and state is exact up to the bound by itself, those that wait for a person too', async () => {
  const database = await freshDatabase()
  ends.push(() => database.drop())
  const pool = poolOf(database.url)
  const db = postgres({ pool, sagas: true })
  await db.migrate()
  const EACH = scale({ test: 12_000, full: 300_000, torture: 900_000 })
  for (const type of ['early', 'late']) {
    await pool.query(`INSERT INTO saga_executions (id, saga_type, definition, input, wake_at, attention_at, held_reason)
      SELECT gen_random_uuid(), '${type}', '${type}@1#a', '{}', CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END,
        CASE WHEN n % 2 = 1 THEN clock_timestamp() END, CASE WHEN n % 2 = 1 THEN 'odd' END
      FROM generate_series(1, ${2 * EACH}) AS n`)
  }
  await pool.query('ANALYZE saga_executions')
  const stats = await db.sagas.stats(EACH + 1000)
  expect(stats.map(({ type }) => type).sort()).toEqual(['early', 'late'])
  for (const { counts } of stats) {
    expect(counts.running).toEqual({ count: EACH, estimated: false })
    expect(counts.held).toEqual({ count: EACH, estimated: false })
  }
  // Those of the second type lie behind all that a look without time sees.
  for (const { counts } of await db.sagas.stats(EACH + 1000, 0)) expect(counts.held.estimated).toBe(true)
})
