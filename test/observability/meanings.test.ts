import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Clock, event, type Message, Reject, systemClock, Unavailable } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { logTo } from '../../src/observability/index.ts'
import { Cleaner, RoutingRelay } from '../../src/outbox/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis, redisOutbox } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/index.ts'
import { collector, faultProxy } from '../../src/testing/index.ts'
import { outboxOn, Placed, untilEmpty } from '../postgres/support.ts'
import { READER } from '../redis/outbox-support.ts'
import { freshTag } from '../redis/support.ts'
import { freshDatabase, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { listSource } from './support.ts'
import { scraped, WORLDS } from './worlds.ts'

/** What a metric means, where only a whole relay can show it. */
const ends: (() => unknown)[] = []
let metrics: ReturnType<typeof scraped>
beforeEach(() => {
  metrics = scraped()
  ends.push(() => metrics.stop())
})
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

describe.each(Object.keys(WORLDS))('outbox_dispatch_latency_seconds on %s', (kind) => {
  test('each event of a batch has what its batch took', async () => {
    const world = await WORLDS[kind]!()
    ends.push(() => world.end())
    let later = 0
    const clock: Clock = { ...systemClock, monotonic: () => systemClock.monotonic() + later }
    const calls: number[] = []
    const to = {
      name: 'broker',
      features: {},
      async publish(messages: readonly Message[]) {
        calls.push(messages.length)
        later += 90_000
        return messages.map((message) =>
          message.type === 'order.lost' ? { kind: 'failed', error: new Error('no') } : { kind: 'ok' },
        )
      },
    }
    const retry = { backoff: { min: '1h' } } as const
    const relay = new Relay({ from: world.outbox, to: to as never, lease: '1h', timeout: false, clock, retry })
    ends.push(() => relay.stop())
    // All arrive; then one of them does not.
    await world.enqueue([Placed({ n: 1 }), Placed({ n: 2 })], { topic: 'orders' })
    await relay.runOnce()
    await world.enqueue([Placed({ n: 3 }), Placed({ n: 4 }), event('order.lost')({})], { topic: 'orders' })
    await relay.runOnce()
    expect(calls).toEqual([2, 3])
    const of = (part: string) => metrics.of(`outbox_dispatch_latency_seconds_${part}`)
    const [success, failure] = ['topic="orders",result="success"', 'topic="orders",result="failure"']
    expect(await of('count')).toEqual({ [success]: 4, [failure]: 1 })
    const sums = await of('sum')
    // Ninety seconds each: not one of a batch, and not its share of them.
    expect(Math.floor(sums[success]! / 90)).toBe(4)
    expect(Math.floor(sums[failure]! / 90)).toBe(1)
  })
})

test('outbox_delivery_seconds is from the creation on, by the clock of the database', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  await t.enqueue(Placed({ n: 1 }))
  await t.pool.query(`UPDATE outbox SET created_at = created_at - interval '5 minutes'`)
  // For this process it is another day.
  const relay = t.relay({ clock: { ...systemClock, now: () => systemClock.now() + 86_400_000 } })
  await relay.runOnce()
  const { '': sum } = await metrics.of('outbox_delivery_seconds_sum')
  expect(Math.floor(sum! / 60)).toBe(5)
  expect(await metrics.of('outbox_delivery_seconds_count')).toEqual({ '': 1 })
})

