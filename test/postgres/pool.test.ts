import pg from 'pg'
import postgresJs from 'postgres'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { type Clock, systemClock } from '../../src/core/index.ts'
import { Router, RoutingRelay, transactional } from '../../src/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import { postgres } from '../../src/postgres/index.ts'
import { recordTelemetry, runScript } from '../../src/testing/index.ts'
import { bundled } from '../support/bundled.ts'
import { until } from './faults/support.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox
const open: { stop(): Promise<unknown> }[] = []

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.stop()
  await t.end()
})

function pgPool(max: number): pg.Pool {
  const pool = new pg.Pool({ connectionString: t.database.url, max })
  pool.on('error', () => {})
  open.push({ stop: () => pool.end() })
  return pool
}

const pools = {
  pg: (max: number) => postgres({ pool: pgPool(max) }).outbox,
  'postgres.js': (max: number) => {
    const sql = postgresJs(t.database.url, { max, onnotice: () => {} })
    open.push({ stop: () => sql.end({ timeout: 1 }) })
    return postgres({ pool: sql }).outbox
  },
}

function relayOf(options: Partial<RelayOptions> & Pick<RelayOptions, 'from'>): Relay {
  const relay = new Relay({ to: t.sink, lease: 2000, ...options })
  open.push(relay)
  return relay
}

const needs = (count: number) => ({
  code: 'POOL_TOO_SMALL',
  message: expect.stringMatching(new RegExp(`and ${count} are needed: .*to read, to settle`)),
})

describe.each(['pg', 'postgres.js'] as const)('a pool of %s', (driver) => {
  describe.each(['owner', 'lease'] as const)('for a relay that reads as %s', (reader) => {
    test('of 1, 2 or 3 is refused at start, with the number that is needed', async () => {
      for (const max of [1, 2, 3]) {
        await expect(relayOf({ from: pools[driver](max), reader }).start()).rejects.toMatchObject(needs(4))
        await expect(relayOf({ from: pools[driver](max), reader }).runOnce()).rejects.toMatchObject(needs(4))
      }
    })

    test.each([
      [4, true],
      [3, false],
    ])('of %i is enough (wake: %s): the session is kept, and events flow', async (max, wake) => {
      const telemetry = recordTelemetry(['flow.lost', 'flow.open_failed', 'task.failed', 'task.ran', 'warning'])
      const relay = relayOf({ from: pools[driver](max), reader, wake, poll: '50ms' })
      await relay.start()
      const shared = () => telemetry.of('task.ran').filter(({ task }) => task.endsWith(': shares')).length
      // Until its lease would have run out.
      for (let n = 1; n <= 3; n++) {
        await t.enqueue(Placed({ n }))
        await t.sink.arrived(n)
        await until(
          () => shared() > n,
          60_000,
          () => `the relay said ${shared()} times that it lives`,
        )
      }
      await relay.stop()
      telemetry.stop()
      const failed = ['flow.lost', 'flow.open_failed', 'task.failed', 'warning'] as const
      expect(failed.flatMap((name) => telemetry.of(name))).toEqual([])
    })
  })

  test('shards need connections of their own', async () => {
    await expect(relayOf({ from: pools[driver](12), shards: 4 }).start()).rejects.toMatchObject(needs(13))
  })
})

test('what relays of one pool need is added up, also where it was given twice, and is free again after a stop', async () => {
  const pool = pgPool(6)
  const other = postgres({ pool, outbox: { table: 'other_outbox' } })
  await other.migrate()
  const first = relayOf({ from: postgres({ pool }).outbox })
  await first.start()
  await expect(relayOf({ from: other.outbox }).start()).rejects.toMatchObject({
    code: 'POOL_TOO_SMALL',
    message: expect.stringMatching(
      /the pg Pool has 6 connections, and 7 are needed: the relay of other_outbox .*the relay of outbox/,
    ),
  })
  // Owners of one table take turns.
  await relayOf({ from: postgres({ pool }).outbox }).start()
  await first.stop()
  await open.pop()!.stop()
  await relayOf({ from: other.outbox }).start()
})

test('a RoutingRelay counts all of its branches', async () => {
  const db = postgres({ pool: pgPool(9), outbox: { branches: ['a', 'b'] } })
  await db.migrate()
  const to = { a: async () => {}, b: async () => {} }
  const relay = new RoutingRelay({ from: db.outbox, to, routes: { '#': ['a', 'b'] } })
  open.push(relay)
  await expect(relay.start()).rejects.toMatchObject(needs(10))
})

