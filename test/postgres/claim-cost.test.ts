import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { outboxSource } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { scale } from '../support/scale.ts'
import { outboxOn, type TestOutbox } from './support.ts'

/**
 * What is ready is found at the same cost, whatever lies before it: rows that wait for their time, are dead, wait behind
 * a dead one, or were published. The cost is the number of blocks of table and indexes that the server has touched.
 */
const EACH = scale({ test: 20_000, full: 200_000, torture: 1_000_000 })

const row = (
  state: string,
  key = 'NULL',
  at = 'NULL',
) => `INSERT INTO outbox (event_id, topic, source, event_type, payload,
  state, key, attempts, available_at, published_at) SELECT gen_random_uuid(), 'orders', '/t', 'x', '{"some": "payload"}',
  '${state}', ${key}, 0, (${at})::timestamptz, ${state === 'published' ? 'now()' : 'NULL'} FROM generate_series(1, ${EACH}) AS n`

const HEADS: [name: string, sql: string][] = [
  ['published events', row('published')],
  ['events scheduled for later', row('scheduled', 'NULL', `now() + n * interval '1 hour'`)],
  ['dead events', row('dead')],
  ['dead events of as many keys', row('dead', `'key ' || n`)],
  ['events held behind the dead ones', row('held', `'key ' || n`)],
]

let t: TestOutbox
/** Of the test: one connection, so that what it does itself is told before it asks. */
let client: pg.Client
beforeAll(async () => {
  t = await outboxOn()
  client = new pg.Client({ connectionString: t.database.url })
  await client.connect()
  await client.query('ALTER TABLE outbox SET (autovacuum_enabled = false)')
})
afterAll(async () => {
  await client.end()
  await t.end()
})

/** Blocks that a session touches which takes a hundred and gives them back. */
async function cost(reader: 'owner' | 'lease'): Promise<number> {
  const touched = async () => {
    await client.query('SELECT pg_stat_force_next_flush()')
    const { rows } = await client.query(`SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit AS n
      FROM pg_statio_user_tables WHERE relname = 'outbox'`)
    return Number(rows[0].n)
  }
  const before = await touched()
  const pool = new pg.Pool({ connectionString: t.database.url })
  const source = outboxSource(postgres({ pool }).outbox, { reader })
  const session = (await source.open(new AbortController().signal))!
  const taken = await session.take({ count: 100, bytes: 1e9 }, session.lost)
  expect(taken).toHaveLength(100)
  await session.settle(taken.map((delivery) => [delivery, { kind: 'release' }]))
  await session.close()
  // A server process tells what it has counted when it ends.
  await pool.end()
  await expect.poll(touched, { timeout: 15_000 }).toBeGreaterThan(before)
  return (await touched()) - before
}

test('while nothing blocks a key, no event is looked up by its key', async () => {
  await client.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, key)
    SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', 'key ' || n FROM generate_series(1, 1000) AS n`)
  const own = (await client.query('SELECT array_agg(pid) AS pids FROM pg_stat_activity')).rows[0].pids
  const pool = new pg.Pool({ connectionString: t.database.url })
  const session = (await outboxSource(postgres({ pool }).outbox, { reader: 'owner' }).open(
    new AbortController().signal,
  ))!
  expect(await session.take({ count: 1000, bytes: 1e9 }, session.lost)).toHaveLength(1000)
  await session.close()
  await pool.end()
  // A server process tells what it has counted when it ends.
  const others = 'SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL($1)'
  await expect.poll(async () => (await client.query(others, [own])).rows[0].n, { timeout: 15_000 }).toBe(0)
  const looks = await client.query(
    `SELECT idx_scan::int AS n FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_blocker'`,
  )
  expect(looks.rows[0].n).toBeGreaterThan(0)
  expect(looks.rows[0].n).toBeLessThan(20)
  await client.query('DELETE FROM outbox')
})

/** A walk over what lies before would touch each of its rows. Claiming writes: under leases the rows themselves cost most. */
const MOST = { owner: 2500, lease: 5000 }
/** Competing relays take what an owner left held, too, and look for it among all that blocks its key. */
const OWNER_ONLY = ['dead events of as many keys', 'events held behind the dead ones']

describe('a hundred ready events', { timeout: 600_000 }, () => {
  test('cost the same behind any number of others', async () => {
    const costs: Record<string, Record<string, number>> = { owner: {}, lease: {} }
    for (const [name, head] of [['nothing', ''] as const, ...HEADS]) {
      if (head !== '') await client.query(head)
      await client.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload)
        SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}' FROM generate_series(1, 100)`)
      await client.query('VACUUM ANALYZE outbox')
      for (const reader of ['owner', 'lease'] as const) {
        if (reader === 'lease' && OWNER_ONLY.includes(name)) continue
        costs[reader]![name] = await cost(reader)
      }
      await client.query(`DELETE FROM outbox WHERE state = 'ready'`)
    }
    for (const reader of ['owner', 'lease'] as const) {
      const worst = Math.max(...Object.values(costs[reader]!))
      expect(worst, `${reader}: ${JSON.stringify(costs[reader])}`).toBeLessThan(MOST[reader])
    }
  })
})