describe('outbox_dead_total', () => {
  const dead = () => metrics.of('outbox_dead_total')

  test('PostgreSQL: at the limit, rejected, after a crash, after leases that ran out; with the topic, once each', async () => {
    const t = await outboxOn()
    ends.push(() => t.end())
    const to = async ({ type }: Message) => {
      throw type === 'order.bad' ? new Reject('never') : new Error('not now')
    }
    await t.enqueue(Placed({ n: 1 }), { topic: 'limit' })
    await t.enqueue(event('order.bad')({}), { topic: 'rejected' })
    const owner = t.relay({ to: to as never, retry: { attempts: 2 } })
    await untilEmpty(owner)
    await owner.stop()
    expect(await dead()).toEqual({ 'topic="limit"': 1, 'topic="rejected"': 1 })

    // Claimed by a relay that was killed, for the last time it may be.
    await t.enqueue(Placed({ n: 2 }), { topic: 'leases' })
    await t.pool.query(`UPDATE outbox SET state = 'leased', lease = gen_random_uuid(), attempts = 24,
      available_at = clock_timestamp() - interval '1 second' WHERE state = 'ready'`)
    const competing = t.relay({ reader: 'lease' })
    await untilEmpty(competing)
    await competing.stop()
    expect(await dead()).toEqual({ 'topic="limit"': 1, 'topic="rejected"': 1, 'topic="leases"': 1 })

    // Alone in flight when the owner died.
    await t.enqueue(Placed({ n: 3 }), { topic: 'crash' })
    await t.pool.query(`INSERT INTO outbox_terms (shard, epoch, holder, expires_at, note)
      SELECT 0, 7, 'host:1:dead', clock_timestamp(), event_id FROM outbox WHERE topic = 'crash'
      ON CONFLICT (shard) DO UPDATE SET epoch = outbox_terms.epoch + 1, holder = excluded.holder,
        expires_at = excluded.expires_at, note = excluded.note`)
    const relay = t.relay({ retry: { attempts: 1 } })
    await eventually('it is dead', async () => {
      await relay.runOnce()
      return (await t.states())['dead'] === 4
    })
    expect((await dead())['topic="crash"']).toBe(1)
    expect(Object.values(await dead())).toEqual([1, 1, 1, 1])
    expect(t.sink.messages).toEqual([])
  })

  test('Redis: after leases that ran out, with the topic', async () => {
    const world = await WORLDS['redis']!()
    ends.push(() => world.end())
    await world.enqueue(Placed({ n: 1 }), { topic: 'leases' })
    const never = new AbortController().signal
    const [source] = await world.outbox.reader({ ...READER, lease: 150, attempts: 1 }).assignment()
    const gone = await source!.open(never)
    ends.push(() => gone!.close())
    expect(await gone!.take({ count: 1, bytes: 1e6 }, never)).toHaveLength(1)
    const relay = new Relay({ from: world.outbox, to: async () => {}, retry: { attempts: 1 } })
    ends.push(() => relay.stop())
    await eventually('it is given up', async () => {
      await relay.runOnce()
      return Object.keys(await dead()).length > 0
    })
    expect(await dead()).toEqual({ 'topic="leases"': 1 })
    expect(await metrics.of('outbox_dispatch_total')).toEqual({})
  })
})

/** Stores with an inbox. */
const INBOXES = {
  memory: async () => memory(),
  async postgres() {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url })
    ends.push(
      () => database.drop(),
      () => pool.end(),
    )
    const db = postgres({ pool })
    await db.migrate()
    return db
  },
  async redis() {
    const connection = new IoRedis(service('redis').url)
    const db = redis({ client: connection, tag: freshTag() })
    ends.push(
      () => connection.disconnect(),
      () => db.stop(),
    )
    return db
  },
}

test.each(Object.keys(INBOXES) as (keyof typeof INBOXES)[])(
  'an inbox on %s: what was handled before is skipped and counted, and so is what a cleaner removes',
  async (kind) => {
    const db = await INBOXES[kind]()
    const handled: string[] = []
    const router = new Router('billing').use(transactional(db as never)).on(Placed, ({ id }) => void handled.push(id))
    const messages = ['a', 'b', 'a', 'a'].map((id) => Placed({ n: 1 }, { id }))
    const consumer = router.consume(listSource(messages), { concurrency: 1 })
    for (let round = 0; round < messages.length; round++) await consumer.runOnce()
    await consumer.stop()
    expect(handled).toEqual(['a', 'b'])
    const labels = 'subscriber="billing",type="order.placed"'
    expect(await metrics.of('waybill_inbox_duplicates_total')).toEqual({ [labels]: 2 })
    // Redis forgets by itself.
    if (kind === 'redis') return
    await new Cleaner({ of: db.inbox as never, retention: 0 }).runOnce()
    const rows = `store="${db.inbox.name}",what="rows"`
    expect((await metrics.of('waybill_cleaned_total'))[rows]).toBe(2)
  },
)