test('a pool that does not tell its size is tried at start', async () => {
  const pool = pgPool(3)
  const silent = {
    connect: () => pool.connect(),
    query: (text: string, values?: unknown[]) => pool.query(text, values),
    on: () => {},
    listenerCount: () => 1,
    totalCount: 0,
    idleCount: 0,
  }
  await expect(relayOf({ from: postgres({ pool: silent as never }).outbox }).start()).rejects.toMatchObject({
    code: 'POOL_TOO_SMALL',
    message: expect.stringContaining('gave 3 connections within 5 s, and 4 are needed'),
  })
  expect(pool.idleCount).toBe(pool.totalCount)
})

test.each(['owner', 'lease'] as const)(
  'a relay that reads as %s keeps its session also when others have used it up',
  async (reader) => {
    const pool = pgPool(4)
    const telemetry = recordTelemetry(['flow.lost', 'task.failed', 'task.ran'])
    const relay = relayOf({ from: postgres({ pool }).outbox, reader, lease: 2000, poll: '50ms', maxPoll: '50ms' })
    await relay.start()
    await t.enqueue(Placed({ n: 1 }))
    await t.sink.arrived(1)
    await until(
      () => pool.totalCount - pool.idleCount === 3,
      60_000,
      () => 'the relay has its connections',
    )
    const last = await pool.connect()
    const ran = () => telemetry.of('task.ran').length
    const before = ran()
    await until(
      () => ran() > before + 8,
      60_000,
      () => `${ran() - before} renewals and heartbeats`,
    )
    await t.enqueue(Placed({ n: 2 }))
    await t.sink.arrived(2)
    last.release()
    await relay.stop()
    telemetry.stop()
    expect([...telemetry.of('flow.lost'), ...telemetry.of('task.failed')]).toEqual([])
  },
)

test.each([
  [3, 'flow.open_failed'],
  [4, 'task.failed'],
] as const)('with %i of 4 connections used by others the pool is named (%s)', async (count, name) => {
  const pool = pgPool(4)
  const telemetry = recordTelemetry([name])
  const relay = relayOf({ from: postgres({ pool }).outbox, grace: '1s' })
  const used = [await pool.connect(), await pool.connect(), await pool.connect()]
  await pool.query('SELECT 1')
  await relay.start()
  if (count === 4) used.push(await pool.connect())
  const { error } = await telemetry.next(name, undefined, 60_000)
  expect((error as Error).message).toMatch(
    /the pg Pool of 4 gave the relay no connection within 1000 ms: others use all/,
  )
  for (const client of used) client.release()
  await relay.stop()
  telemetry.stop()
})

test('a pool that others have used up does not keep a relay from starting, which says so', async () => {
  const pool = pgPool(4)
  const used = await Promise.all([1, 2, 3, 4].map(() => pool.connect()))
  const telemetry = recordTelemetry(['warning'])
  // Ten seconds pass at once.
  const clock: Clock = {
    ...systemClock,
    sleep: (ms, signal) => systemClock.sleep(ms === 10_000 ? 10 : ms, signal),
  }
  const relay = relayOf({ from: postgres({ pool }).outbox, grace: '1s', clock })
  await relay.start()
  expect(telemetry.of('warning')).toMatchObject([
    { message: expect.stringContaining('others may use all connections') },
  ])
  for (const client of used) client.release()
  await t.enqueue(Placed({ n: 1 }))
  await t.sink.arrived(1)
  await relay.stop()
  telemetry.stop()
})

test('a relay and a consumer share a pool of 4', async () => {
  const db = postgres({ pool: pgPool(4) })
  await t.pool.query('CREATE TABLE effects (n int)')
  const broker = new InProcessBroker()
  const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
    await tx.query('INSERT INTO effects VALUES ($1)', [data.n])
  })
  const consumer = router.consume(broker.source('billing'))
  await consumer.start()
  const relay = relayOf({ from: db.outbox, to: broker.publisher() })
  await relay.start()
  await t.enqueue(Array.from({ length: 20 }, (_, n) => Placed({ n })))
  await until(
    async () => (await t.pool.query('SELECT count(*)::int AS n FROM effects')).rows[0].n === 20,
    60_000,
    () => 'all are handled',
  )
  await relay.stop()
  await consumer.stop()
})

test.each(['owner', 'lease'])('runOnce as %s keeps no process alive, nor the pool from ending', async (reader) => {
  await t.enqueue([Placed({ n: 1 }), Placed({ n: 2 })])
  const script = bundled(new URL('./once-child.ts', import.meta.url))
  const child = runScript({ script, args: [t.database.url, reader] })
  expect(await child.finished).toMatchObject({ code: 0, stdout: expect.stringContaining('{"done":2}') })
})

test('a relay that was run once and never stopped needs no connection any more', async () => {
  const from = postgres({ pool: pgPool(4) }).outbox
  for (let n = 0; n < 3; n++) {
    await t.enqueue(Placed({ n }))
    // Each has a share of its own: what they keep would be added up.
    expect(await relayOf({ from, reader: 'lease' }).runOnce()).toMatchObject({ done: 1 })
  }
})
