import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { databaseOf } from '../../src/drivers/sql/database.ts'
import type { State } from '../../src/outbox/admin.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { scale } from '../support/scale.ts'
import { describeOn } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { type TestOutbox, testOutbox } from './admin-support.ts'

const ROWS = scale({ test: 200_000, full: 1_000_000, torture: 10_000_000 })

/** Old rows published, some dead among them; of the new ones many ready, others scheduled, and some held. */
const LOAD = `INSERT INTO outbox (event_id, topic, source, event_type, payload, key, state, available_at, published_at)
  SELECT gen_random_uuid(), 'orders', '/t', 'x', '{"some": "payload"}', CASE WHEN state = 'held' THEN 'k' || n / 64 END, state,
    CASE WHEN state = 'scheduled' THEN now() + n * interval '1 second' END, CASE WHEN state = 'published' THEN now() END
  FROM (SELECT n, CASE WHEN n < ${ROWS * 0.6} THEN CASE WHEN hash % 8 = 0 THEN 'dead' ELSE 'published' END
    WHEN hash % 4 = 0 THEN 'scheduled' WHEN hash % 8 = 1 THEN 'held' ELSE 'ready' END AS state
    FROM (SELECT n, abs(hashint8(n)) AS hash FROM generate_series(1, ${ROWS}::bigint) AS n) AS numbers) AS events`

/** Blocks of the table and of its indexes that one call touches, in memory or not, as the server counts them. */
async function blocks(t: TestOutbox): Promise<number> {
  // One connection, which tells what it has counted before it is asked.
  const pool = new pg.Pool({ connectionString: t.url, max: 1 })
  const admin = new PostgresOutboxAdmin(databaseOf(pool as never), t.names)
  const touched = async () => {
    await pool.query('SELECT pg_stat_force_next_flush()')
    const { rows } = await pool.query(`SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit AS n
      FROM pg_statio_user_tables WHERE relname = 'outbox'`)
    return Number(rows[0].n)
  }
  try {
    await admin.stats()
    const before = await touched()
    await admin.stats()
    const read = (await touched()) - before
    expect(read).toBeGreaterThan(100)
    return read
  } finally {
    await pool.end()
  }
}

/** Until all may see all of it: a transaction that is open elsewhere on this server can keep the vacuum from saying so. */
async function vacuumed(t: TestOutbox): Promise<void> {
  const seenByAll = async () => {
    await t.query('VACUUM ANALYZE outbox')
    const [row] = await t.query(`SELECT relallvisible, relpages FROM pg_class WHERE oid = 'outbox'::regclass`)
    return row!['relallvisible'] === row!['relpages']
  }
  await eventually('all is seen by all', seenByAll, { limit: 60_000 })
}

describeOn(['postgres', 'postgres15'], `stats of ${ROWS} rows on %s`, (kind) => {
  let t: TestOutbox
  let admin: PostgresOutboxAdmin
  /** What a call reads of a table of which the planner knows nothing yet. */
  let unknown: number
  beforeAll(async () => {
    t = await testOutbox(kind)
    admin = new PostgresOutboxAdmin(t.db, t.names)
    await t.query('ALTER TABLE outbox SET (autovacuum_enabled = false)')
    // What is told after the vacuum has counted would count twice.
    await t.script(`${LOAD}; SELECT pg_stat_force_next_flush()`)
    unknown = await blocks(t)
    await vacuumed(t)
  }, 600_000)
  afterAll(() => t.end())

  async function near(states: readonly State[]): Promise<void> {
    const truth = await t.states()
    const stats = await admin.stats()
    for (const state of states) {
      const { count, estimated } = stats.states[state]
      expect(estimated, state).toBe(true)
      expect(Math.abs(count / truth[state]! - 1), `${state}: ${count} for ${truth[state]}`).toBeLessThan(0.05)
    }
    const [held] = await t.query(`SELECT count(DISTINCT key)::int AS n FROM outbox WHERE state = 'held'`)
    expect(Math.abs(stats.blockedKeys.count / held!['n'] - 1)).toBeLessThan(0.1)
  }

  test('are within 5 %, and labelled', async () => {
    await near(['ready', 'dead', 'published', 'scheduled', 'held'])
  })

  test('read no more than they may, however large the table is', async () => {
    // 1,073 of 200,000 rows, 1,311 of a million: nothing but indexes is read.
    expect(await blocks(t)).toBeLessThan(scale({ test: 1180, full: 1440, torture: 2000 }))
    // The same of a table the planner knows nothing of; to read it as a whole would be 4,500 blocks more for each part.
    expect(unknown).toBeLessThan(8700)
  })

  test('follow what happens between two looks of the vacuum, and read little more', async () => {
    const published = `UPDATE outbox SET state = 'published', published_at = clock_timestamp()`
    await t.query(`${published} WHERE state = 'ready' AND sequence < ${ROWS * 0.75}`)
    await t.query(`DELETE FROM outbox WHERE state = 'published' AND sequence < ${ROWS * 0.2}`)
    // A backend tells the others of what it has counted within ten seconds of idling.
    await expect.poll(() => near(['ready', 'dead', 'published']).then(() => true), { timeout: 20_000 }).toBe(true)
    // What no vacuum has seen has to be looked at in the table, and what was removed is still in the indexes: about 4,530.
    expect(await blocks(t)).toBeLessThan(scale({ test: 5400, full: 10_000, torture: 60_000 }))
  })
})