test('a branch is a table of its own, in counters and in gauges; the mover is counted nowhere', async () => {
  const database = await freshDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 20 })
  ends.push(
    () => database.drop(),
    () => pool.end(),
  )
  const db = postgres({ pool, outbox: { branches: ['warehouse', 'audit'] } })
  await db.migrate()
  const audit = async () => {
    throw new Unavailable('audit is away')
  }
  const warehouse = collector()
  const relay = new RoutingRelay({ from: db.outbox, to: { warehouse, audit }, routes: { '#': ['warehouse', 'audit'] } })
  ends.push(() => relay.stop())
  await db.withTransaction((tx) => db.outbox.enqueue(tx, [Placed({ n: 1 }), Placed({ n: 2 })], { topic: 'orders' }))
  await relay.start()
  await warehouse.arrived(2)
  const lines = async (name: string) => {
    const text = await metrics.registry.metrics()
    return text.split('\n').filter((line) => line.startsWith(`${name}{`))
  }
  const value = async (name: string, table: string) =>
    (await lines(name))
      .find((line) => line.startsWith(`${name}{table="${table}"}`))
      ?.split(' ')
      .at(-1)
  await eventually('both branches tell', async () => {
    const [out, kept] = [
      await value('outbox_pending_count', 'outbox_to_warehouse'),
      await value('outbox_paused', 'outbox_to_audit'),
    ]
    return out === '0' && kept === '1'
  })
  expect(await value('outbox_pending_count', 'outbox_to_audit')).toBe('2')
  expect(await value('outbox_paused', 'outbox_to_warehouse')).toBe('0')
  await eventually('what arrived is counted', async () => (await lines('outbox_dispatch_total')).length > 0)
  expect(await lines('outbox_dispatch_total')).toEqual([
    'outbox_dispatch_total{table="outbox_to_warehouse",topic="orders",result="success"} 2',
  ])
  for (const name of ['waybill_messages_handled_total', 'waybill_message_seconds_count']) {
    expect(await lines(name), name).toEqual([])
  }
  // What comes into a branch is accepted there: its rates can be compared as those of any table.
  const enqueued = ['outbox', 'outbox_to_audit', 'outbox_to_warehouse']
  expect((await lines('outbox_enqueue_total')).sort()).toEqual(
    enqueued.map((table) => `outbox_enqueue_total{table="${table}",topic="orders"} 2`),
  )
})

