import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { postgres } from '../../src/postgres/index.ts'
import { type AnySaga, type SagaClient, SagaRunner, type SagaRunnerOptions, saga } from '../../src/saga/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { describeWith, type FreshDatabase, freshDatabase, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

/** Small pools, odd roles, poolers, transactions left open. */
describeWith(['postgres'], 'sagas where PostgreSQL is not as one would like it', () => {
  let database: FreshDatabase
  const ends: (() => unknown)[] = []
  beforeAll(async () => {
    database = await freshDatabase('postgres')
    const pool = new pg.Pool({ connectionString: database.url, max: 2 })
    await postgres({ pool, sagas: true }).migrate()
    await pool.query('CREATE TABLE confirmed (key text)')
    await pool.end()
  })
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })
  afterAll(() => database.drop())

  function poolOf(options: pg.PoolConfig = {}): pg.Pool {
    const pool = new pg.Pool({ connectionString: database.url, max: 10, ...options })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    return pool
  }

  async function runnerOn(
    pool: pg.Pool,
    one: AnySaga,
    options: Partial<SagaRunnerOptions<pg.PoolClient>> & { tables?: { table: string; steps: string } } = {},
  ) {
    const { tables = true, ...rest } = options
    const db = postgres({ pool, sagas: tables })
    const runner = await new SagaRunner<pg.PoolClient>({ maxPoll: '500ms', ...rest, store: db, sagas: [one] }).start()
    ends.push(() => runner.stop())
    const client = runner.client(one as never) as SagaClient<unknown, unknown, Record<string, unknown>, pg.PoolClient>
    return { db, runner, client }
  }

  const whole = (name: string) =>
    saga(name, { version: 1 })
      .step('a', () => 1)
      .transaction('b', async (c, tx: pg.PoolClient) => {
        await tx.query('INSERT INTO public.confirmed VALUES ($1)', [c.key])
        return 2
      })
      .onEnd((c, tx) => tx.query('INSERT INTO public.confirmed VALUES ($1)', [`${c.id} ${c.status}`]))

  test.each([1, 2, 3])(
    'a pool of %i: sagas are run, started ones too, twenty at once',
    { timeout: 60_000 },
    async (max) => {
      const one = whole(`pool${max}`)
      const recorder = recordTelemetry()
      ends.push(() => recorder.stop())
      const { db, client } = await runnerOn(poolOf({ max }), one)
      const ran = await Promise.all(Array.from({ length: 20 }, () => client.run({})))
      expect(ran).toHaveLength(20)
      const id = await db.withTransaction((tx) => client.start(tx, {}))
      expect(await client.result(id)).toEqual({ a: 1, b: 2 })
      // Too small to be told: that is said.
      const said = recorder.of('warning').filter(({ message }) => message.includes('polls every few seconds'))
      expect(said).toHaveLength(max < 3 ? 1 : 0)
    },
  )

  test.each([
    ['serializable by default', '-c default_transaction_isolation=serializable'],
    ['repeatable read by default', '-c default_transaction_isolation=repeatable\\ read'],
    [
      'impatient with locks and statements',
      '-c lock_timeout=200 -c statement_timeout=2000 -c idle_session_timeout=1500',
    ],
    ['other times and dates', '-c timezone=Asia/Kolkata -c datestyle=German -c intervalstyle=sql_standard'],
    ['no JIT, generic plans', '-c jit=off -c plan_cache_mode=force_generic_plan'],
  ])('a role that is %s', { timeout: 60_000 }, async (name, options) => {
    const one = whole(`role.${name.replaceAll(/\W/g, '_')}`.slice(0, 50))
    const { db, client } = await runnerOn(poolOf({ options }), one)
    // One after the other: under SERIALIZABLE two that begin at once may be told to try again.
    for (let i = 0; i < 12; i++) expect(await client.run({})).toEqual({ a: 1, b: 2 })
    const id = await db.withTransaction((tx) => client.start(tx, {}))
    expect(await client.result(id)).toEqual({ a: 1, b: 2 })
    const { rows } = await poolOf().query(
      `SELECT count(*)::int AS n FROM confirmed WHERE key IN (SELECT id || ' completed' FROM saga_executions WHERE saga_type = $1)`,
      [one.name],
    )
    expect(rows[0].n).toBe(13)
  })

  test('an empty search_path: tables by their full names', async () => {
    const one = whole('search')
    const tables = { table: 'public.saga_executions', steps: 'public.saga_steps' }
    const { db, client } = await runnerOn(poolOf({ options: '-c search_path=' }), one, { tables })
    const id = await db.withTransaction((tx) => client.start(tx, {}))
    expect(await client.result(id)).toEqual({ a: 1, b: 2 })
  })

  test('a business transaction that has cancelled one saga and stays open does not cost the others their claims', {
    timeout: 30_000,
  }, async () => {
    const lease = 3000
    let finish = () => {}
    const slow = new Promise<void>((resolve) => {
      finish = resolve
    })
    let calls = 0
    const one = saga('open', { version: 1 }).step(
      'a',
      () => {
        calls++
        return slow
      },
      { timeout: '1m' },
    )
    const recorder = recordTelemetry()
    ends.push(() => recorder.stop())
    const { db, client } = await runnerOn(poolOf(), one, { lease })
    const start = () => db.withTransaction((tx) => client.start(tx, {}))
    const [first, second] = [await start(), await start()]
    await eventually('both are in the middle', () => calls === 2)
    await db.withTransaction(async (tx) => {
      await client.cancel(tx, first)
      await new Promise((resolve) => setTimeout(resolve, lease * 1.5))
      finish()
      await client.result(second)
    })
    await expect(client.result(first)).rejects.toMatchObject({ code: 'SAGA_COMPENSATED' })
    expect(calls).toBe(2)
    expect(recorder.of('saga.taken_over')).toEqual([])
  })

  describe('through PgBouncer', () => {
    test('nobody can tell, and nothing is prepared: it looks now and then', { timeout: 60_000 }, async () => {
      const url = new URL(service('pgbouncer').url)
      url.pathname = new URL(database.url).pathname
      const one = whole('pooler')
      const pool = poolOf({ connectionString: url.href })
      const { db, client } = await runnerOn(pool, one)
      const ran = await Promise.all(Array.from({ length: 12 }, () => client.run({})))
      expect(ran).toHaveLength(12)
      const id = await db.withTransaction((tx) => client.start(tx, {}))
      expect(await client.result(id)).toEqual({ a: 1, b: 2 })
    })
  })
})
