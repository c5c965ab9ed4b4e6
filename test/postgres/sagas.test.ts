import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { systemClock, uuidv7 } from '../../src/core/index.ts'
import { type Clock, Reject, Unavailable } from '../../src/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import {
  type AnySaga,
  decide,
  evolve,
  type SagaClient,
  type SagaDatabase,
  SagaRunner,
  type SagaRunnerOptions,
  saga,
} from '../../src/saga/index.ts'
import { begun } from '../../src/saga/state.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred } from '../saga/support.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

const undo = () => {}
const three = (last: () => unknown = () => 3) =>
  saga<{ n: number }>('three', { version: 1 })
    .step('a', () => 1, { undo })
    .step('b', () => 2, { undo })
    .step('c', last, { undo })

describeWith(['postgres'], 'sagas in PostgreSQL', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  let db: Postgres<pg.PoolClient>
  const writes: string[] = []
  const looks: string[] = []
  const runners: SagaRunner<pg.PoolClient>[] = []

  beforeAll(async () => {
    database = await freshDatabase('postgres')
    pool = new pg.Pool({ connectionString: database.url, max: 20 })
    pool.on('error', () => {})
    pool.on('connect', (client) => {
      const send = client.query.bind(client) as (...args: unknown[]) => Promise<pg.QueryResult>
      client.query = ((...args: unknown[]) => {
        const [given] = args
        const text = typeof given === 'string' ? given : ((given as { text?: string })?.text ?? '')
        const answer = send(...args)
        if (/^WITH saga AS/.test(text) || text === 'COMMIT') writes.push(text.slice(0, 40))
        if (/AS type,\s+CASE WHEN saga.ended_at|^SELECT .* WHERE saga.id = \$1/s.test(text)) looks.push(text)
        if (/^WITH now AS/.test(text))
          answer.then(
            ({ rows }) => rows.some(({ saga }) => saga != null) && writes.push('claim'),
            () => {},
          )
        return answer
      }) as typeof client.query
    })
    db = postgres({ pool, sagas: true })
    await db.migrate()
  })

  afterAll(async () => {
    await Promise.all(runners.map((runner) => runner.stop()))
    await pool.end()
    await database.drop()
  })

  function runnerOf(sagas: readonly AnySaga[], options: Partial<SagaRunnerOptions<pg.PoolClient>> = {}) {
    const runner = new SagaRunner<pg.PoolClient>({ store: db, sagas, ...options })
    runners.push(runner)
    return runner
  }

  const clientOf = (runner: SagaRunner<pg.PoolClient>, one: AnySaga) =>
    runner.client(one as never) as SagaClient<unknown, unknown, Record<string, unknown>, pg.PoolClient>

  /** Started, and its first look is over. */
  async function started(sagas: readonly AnySaga[], options: Partial<SagaRunnerOptions<pg.PoolClient>> = {}) {
    const runner = await runnerOf(sagas, options).start()
    await clientOf(runner, sagas[0]!)
      .run({ n: 0 })
      .catch(() => {})
    return runner
  }

  test('three steps in run() cost four commits, and no claim', async () => {
    const one = three()
    const runner = await started([one])
    writes.length = 0
    expect(await clientOf(runner, one).run({ n: 1 })).toEqual({ a: 1, b: 2, c: 3 })
    expect(writes).toHaveLength(4)
    await runner.stop()
  })

  test('a refused third step with two undos costs six', async () => {
    const one = three(() => Promise.reject(new Reject('no')))
    const runner = await started([one])
    writes.length = 0
    await expect(clientOf(runner, one).run({ n: 1 })).rejects.toThrow('no')
    expect(writes).toHaveLength(6)
    await runner.stop()
  })

  test('a saga that was started and claimed costs one more: the claim', async () => {
    const one = three()
    const runner = await started([one])
    await eventually('the runner is idle', () => runner.status().unsettled === 0)
    writes.length = 0
    const id = await db.withTransaction((tx) => clientOf(runner, one).start(tx, { n: 1 }))
    await clientOf(runner, one).result(id)
    // COMMIT and the insert in it are one.
    expect(writes.filter((text) => text !== 'COMMIT')).toHaveLength(5)
    expect(writes).toContain('claim')
    await runner.stop()
  })

  test('progress writes are HOT: at least 60 per cent of all updates', async () => {
    const one = three()
    const runner = await started([one])
    const stats = async () => {
      const { rows } = await pool.query(
        `SELECT n_tup_upd::int AS all, n_tup_hot_upd::int AS hot FROM pg_stat_user_tables WHERE relname = 'saga_executions'`,
      )
      return rows[0] as { all: number; hot: number }
    }
    const before = await stats()
    for (let i = 0; i < 100; i++) await clientOf(runner, one).run({ n: i })
    await eventually('the statistics are there', async () => (await stats()).all - before.all >= 300)
    const after = await stats()
    expect((after.hot - before.hot) / (after.all - before.all)).toBeGreaterThan(0.6)
    await runner.stop()
  })

  test('no connection is held while a step runs', async () => {
    // Two of them hear and hold the idle flag. A look for what is due may use another, for a moment.
    const one = saga('free', { version: 1 }).step('a', async () => {
      await eventually('two are in use', () => pool.totalCount - pool.idleCount <= 2, { limit: 20_000 })
      return 'free'
    })
    const runner = await started([one])
    expect(await clientOf(runner, one).run({})).toEqual({ a: 'free' })
    await runner.stop()
  })

  test('an idle runner hears of a saga with its commit', async () => {
    const one = three()
    // No time passes for it: it looks again when it is told to, and never else.
    const runner = await started([one], { clock: new FakeClock() })
    await eventually('the runner is idle', () => runner.status().unsettled === 0)
    const id = await db.withTransaction((tx) => clientOf(runner, one).start(tx, { n: 1 }))
    await clientOf(runner, one).result(id)
    await runner.stop()
  })

  test('a transaction step and onEnd commit with the saga; when the answer to the COMMIT is lost, nothing happens twice', async () => {
    await pool.query('CREATE TABLE confirmations (saga text, what text)')
    let lose = true
    const lossy: SagaDatabase<pg.PoolClient> = {
      sagas: db.sagas,
      async withTransaction(fn, options) {
        const value = await db.withTransaction(fn, options)
        if (lose) {
          lose = false
          throw new Unavailable('the connection broke before the answer to COMMIT', { code: 'COMMIT_UNKNOWN' })
        }
        return value
      },
    }
    const put = (tx: pg.PoolClient, id: string, what: string) =>
      tx.query('INSERT INTO confirmations VALUES ($1, $2)', [id, what])
    const one = saga('confirm', { version: 1 })
      .transaction('confirm', async (c, tx: pg.PoolClient) => {
        await put(tx, c.id, 'confirmed')
        return 'ok'
      })
      .step('ship', () => 'shipped')
      .onEnd(async (c, tx) => {
        await put(tx, c.id, c.status)
      })
    const runner = await runnerOf([one], { store: lossy }).start()
    expect(await clientOf(runner, one).run({}, { id: 'lossy' })).toEqual({ confirm: 'ok', ship: 'shipped' })
    const { rows } = await pool.query('SELECT what FROM confirmations')
    expect(rows.map(({ what }) => what)).toEqual(['confirmed', 'completed'])
    await runner.stop()
  })

  test('a write whose answer is lost is looked up, and the step is not run again', async () => {
    let lose = 2
    let calls = 0
    const sagas: SagaDatabase<pg.PoolClient>['sagas'] = Object.assign(Object.create(db.sagas), {
      insert: db.sagas.insert.bind(db.sagas),
      load: db.sagas.load.bind(db.sagas),
      claim: db.sagas.claim.bind(db.sagas),
      extend: db.sagas.extend.bind(db.sagas),
      ended: db.sagas.ended.bind(db.sagas),
      nextDue: db.sagas.nextDue.bind(db.sagas),
      overdue: db.sagas.overdue.bind(db.sagas),
      listen: db.sagas.listen.bind(db.sagas),
      async save(...args: Parameters<typeof db.sagas.save>) {
        const written = await db.sagas.save(...args)
        if (lose-- > 0) throw new Unavailable('the answer was lost')
        return written
      },
    })
    const one = saga('lost-answers', { version: 1 })
      .step('a', () => ++calls)
      .step('b', () => ++calls)
    const store: SagaDatabase<pg.PoolClient> = {
      sagas,
      withTransaction: (fn, options) => db.withTransaction(fn, options),
    }
    const runner = await runnerOf([one], { store }).start()
    expect(await clientOf(runner, one).run({})).toEqual({ a: 1, b: 2 })
    await runner.stop()
  })

  test('a runner whose clock is an hour off claims, waits and takes over as any other', async () => {
    for (const off of [-3_600_000, 3_600_000]) {
      const clock: Clock = { ...systemClock, now: () => Date.now() + off }
      let tries = 0
      const one = saga(`clock${off > 0 ? 'ahead' : 'behind'}`, { version: 1 })
        .sleep('pause', '50ms')
        .step(
          'a',
          () => {
            if (++tries === 1) throw new Error('reset')
            return tries
          },
          { backoff: { min: '50ms', jitter: 0 } },
        )
      // It sleeps for longer than any machine needs to claim it, so that a slow one finds it in the same step.
      const asleep = saga(`asleep${off > 0 ? 'ahead' : 'behind'}`, { version: 1 }).sleep('pause', '1h')
      const runner = await runnerOf([one, asleep], { clock }).start()
      const began = performance.now()
      expect(await clientOf(runner, one).run({})).toMatchObject({ a: 2 })
      expect(performance.now() - began).toBeLessThan(30_000)
      await runner.stop()
      // Two that others have: one of them is silent, the other's claim has half an hour left by the server's clock.
      const silent = await claimedByAnother(asleep, 0)
      const alive = await claimedByAnother(asleep, 1_800_000)
      expect(await runner.runOnce()).toMatchObject({ taken: 1 })
      expect(await db.sagas.load(undefined, silent)).toMatchObject({ runner: undefined, currentStep: 'pause' })
      expect(await db.sagas.load(undefined, alive)).toMatchObject({ version: 1, takeovers: 0 })
      await runner.stop()
    }
  })

  /** As another process would, which then says nothing for `lease` milliseconds. */
  async function claimedByAnother(one: AnySaga, lease: number): Promise<string> {
    const id = uuidv7()
    const state = decide(one.steps, begun(id, one.name), { type: 'begin' }).reduce(evolve, begun(id, one.name))
    const about = { type: one.name, definition: one.definition, aggregate: undefined, tenant: undefined }
    const made = { id, ...about, traceparent: undefined, input: '{}', state, wakeIn: lease, runner: uuidv7() }
    await db.sagas.insert(undefined, made)
    return id
  }

  test('a plan that was made while the table was small is made anew: writes go by the index when it has grown', async () => {
    const own = new pg.Pool({ connectionString: database.url, max: 4 })
    const small = postgres({ pool: own, sagas: { table: 'small' }, outbox: { table: 'o3' }, inbox: { table: 'i3' } })
    await small.migrate()
    // Looked at by nobody else meanwhile: with numbers of its own the server would plan all statements anew.
    await own.query('ALTER TABLE small SET (autovacuum_enabled = false)')
    // An empty table that was looked at: the planner takes it for empty, and reads all of it.
    await own.query('VACUUM (ANALYZE) small')
    const one = three()
    const runner = await new SagaRunner({ store: small, sagas: [one] }).start()
    for (let i = 0; i < 360; i++) await runner.client(one).run({ n: i })
    await runner.stop()
    const connections = await Promise.all(Array.from({ length: own.totalCount }, () => own.connect()))
    const plans: string[] = []
    for (const connection of connections) {
      // One that has run it less than five times has no plan yet that would do for all values.
      await connection.query('SET plan_cache_mode = force_generic_plan')
      const { rows } = await connection.query(
        `SELECT name FROM pg_prepared_statements WHERE statement ~ '^WITH saga AS .\\s*UPDATE "small".*planned anew'`,
      )
      for (const { name } of rows) {
        const explained = await connection.query(`EXPLAIN EXECUTE "${name}" (${Array(14).fill('NULL').join(', ')})`)
        plans.push(explained.rows.map((row) => row['QUERY PLAN']).join('\n'))
      }
      connection.release()
    }
    await own.end()
    expect(plans).not.toEqual([])
    for (const plan of plans) expect(plan).toContain('Index Scan using small_pkey')
  })

  test('two claims and the runner racing a thousand times: one of them has it, and the rest change nothing', async () => {
    const one = three()
    const { definition, steps } = one
    const state = { status: 'running' as const, held: undefined, error: undefined }
    let kept = 0
    for (let round = 0; round < 1000; round += 50) {
      await Promise.all(
        Array.from({ length: 50 }, async () => {
          const id = uuidv7()
          const runner = uuidv7()
          const own = `${definition}-${id}`
          const first = {
            name: steps[0]!.name,
            key: id,
            status: 'pending' as const,
            output: undefined,
            executed: false,
          }
          const step = { ...first, attempts: 0, spent: 0, undos: 0, sends: 0, error: undefined }
          const about = {
            type: 'race',
            definition: own,
            aggregate: undefined,
            tenant: undefined,
            traceparent: undefined,
          }
          const made = {
            id,
            ...about,
            input: '{}',
            state: { id, type: 'race', ...state, steps: [step] },
            wakeIn: 0,
            runner,
          }
          await db.sagas.insert(undefined, made)
          const claim = () =>
            db.sagas.claim({ definitions: [own], count: 1, takeovers: 1, runner: uuidv7(), lease: 60_000 })
          const change = { id, version: 1, runner, state: made.state, steps: [], lease: 60_000, progress: true }
          const [left, saved, right] = await Promise.all([
            claim(),
            db.sagas.save(undefined, { ...change, claim: 'keep', wakeIn: undefined }),
            claim(),
          ])
          const winners = [...left, ...right]
          if (saved) kept++
          expect(winners.length + (saved ? 1 : 0)).toBe(1)
          const record = await db.sagas.load(undefined, id)
          expect(record?.runner).toBe(winners[0]?.saga.runner ?? runner)
          expect(record?.version).toBe(2)
        }),
      )
    }
    expect(kept).toBeGreaterThan(0)
    expect(kept).toBeLessThan(1000)
  })

  test('fifty who wait for sagas of another process share one look', async () => {
    const gate = deferred<number>()
    let begun = 0
    const one = saga('waited', { version: 1 }).step(
      'a',
      () => {
        begun++
        return gate.promise
      },
      { timeout: '5m' },
    )
    // Another store on the same tables knows nothing of those who wait here.
    const elsewhere = await runnerOf([one], { store: postgres({ pool, sagas: true }), concurrency: 64 }).start()
    const orders = clientOf(runnerOf([one]), one)
    const ids = await db.withTransaction((tx) =>
      Promise.all(Array.from({ length: 50 }, async () => orders.start(tx, {}))),
    )
    await eventually('all run elsewhere', () => begun === 50)
    looks.length = 0
    const began = performance.now()
    const results = Promise.all(ids.map((id) => orders.result(id, { timeout: '5m' })))
    await eventually('they have looked again', () => looks.length >= 3)
    gate.resolve(7)
    expect(new Set((await results).map(({ a }) => a))).toEqual(new Set([7]))
    // One for all who came at once, and then one in 20 ms at most, however many wait.
    expect(looks.length).toBeLessThanOrEqual(3 + (performance.now() - began) / 20)
    expect(looks.length).toBeLessThan(50)
    await elsewhere.stop()
  })
})
