import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { SagaAdmin, SagaRunner, saga } from '../../src/saga/index.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'

const three = () =>
  saga<{ n: number }>('three', { version: 1 })
    .step('a', () => 1)
    .step('b', () => 2)
    .step('c', () => 3)

describeWith(['postgres'], 'rows of sagas in PostgreSQL', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  let db: Postgres<pg.PoolClient>

  beforeAll(async () => {
    database = await freshDatabase('postgres')
    pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    db = postgres({ pool, sagas: true })
    await db.migrate()
  })
  afterAll(async () => {
    await pool.end()
    await database.drop()
  })

  test('the tables have the columns, words and keys of other people’s saga tables', async () => {
    const columns = async (table: string) => {
      const text = 'SELECT column_name FROM information_schema.columns WHERE table_name = $1'
      return (await pool.query(text, [table])).rows.map((row) => row.column_name)
    }
    const execution = [
      'id',
      'saga_type',
      'aggregate_id',
      'status',
      'current_step',
      'version',
      'created_at',
      'updated_at',
    ]
    expect(await columns('saga_executions')).toEqual(expect.arrayContaining(execution))
    const step = ['id', 'saga_id', 'step_name', 'status', 'executed_at', 'compensated_at', 'error_message']
    expect(await columns('saga_steps')).toEqual(expect.arrayContaining(step))
    const id = uuidv7()
    await pool.query(
      `INSERT INTO saga_steps (saga_id, step_name, ordinal, id, status)
       SELECT $1, word, 0, gen_random_uuid(), word FROM unnest($2::text[]) AS word`,
      [id, ['pending', 'completed', 'compensated', 'compensation_failed']],
    )
    const twice = `INSERT INTO saga_steps (saga_id, step_name, ordinal, id) VALUES ($1, 'pending', 1, gen_random_uuid())`
    await expect(pool.query(twice, [id])).rejects.toMatchObject({ code: '23505' })
    await expect(pool.query(twice.replace("'pending'", 'NULL'), [id])).rejects.toMatchObject({ code: '23502' })
    await pool.query('DELETE FROM saga_steps WHERE saga_id = $1', [id])
  })

  test('updated_at and the version follow each write, without a trigger', async () => {
    const seen: unknown[] = []
    // Whether the last write has left its time; that time is made old for the next.
    const look = async ({ id }: { id: string }) => {
      const { rows } = await pool.query(
        `SELECT version, current_step, status, updated_at > clock_timestamp() - interval '1 minute' AS touched
         FROM saga_executions WHERE id = $1`,
        [id],
      )
      seen.push(Object.values(rows[0]))
      await pool.query(`UPDATE saga_executions SET updated_at = updated_at - interval '1 hour' WHERE id = $1`, [id])
    }
    const one = saga<{ n: number }>('touched', { version: 1 }).step('a', look).step('b', look)
    const runner = new SagaRunner({ store: db, sagas: [one] })
    const id = await db.withTransaction((tx) => runner.client(one).start(tx, { n: 1 }))
    await look({ id })
    await runner.runOnce()
    await look({ id })
    // The insert, the claim, and two writes.
    expect(seen).toEqual([
      [1, 'a', 'running', true],
      [2, 'a', 'running', true],
      [3, 'b', 'running', true],
      [4, 'b', 'completed', true],
    ])
    await runner.stop()
  })

  test('what is alive stands in small indexes of its own; what has ended is in none of them', async () => {
    const own = { sagas: { table: 'few' }, outbox: { table: 'o4' }, inbox: { table: 'i4' } }
    const store = postgres({ pool, ...own })
    await store.migrate()
    const quick = three()
    const sleeps = saga('sleeps', { version: 1 }).sleep('pause', '1h')
    const runner = await new SagaRunner({ store, sagas: [quick, sleeps] }).start()
    for (let n = 0; n < 20; n++) await runner.client(quick).run({ n })
    await store.withTransaction((tx) => runner.client(sleeps).start(tx, {}))
    await runner.stop()
    await pool.query('VACUUM few')
    const { rows } = await pool.query(
      `SELECT relname, reltuples::int AS n FROM pg_class
       WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'few'::regclass) AND relname ~ '_(due|claimed|pkey)$'
       ORDER BY 1`,
    )
    expect(rows.map(({ relname, n }) => [relname.replace('few_', ''), n])).toEqual([
      ['claimed', 0],
      ['due', 1],
      ['pkey', 21],
    ])
  })

  test('a saga is removed with its steps and its audit', async () => {
    const one = three()
    const runner = new SagaRunner({ store: db, sagas: [one] })
    const start = () => db.withTransaction((tx) => runner.client(one).start(tx, { n: 1 }))
    const [id, other] = [await start(), await start()]
    const admin = new SagaAdmin({ store: db, sagas: [one] })
    await expect(admin.show('A-1')).rejects.toThrow('give the UUID that start() returned and list() shows')
    for (const each of [id, other]) await admin.retry(each, { by: 'ann', note: 'now' })
    await runner.runOnce()
    await runner.stop()
    const left = async () => {
      const { rows } = await pool.query(
        `SELECT (SELECT count(*) FROM saga_executions WHERE id = ANY ($1))::int AS sagas,
          (SELECT count(*) FROM saga_steps WHERE saga_id = ANY ($1))::int AS steps,
          (SELECT count(*) FROM saga_executions_audit WHERE saga_id = ANY ($1))::int AS audit`,
        [[id, other]],
      )
      return rows[0]
    }
    expect(await left()).toEqual({ sagas: 2, steps: 6, audit: 2 })
    await pool.query(`UPDATE saga_executions SET ended_at = now() - interval '31 days' WHERE id = $1`, [id])
    expect(await db.sagas.clean()).toBe(1)
    expect(await left()).toEqual({ sagas: 1, steps: 3, audit: 1 })
  })

  test('migrate() makes the tables only where sagas are asked for, under names of one’s own; down() keeps what is alive', async () => {
    expect(() => postgres({ pool }).sagas).toThrow(/sagas: true/)
    const named = postgres({
      pool,
      sagas: { table: 'flows', steps: 'flow_steps' },
      outbox: { table: 'o2' },
      inbox: { table: 'i2' },
    })
    expect(await named.migrate()).toContainEqual({ table: 'flows', from: 0, to: 1 })
    const one = three()
    const runner = await new SagaRunner({ store: named, sagas: [one] }).start()
    expect(await runner.client(one).run({ n: 1 })).toMatchObject({ c: 3 })
    await runner.stop()
    await named.withTransaction((tx) => runner.client(one).start(tx, { n: 1 }))
    await expect(named.migrations.down()).rejects.toThrow(/1 sagas that have not ended/)
    await named.migrations.down({ discard: 'pending' })
  })
})
