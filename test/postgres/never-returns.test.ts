import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgresJs from 'postgres'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { event, telemetry, Unavailable, type WaybillError } from '../../src/core/index.ts'
import { sqlOf } from '../../src/drivers/sql/database.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/middleware.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { hiding } from '../support/hiding.ts'
import { type FreshDatabase, freshDatabase, without } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

const Placed = event<{ n: number; hangs: 'nowhere' | 'idle' | 'in a statement' }>('order.placed')

const fails = (work: Promise<unknown>): Promise<WaybillError> =>
  work.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )

const never = () => new Promise<never>(() => {})

describe.skipIf(without('postgres')).each(['pg', 'pg without its socket', 'postgres.js'])(
  'a handler that never returns, on %s',
  (driver) => {
    let database: FreshDatabase
    let other: pg.Pool
    beforeAll(async () => {
      database = await freshDatabase()
      other = new pg.Pool({ connectionString: database.url, max: 4 })
      await postgres({ pool: other }).migrate()
      await other.query('CREATE TABLE orders (n int PRIMARY KEY)')
    })
    afterAll(async () => {
      await other?.end()
      await database?.drop()
    })

    /** What a test has opened, also one that fails. The last is closed first. */
    const opened: (() => Promise<unknown>)[] = []
    afterEach(async () => {
      for (const close of opened.splice(0).reverse()) await close()
    })

    /** A session of another program. */
    async function session(): Promise<pg.Client> {
      const client = new pg.Client({ connectionString: database.url })
      await client.connect()
      opened.push(() => client.end())
      return client
    }

    function open(max: number): Postgres {
      if (driver.startsWith('pg')) {
        const pool = new pg.Pool({ connectionString: database.url, max, application_name: 'consumer' })
        opened.push(() => pool.end())
        return postgres({ pool: driver === 'pg' ? pool : hiding(pool, 'connection') }) as Postgres
      }
      const connection = { application_name: 'consumer' }
      const sql = postgresJs(database.url, { max, onnotice: () => {}, connection })
      opened.push(() => sql.end({ timeout: 1 }))
      return postgres({ pool: sql }) as Postgres
    }

    test('costs nobody but its own message: all others are handled, none of them is dead', async () => {
      const db = open(10)
      const recorded = recordTelemetry()
      opened.push(async () => recorded.stop())
      const broker = new InProcessBroker()
      const handled = new Set<number>()
      const hung: number[] = []
      const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
        if (data.hangs !== 'nowhere') hung.push(data.n)
        if (data.hangs === 'idle') await never()
        if (data.hangs === 'in a statement') await sqlOf(tx).query('SELECT pg_sleep(3600)')
        await sqlOf(tx).query('INSERT INTO orders VALUES ($1)', [data.n])
        handled.add(data.n)
      })
      const consumer = await router
        .consume(broker.source('billing'), {
          concurrency: 10,
          // So long that on a busy machine the healthy ones are done before.
          timeout: 1000,
          retry: { attempts: 1000, backoff: { min: 1, max: 1, jitter: 0 } },
        })
        .start()
      opened.push(() => consumer.stop())
      const hanging = (['idle', 'in a statement', 'idle'] as const).map((hangs, n) => Placed({ n: -1 - n, hangs }))
      await broker.publish(hanging)
      for (let round = 0; round < 40; round++) {
        const from = round * 25
        await broker.publish(Array.from({ length: 25 }, (_, i) => Placed({ n: from + i, hangs: 'nowhere' })))
        await eventually(`round ${round} of healthy messages`, () => handled.size >= from + 20)
        await sleep(50)
      }
      await eventually('all healthy ones', () => handled.size === 1000)
      // Each with what was left of its first time still in the database.
      await eventually('each that hangs has come again', () => new Set(hung).size === 3 && hung.length >= 6)
      expect(recorded.of('message.dead')).toEqual([])
      // One whose time was up before its commit comes once more.
      const committed = async () => (await other.query('SELECT count(*)::int AS n FROM orders')).rows[0].n
      await eventually('all are committed', async () => (await committed()) === 1000, { seen: () => handled.size })
      await consumer.stop()
      expect(await committed()).toBe(1000)
      await eventually('the server to be rid of them', async () => {
        const { rows } = await other.query(
          `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'consumer'
            AND xact_start IS NOT NULL`,
        )
        return rows[0].n === 0
      })
    })

    test("an empty pool is nobody's fault, and is named", async () => {
      const db = open(2)
      const held = new AbortController()
      let begun = 0
      const hold = () => {
        begun++
        return never()
      }
      const holders = [1, 2].map(() => fails(db.withTransaction(hold, { signal: held.signal })))
      await eventually('both connections to be in use', () => begun === 2)
      const controller = new AbortController()
      const waiting = fails(db.withTransaction(async () => expect.unreachable(), { signal: controller.signal }))
      const began = performance.now()
      controller.abort(new Error('the time is up'))
      const error = await waiting
      expect(performance.now() - began).toBeLessThan(10_000)
      expect(error).toBeInstanceOf(Unavailable)
      expect(error.message).toContain('is empty: all 2 connections (max: 2) are in use')
      held.abort(new Error('enough'))
      expect((await Promise.all(holders)).map(({ message }) => message)).toEqual(['enough', 'enough'])
      // Both are there again.
      await Promise.all([1, 2, 3].map(() => db.withTransaction((tx) => sqlOf(tx).query('SELECT 1'))))
    })

    test('what it sends afterwards is refused, and its locks are gone', async () => {
      const db = open(2)
      const warnings: string[] = []
      const stop = telemetry.warning.subscribe(({ message }) => warnings.push(message))
      opened.push(async () => stop())
      await other.query('CREATE TABLE things (n int PRIMARY KEY)')
      const locker = await session()
      await locker.query('BEGIN')
      await locker.query('LOCK TABLE orders')
      const controller = new AbortController()
      let leaked: unknown
      const work = fails(
        db.withTransaction(
          async (tx) => {
            leaked = tx
            await sqlOf(tx).query('INSERT INTO things VALUES (1)')
            // For a lock that another keeps: the server does not notice that its client has gone.
            await sqlOf(tx).query('LOCK TABLE orders')
          },
          { signal: controller.signal },
        ),
      )
      await eventually('it to wait for the lock', async () => {
        const { rows } = await other.query(
          `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
        )
        return rows.length > 0
      })
      controller.abort(new Error('enough'))
      expect((await work).message).toBe('enough')
      const rival = await session()
      await rival.query("SET lock_timeout = '10s'")
      await rival.query('INSERT INTO things VALUES (1)')
      await locker.query('ROLLBACK')
      expect(await fails(sqlOf(leaked).query('INSERT INTO things VALUES (2)'))).toMatchObject({
        code: 'TRANSACTION_ENDED',
        message: expect.stringContaining('its signal was aborted'),
      })
      expect(warnings.filter((text) => text.includes('abort of its signal'))).toHaveLength(1)
    })

    test('a message that another is handling is not charged for the wait', async () => {
      const db = open(4)
      const broker = new InProcessBroker()
      const recorded = recordTelemetry()
      opened.push(async () => recorded.stop())
      const holder = await session()
      await holder.query('BEGIN')
      await holder.query(
        `INSERT INTO processed_messages (subscriber, source, message_id) VALUES ('billing', '/shop', 'x')`,
      )
      let handled = 0
      const router = new Router('billing').use(transactional(db)).on(Placed, async () => {
        handled++
      })
      const consumer = await router.consume(broker.source('billing'), { timeout: 200, retry: { attempts: 1 } }).start()
      opened.push(() => consumer.stop())
      await broker.publish([Placed({ n: 1, hangs: 'nowhere' }, { id: 'x', source: '/shop' })])
      await eventually('it to be put off', () =>
        recorded.of('message.handled').some(({ result }) => result === 'retry'),
      )
      expect(recorded.of('message.dead')).toEqual([])
      await holder.query('ROLLBACK')
      await eventually('it to be handled', () => handled === 1)
      await consumer.stop()
    })
  },
)
