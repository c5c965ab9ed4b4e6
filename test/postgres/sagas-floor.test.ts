import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { Pace, SagaFloor } from '../../src/postgres/saga-floor.ts'
import type { SagaStore } from '../../src/saga/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

/** Sagas that were due, were claimed, slept, and have ended: each leaves an entry in an index. */
const EACH = scale({ test: 6000, full: 30_000, torture: 120_000 })

describeWith(['postgres'], 'sagas beside an old snapshot', () => {
  const definitions = ['order@1#x']
  let database: FreshDatabase
  let pool: pg.Pool
  let old: pg.Client
  let sagas: SagaStore

  beforeAll(async () => {
    database = await freshDatabase('postgres')
    // One connection, which tells the server what it has counted when it is asked.
    pool = new pg.Pool({ connectionString: database.url, max: 1 })
    pool.on('error', () => {})
    const db = postgres({ pool, sagas: true })
    await db.migrate()
    await pool.query('ALTER TABLE saga_executions SET (autovacuum_enabled = false)')
    sagas = db.sagas as SagaStore
    old = new pg.Client({ connectionString: database.url })
    await old.connect()
    await old.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await old.query('SELECT count(*) FROM saga_executions')
    for (const [runner, at] of [
      ['NULL', `now() - interval '1 hour'`],
      ['NULL', `now() + interval '1 minute'`],
      ['gen_random_uuid()', `now() - interval '1 hour'`],
      ['gen_random_uuid()', `now() + interval '1 minute'`],
    ]) {
      await pool.query(`INSERT INTO saga_executions (id, saga_type, definition, input, runner, wake_at)
        SELECT gen_random_uuid(), 'order', 'order@1#x', '{}', ${runner}, ${at} FROM generate_series(1, ${EACH})`)
    }
    await pool.query(`UPDATE saga_executions SET wake_at = NULL, runner = NULL, status = 'completed', ended_at = now()`)
    await pool.query('VACUUM ANALYZE saga_executions')
  })

  afterAll(async () => {
    await old.end()
    await pool.end()
    await database.drop()
  })

  const claim = (takeovers = 1) => sagas.claim({ definitions, count: 10, takeovers, runner: uuidv7(), lease: 60_000 })

  const insert = (ago: string) =>
    pool.query(
      `INSERT INTO saga_executions (id, saga_type, definition, input, wake_at)
       VALUES (gen_random_uuid(), 'order', 'order@1#x', '{}', clock_timestamp() - interval '${ago}')`,
    )

  /** Blocks of the table and its indexes that a look touches. */
  async function blocks(look: () => Promise<unknown>): Promise<number> {
    const touched = async () => {
      await pool.query('SELECT pg_stat_force_next_flush()')
      const { rows } = await pool.query(`SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit AS n
        FROM pg_statio_user_tables WHERE relname = 'saga_executions'`)
      return Number(rows[0].n)
    }
    const before = await touched()
    await look()
    return (await touched()) - before
  }

  test('a claim and a look ahead touch no more blocks than without it, but for the first', async () => {
    const first = { claim: await blocks(() => claim()), next: await blocks(() => sagas.nextDue(definitions)) }
    expect(Math.min(first.claim, first.next)).toBeGreaterThan(EACH / 50)
    const later = { claim: [] as number[], next: [] as number[] }
    for (let i = 0; i < 9; i++) {
      await insert('0')
      let claimed: readonly unknown[] = []
      later.claim.push(
        await blocks(async () => {
          claimed = await claim()
        }),
      )
      expect(claimed).toHaveLength(1)
      later.next.push(await blocks(() => sagas.nextDue(definitions, i % 2 === 0)))
    }
    // Now and then one begins at the beginning, a crowded machine makes that more often: not the half of them.
    const median = (all: number[]) => all.toSorted((a, b) => a - b)[4]
    expect(median(later.claim)).toBeLessThan(40)
    expect(median(later.next)).toBeLessThan(40)
  })

  test('a look that is spared says when to ask again, and finds what is due soon', async () => {
    await sagas.nextDue(definitions)
    expect(await sagas.nextDue(definitions, true)).toBeLessThanOrEqual(60_000)
    await insert('-2 seconds')
    await eventually('it is seen', async () => (await sagas.nextDue(definitions))! < 2000)
    await eventually('it is claimed', async () => (await claim()).length === 1, { limit: 20_000 })
  })

  test('what is below the floor, such as a saga whose transaction took long to commit, is claimed all the same', async () => {
    await claim()
    await insert('30 minutes')
    await eventually('it is claimed', async () => (await claim()).length === 1, { limit: 40_000 })
  })
})

describe('the floor', () => {
  test('looks begin at the beginning while that is cheap; else after a pause that grows with what they passed over', () => {
    const clock = new FakeClock()
    const floor = new SagaFloor(clock)
    const begins = () => floor.boundsFor(floor.claims).due
    floor.reached({ due: 'a', claimed: undefined })
    floor.claims.passed(999)
    expect(begins()).toBeUndefined()
    floor.claims.passed(120_000)
    expect([begins(), floor.boundsFor(floor.nexts).due]).toEqual(['a', undefined])
    clock.suspend(5999)
    expect(begins()).toBe('a')
    clock.suspend(1)
    expect(begins()).toBeUndefined()
    const pace = new Pace(clock)
    pace.passed(1e9)
    clock.suspend(30_000)
    expect(pace.isFree).toBe(true)
  })

  test('those that runners have keep their floor while nobody looks for them', () => {
    const floor = new SagaFloor(new FakeClock())
    floor.claims.passed(5000)
    floor.reached({ due: 'a', claimed: 'b' })
    floor.reached({ due: 'c', claimed: undefined })
    expect(floor.boundsFor(floor.claims)).toEqual({ due: 'c', claimed: 'b' })
  })
})
