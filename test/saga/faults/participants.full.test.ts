import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaClient } from '../../../src/saga/index.ts'
import { type RunningScript, runScript, seededRandom } from '../../../src/testing/index.ts'
import { dropQueues, plainly } from '../../brokers/rabbitmq/support.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, freshDatabase, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { orderSaga, PARTICIPANTS, problems, SCHEMA, tablesOf } from './participants.ts'

/** Milliseconds: longer than any request of these sagas is waited for, and than any lease. */
const SUSPENDED = 2500
/** So many sagas are under way: few enough that their requests are answered in time where nobody is disturbed. */
const MOST_ALIVE = scale({ test: 10, full: 10, torture: 50 })

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

const LONG = { timeout: scale({ test: 120_000, full: 180_000, torture: 3_600_000 }) }

describeWith(['postgres', 'rabbitmq'], 'participants in processes of their own', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  test('killed and suspended: every saga ends, and all adds up at each of them', LONG, async () => {
    const total = scale({ test: 30, full: 100, torture: 20_000 })
    const disturbances = scale({ test: 3, full: 6, torture: 150 })
    const database = await freshDatabase('postgres')
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool, sagas: true })
    await db.migrate()
    for (const name of PARTICIPANTS) await postgres({ pool, ...tablesOf(name) }).migrate()
    await pool.query(SCHEMA)
    const exchange = `waybill-saga-${process.pid}-${Date.now()}`
    const names = [...PARTICIPANTS, 'orders'] as const
    ends.push(async () => {
      const { url } = service('rabbitmq')
      await dropQueues(url, ...names.map((name) => `${exchange}.${name}`))
      await plainly(url, async (channel) => {
        for (const made of [exchange, `${exchange}.dead`]) await channel.deleteExchange(made)
      })
    })
    const run = async (name: string): Promise<RunningScript> => {
      const env = { JOB: JSON.stringify({ url: database.url, amqp: service('rabbitmq').url, exchange, name }) }
      const script = bundled(new URL('./participant-child.ts', import.meta.url))
      const running = runScript({ script, env, timeout: LONG.timeout })
      ends.push(async () => {
        running.kill()
        await running.finished.catch(() => {})
      })
      await running.line('ready', 60_000)
      return running
    }
    const processes = await Promise.all(names.map(run))
    const one = orderSaga()
    const client = new SagaClient(one as never, db) as unknown as SagaClient<
      { n: number },
      unknown,
      unknown,
      pg.PoolClient
    >
    const count = async (where: string) =>
      (await pool.query(`SELECT count(*)::int AS n FROM saga_executions WHERE ${where}`)).rows[0].n as number
    const alive = () => count('ended_at IS NULL')
    const ended = () => count('ended_at IS NOT NULL')
    async function startAll(): Promise<void> {
      for (let started = 0; started < total; await pause(50)) {
        const room = Math.min(MOST_ALIVE - (await alive()), total - started)
        const numbers = Array.from({ length: Math.max(0, room) }, () => ++started)
        await Promise.all(numbers.map((n) => db.withTransaction((tx) => client.start(tx, { n }))))
      }
    }
    /** Each time that so many more have ended: those under way are caught by it, the others come through. */
    async function disturbAll(): Promise<void> {
      const random = seededRandom(15)
      for (let i = 0; i < disturbances; i++) {
        const enough = Math.floor((i * total) / disturbances)
        const limit = LONG.timeout
        await eventually('more have ended', async () => (await ended()) >= enough, { limit, every: 50, seen: ended })
        const victim = i % names.length
        if (random.next() < 0.4) {
          processes[victim]!.pause()
          await pause(SUSPENDED)
          processes[victim]!.resume()
        } else {
          processes[victim]!.kill('SIGKILL')
          await processes[victim]!.finished.catch(() => {})
          processes[victim] = await run(names[victim]!)
        }
        if (i % 10 === 9)
          console.log(`${i + 1} of ${disturbances} disturbances, ${await ended()} of ${total} sagas ended`)
      }
    }
    await Promise.all([startAll(), disturbAll()])
    const left = async () => {
      const { rows } = await pool.query(
        `SELECT (SELECT count(*) FROM saga_executions WHERE ended_at IS NULL)::int AS sagas,
           ${['outbox', ...PARTICIPANTS.map((name) => `${name}_outbox`)]
             .map((table) => `(SELECT count(*) FROM ${table} WHERE state <> 'published')::int AS ${table}`)
             .join(', ')}`,
      )
      return rows[0] as Record<string, number>
    }
    const still = async () => Object.values(await left()).every((count) => count === 0)
    await eventually('all have ended, and nothing travels', still, { limit: LONG.timeout, every: 200, seen: left })
    // What was published last is handled: a late success may open a saga again.
    await eventually('it adds up', async () => (await still()) && (await problems(pool)).length === 0, {
      limit: 20_000,
      every: 200,
      seen: () => problems(pool),
    })
    const { rows } = await pool.query('SELECT status, count(*)::int AS n FROM saga_executions GROUP BY status')
    console.log(`${disturbances} disturbances: ${rows.map(({ status, n }) => `${n} ${status}`).join(', ')}`)
    expect(rows.reduce((sum, { n }) => sum + n, 0)).toBe(total)
    expect(rows.find(({ status }) => status === 'completed')?.n).toBeGreaterThan(total / 10)
    expect(rows.find(({ status }) => status === 'compensated')?.n).toBeGreaterThanOrEqual(Math.floor(total / 10))
  })
})
