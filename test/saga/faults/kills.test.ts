import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaClient } from '../../../src/saga/index.ts'
import { type RunningScript, runScript, seededRandom } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, freshDatabase, privatePostgres } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { orderSaga, problems, SCHEMA, type Trouble } from './order.ts'

const LONG = { timeout: scale({ test: 240_000, full: 600_000, torture: 3_600_000 }) }

describeWith(['postgres'], 'runners that are killed', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  async function world(on: Parameters<typeof freshDatabase>[0], policy: Pick<Trouble, 'unknown' | 'timeout'> = {}) {
    const database = await freshDatabase(on)
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool, sagas: true })
    await db.migrate()
    await pool.query(SCHEMA)
    const none = { next: () => 1, fails: 0, hangs: 0, ...policy }
    const order = orderSaga(pool, none)
    const orders = new SagaClient(order, db)
    return {
      pool,
      admin: db.sagas,
      start: (n: number, kills = false) =>
        db.withTransaction((tx) => orders.start(tx, kills ? { n, kills } : { n }, { id: `order-${n}` })),
      async runner(job: object = {}): Promise<RunningScript> {
        const env = {
          JOB: JSON.stringify({
            url: database.url,
            lease: 2000,
            concurrency: 16,
            fails: 0.1,
            hangs: 0.05,
            ...policy,
            ...job,
          }),
        }
        const running = runScript({
          script: bundled(new URL('./runner-child.ts', import.meta.url)),
          env,
          timeout: LONG.timeout,
        })
        ends.push(async () => {
          running.kill()
          await running.finished.catch(() => {})
        })
        await running.line('ready', 60_000)
        return running
      },
      async alive(): Promise<number> {
        const { rows } = await pool.query('SELECT count(*)::int AS n FROM saga_executions WHERE ended_at IS NULL')
        return rows[0].n
      },
    }
  }

  test(
    'orders under failing services and killed runners: each completed or compensated, and all adds up',
    LONG,
    async () => {
      const total = scale({ test: 60, full: 500, torture: 20_000 })
      const kills = scale({ test: 3, full: 20, torture: 200 })
      const restarts = scale({ test: 1, full: 1, torture: 10 })
      const server = await privatePostgres()
      ends.push(() => server.stop())
      const { start, runner, alive, pool } = await world(server)
      const random = seededRandom(14)
      const runners = await Promise.all([runner(), runner()])
      let started = 0
      let killed = 0
      let restarted = 0
      const batch = Math.ceil(total / kills)
      while (started < total || killed < kills) {
        const numbers = Array.from({ length: Math.min(batch, total - started) }, () => ++started)
        // The same id again starts nothing, so what a restart has cut off is started again.
        await Promise.all(
          numbers.map((n) => start(n).catch(() => eventually('it is started', () => start(n).catch(() => undefined)))),
        )
        await new Promise((resolve) => setTimeout(resolve, 200 + random.next() * 500))
        const victim = Math.floor(random.next() * runners.length)
        runners[victim]!.kill('SIGKILL')
        await runners[victim]!.finished.catch(() => {})
        killed++
        runners[victim] = await runner()
        if (restarted < restarts && killed >= ((restarted + 1) * kills) / (restarts + 1)) {
          restarted++
          await server.restart('immediate')
        }
      }
      await eventually('all have ended', async () => (await alive()) === 0, {
        limit: LONG.timeout,
        every: 200,
        seen: alive,
      })
      // What comes late has come.
      await new Promise((resolve) => setTimeout(resolve, 1000))
      expect(await problems(pool)).toEqual([])
      const { rows } = await pool.query('SELECT status, count(*)::int AS n FROM saga_executions GROUP BY status')
      expect(rows.reduce((sum, { n }) => sum + n, 0)).toBe(total)
      expect(rows.find(({ status }) => status === 'completed').n).toBeGreaterThan(total * 0.5)
      expect([killed, restarted]).toEqual([kills, restarts])
    },
  )

  test(
    'a saga that kills its process five times while 31 others are in flight: it is held, they complete',
    LONG,
    async () => {
      // With each death some are unknown at their last step: tried again, they complete too.
      const { start, runner, alive, pool, admin } = await world('postgres', { unknown: 'retry', timeout: '5s' })
      const job = { fails: 0, hangs: 0, concurrency: 32, lease: 1000 }
      await Promise.all(Array.from({ length: 31 }, (_, i) => start(10 * i + 1)))
      const poison = await start(5, true)
      let processes = 0
      while ((await admin.load(undefined, poison))?.held === undefined) {
        const running = await runner(job)
        processes++
        await Promise.race([
          running.finished,
          eventually('it is held', async () => (await admin.load(undefined, poison))?.held, { limit: 60_000 }),
        ])
        expect(processes).toBeLessThanOrEqual(6)
      }
      await eventually('the others have ended', async () => (await alive()) === 1, { limit: 60_000, seen: alive })
      const { rows } = await pool.query(
        'SELECT status, count(*)::int AS n FROM saga_executions GROUP BY status ORDER BY n',
      )
      expect(rows).toEqual([
        { status: 'running', n: 1 },
        { status: 'completed', n: 31 },
      ])
      expect(processes).toBe(6)
    },
  )
})