describe('a scrape while the store is away', () => {
  /** Within a second, without its numbers, with what the process knows, and `waybill_gauges_up` 0. */
  async function withoutNumbers(): Promise<void> {
    await eventually('it is missed', async () => (await metrics.of('waybill_gauges_up'))[''] === 0)
    const took: number[] = []
    for (let scrape = 0; scrape < 3; scrape++) {
      const began = performance.now()
      const text = await metrics.registry.metrics()
      took.push(performance.now() - began)
      expect(text).toMatch(/^waybill_gauges_up\{table="[^"]+"\} 0$/m)
      expect(text).toMatch(/^outbox_paused\{table="[^"]+"\} [01]$/m)
      expect(text).not.toMatch(/^outbox_(?:pending|dead|scheduled)_count\{/m)
    }
    // The best of them: the machine may be busy with other tests.
    expect(Math.min(...took)).toBeLessThan(1000)
  }

  test('PostgreSQL refuses connections', async () => {
    const database = await freshDatabase()
    const url = new URL(database.url)
    const proxy = await faultProxy({ host: url.hostname, port: Number(url.port) })
    const pool = new pg.Pool({ connectionString: proxy.url(database.url), max: 10 })
    pool.on('error', () => {})
    const db = postgres({ pool })
    await db.migrate()
    const relay = new Relay({ from: db.outbox, to: async () => {}, lease: '3s' })
    ends.push(
      () => database.drop(),
      () => proxy.close(),
      () => pool.end(),
      () => relay.stop(),
    )
    await relay.start()
    await eventually('it tells', async () => (await metrics.of('outbox_pending_count'))[''] === 0)
    await proxy.refuse()
    await withoutNumbers()
    await proxy.restore()
    await eventually('it tells again', async () => (await metrics.of('outbox_pending_count'))[''] === 0, {
      limit: 60_000,
    })
  })

  test('one of two servers of an outbox on Redis refuses connections: half of the numbers would be wrong ones', async () => {
    const url = new URL(service('redis').url)
    const proxy = await faultProxy({ host: url.hostname, port: Number(url.port) })
    const connections = [service('redis').url, proxy.url(service('redis').url)].map(
      (address) => new IoRedis(address, { retryStrategy: () => 50 }),
    )
    for (const connection of connections) connection.on('error', () => {})
    const on = connections.map((client) => redis({ client, tag: freshTag() }))
    const relay = new Relay({ from: redisOutbox({ on }) as never, to: async () => {}, lease: '3s' })
    ends.push(
      () => proxy.close(),
      () => connections.forEach((connection) => void connection.disconnect()),
      () => Promise.all(on.map((db) => db.stop())),
      async () => {
        await proxy.restore()
        await relay.stop()
      },
    )
    await relay.start()
    await eventually('it tells', async () => (await metrics.of('outbox_pending_count'))[''] === 0)
    await proxy.refuse()
    await withoutNumbers()
    await proxy.restore()
    await eventually('it tells again', async () => (await metrics.of('outbox_pending_count'))[''] === 0, {
      limit: 60_000,
    })
  })

  test.each(['silent', 'refusing'])('Redis is %s', async (how) => {
    const url = new URL(service('redis').url)
    const proxy = await faultProxy({ host: url.hostname, port: Number(url.port) })
    const connection = new IoRedis(proxy.url(service('redis').url), { retryStrategy: () => 50 })
    connection.on('error', () => {})
    const db = redis({ client: connection, tag: freshTag(), outbox: { kind: 'stored' } })
    const relay = new Relay({ from: db.outbox as never, to: async () => {}, lease: '3s' })
    ends.push(
      () => proxy.close(),
      () => connection.disconnect(),
      () => db.stop(),
      async () => {
        await proxy.restore()
        await relay.stop()
      },
    )
    await relay.start()
    await eventually('it tells', async () => (await metrics.of('outbox_pending_count'))[''] === 0)
    if (how === 'silent') proxy.blackHole()
    else await proxy.refuse()
    await withoutNumbers()
    await proxy.restore()
    await eventually('it tells again', async () => (await metrics.of('outbox_pending_count'))[''] === 0, {
      limit: 60_000,
    })
  })
})

test('what moves the cursor of a terminal is inert: topics, types, keys and errors, in logs, rows and metrics', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  const lines: string[] = []
  const log = (...all: unknown[]) => void lines.push(all.map(String).join(' '))
  ends.push(logTo({ log, debug: log, info: log, warn: log, error: log }, { level: 'debug' }))
  const evil = 'a\u001b[2J\u009b31m\u202eb'
  const to = async () => {
    throw Object.assign(new Reject(`no ${evil}`, { cause: new Error(`because ${evil}`) }), { name: evil, code: evil })
  }
  // What is refused says so inertly; what others have written, and what is allowed, goes its way.
  await expect(async () => event(evil)).rejects.toSatisfy((error: Error) => lines.push(error.message) > 0)
  for (const options of [{ topic: evil }, { key: evil }, { topic: 'orders' }]) {
    await t.enqueue(Placed({ n: 1 }), options).catch((error: Error) => lines.push(error.message))
  }
  await t.pool.query('UPDATE outbox SET topic = $1, event_type = $1, key = $1, tenant_id = $1', [evil])
  await untilEmpty(t.relay({ to: to as never }))
  await eventually('it is told', () => lines.some((line) => line.includes('message.dead')))
  const { rows } = await t.pool.query('SELECT last_error FROM outbox')
  expect(rows.length).toBeGreaterThan(0)
  const written = [...lines, ...rows.map(({ last_error }) => last_error), await metrics.registry.metrics()].join('\n')
  expect(written).toContain('outbox_dead_total{')
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what nobody may write
  expect(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e]/.exec(written)?.input.slice(0, 2000)).toBeUndefined()
})
