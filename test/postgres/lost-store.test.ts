import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgresJs from 'postgres'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { event, Unavailable, type WaybillError } from '../../src/core/index.ts'
import { sqlOf } from '../../src/drivers/sql/database.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { type ConsumeOptions, Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/middleware.ts'
import { type FaultProxy, faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { type FreshDatabase, freshDatabase, without } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

const Placed = event<{ n: number }>('order.placed')
const Billed = event<{ n: number }>('order.billed')

const fails = (work: Promise<unknown>): Promise<WaybillError> =>
  work.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )

describe.skipIf(without('postgres')).each(['pg', 'postgres.js'])('a store that is lost, on %s', (driver) => {
  let database: FreshDatabase
  let other: pg.Pool
  let proxy: FaultProxy
  const ends: (() => Promise<unknown>)[] = []
  beforeAll(async () => {
    database = await freshDatabase()
    other = new pg.Pool({ connectionString: database.url, max: 4 })
    await postgres({ pool: other }).migrate()
    await other.query('CREATE TABLE orders (n int PRIMARY KEY)')
    const { hostname, port } = new URL(database.url)
    proxy = await faultProxy({ host: hostname, port: Number(port) })
  })
  afterEach(async () => {
    proxy.cut()
    await proxy.restore()
    await Promise.all(ends.splice(0).map((end) => end()))
    await other.query('TRUNCATE orders, processed_messages')
  })
  afterAll(async () => {
    await proxy?.close()
    await other?.end()
    await database?.drop()
  })

  function open(options: { statementTimeout?: number; settings?: Record<string, string> } = {}): Postgres {
    const { statementTimeout = 30_000, settings = {} } = options
    const url = proxy.url(database.url)
    if (driver === 'pg') {
      const flags = Object.entries(settings).map(([name, value]) => `-c ${name}=${value}`)
      const pool = new pg.Pool({ connectionString: url, max: 4, options: flags.join(' ') })
      ends.push(() => pool.end())
      return postgres({ pool, statementTimeout }) as Postgres
    }
    const sql = postgresJs(url, { max: 4, onnotice: () => {}, connection: settings })
    ends.push(() => sql.end({ timeout: 0.1 }))
    return postgres({ pool: sql, statementTimeout }) as Postgres
  }

  /** Handles one message with one attempt: what is charged is dead. */
  async function consume(db: Postgres, handler: (tx: unknown) => Promise<unknown>, options: ConsumeOptions = {}) {
    const broker = new InProcessBroker()
    const recorded = recordTelemetry(['message.dead', 'flow.paused', 'message.handled'])
    const router = new Router('billing').use(transactional(db)).on(Placed, (_, { tx }) => handler(tx) as Promise<void>)
    const consumer = await router.consume(broker.source('billing'), { retry: { attempts: 1 }, ...options }).start()
    await broker.publish([Placed({ n: 1 })])
    return {
      recorded,
      async stop() {
        await consumer.stop()
        recorded.stop()
      },
    }
  }

  test("a connection that is cut inside the handler is nobody's fault: it pauses, and goes on", async () => {
    const db = open()
    let calls = 0
    const { recorded, stop } = await consume(db, async (tx) => {
      calls++
      await sqlOf(tx).query('INSERT INTO orders VALUES (1)')
      if (calls > 1) return
      proxy.cut()
      await sqlOf(tx).query('SELECT 1')
    })
    await eventually('it to be done', () => recorded.of('message.handled').some(({ result }) => result === 'done'))
    await stop()
    expect(recorded.of('message.dead')).toEqual([])
    expect(recorded.of('flow.paused')[0]?.error).toBeInstanceOf(Unavailable)
    expect((await other.query('SELECT n FROM orders')).rows).toEqual([{ n: 1 }])
  })

  test('an error that a library has put around it is told too, and one that has nothing to do with it is kept', async () => {
    const db = open()
    const wrapped = (name: string) =>
      db.withTransaction(async (tx) => {
        proxy.cut()
        await sqlOf(tx)
          .query('SELECT 1')
          .catch((error) => {
            throw Object.assign(new Error('the query failed'), { [name]: error })
          })
      })
    for (const name of ['cause', 'driverError', 'original']) {
      const error = await fails(wrapped(name))
      expect(error).toBeInstanceOf(Unavailable)
      expect(error.message).toContain('lost inside the transaction')
    }
    const mine = new Error('mine')
    const work = db.withTransaction(async (tx) => {
      proxy.cut()
      await sqlOf(tx)
        .query('SELECT 1')
        .catch(() => {})
      throw mine
    })
    expect(await fails(work)).toBe(mine)
  })

  test.each([
    ['idle_in_transaction_session_timeout', '100', '25P03'],
    ['transaction_timeout', '100', '25P04'],
  ])("%s of the role: told, and not charged to the message while it may be everybody's", async (name, value, code) => {
    const db = open({ settings: { [name]: value } })
    const work = db.withTransaction(async (tx) => {
      await sqlOf(tx).query('SELECT 1')
      await sleep(300)
      await sqlOf(tx).query('SELECT 1')
    })
    const error = await fails(work)
    expect(error).toBeInstanceOf(Unavailable)
    if (driver === 'pg') expect(error.message).toContain(code)
  })

  test('a COMMIT without an answer is tried again and not charged', async () => {
    const db = open()
    const work = db.withTransaction(async (tx) => {
      await sqlOf(tx).query('SELECT 1')
      proxy.cut()
      await sleep(50)
    })
    const error = await fails(work)
    expect(error).toMatchObject({ code: 'COMMIT_UNKNOWN' })
    expect(error).toBeInstanceOf(Unavailable)
  })

  describe('a network that swallows everything', () => {
    test('enqueue and inbox give up in time, and the transaction with them', async () => {
      const db = open({ statementTimeout: 1000 })
      const enqueueing = (tx: unknown) => db.outbox.enqueue(tx, Placed({ n: 1 }))
      const receiving = (tx: unknown) => db.inbox.receive(tx, { subscriber: 'billing', source: '/s', id: '1' })
      for (const [send, answers] of [
        [enqueueing, undefined],
        [receiving, 'busy'],
      ] as const) {
        const began = performance.now()
        let answer: unknown
        const error = await fails(
          db.withTransaction(async (tx) => {
            await sqlOf(tx).query('SELECT 1')
            proxy.blackHole()
            answer = await send(tx)
            throw new Error('not now')
          }),
        )
        expect(answer).toBe(answers)
        if (answers === undefined) expect(error).toBeInstanceOf(Unavailable)
        expect(performance.now() - began).toBeLessThan(20_000)
        proxy.cut()
        await proxy.restore()
      }
    })

    test('a handler is ended by its signal, and its connection does not come back', async () => {
      const db = open()
      const { recorded, stop } = await consume(
        db,
        async (tx) => {
          await sqlOf(tx).query('SELECT 1')
          if (recorded.of('message.handled').length > 0) return
          proxy.blackHole()
          await sqlOf(tx).query('SELECT 1')
        },
        { timeout: 1500, retry: { attempts: 100, backoff: { min: 1, max: 1, jitter: 0 } } },
      )
      await eventually('it to be told', () => recorded.of('message.handled').length > 0)
      await proxy.restore()
      await eventually('it to be done', () => recorded.of('message.handled').some(({ result }) => result === 'done'))
      await stop()
    })

    test('a query of ours outside of a transaction has a limit', async () => {
      const db = open({ statementTimeout: 1000 })
      await db.inbox.clean()
      proxy.blackHole()
      expect(await fails(db.inbox.clean())).toBeInstanceOf(Unavailable)
    })
  })

  test("an outbox that is missing, or that this role may not write, is nobody's fault", async () => {
    const db = open()
    const missing = postgres({ pool: other, outbox: { table: 'nowhere' } })
    const broker = new InProcessBroker()
    const recorded = recordTelemetry(['message.dead', 'flow.paused'])
    const stores = { withTransaction: db.withTransaction.bind(db), inbox: db.inbox, outbox: missing.outbox as never }
    const router = new Router('billing').use(transactional<unknown>(stores)).on(Placed, () => [Billed({ n: 1 })])
    const consumer = await router.consume(broker.source('billing'), { retry: { attempts: 1 } }).start()
    await broker.publish([Placed({ n: 1 })])
    const { error } = await recorded.next('flow.paused', undefined, 20_000)
    expect(error).toMatchObject({ code: 'NOT_MIGRATED', message: expect.stringContaining('table nowhere') })
    await consumer.stop()
    recorded.stop()
    expect(recorded.of('message.dead')).toEqual([])
  })
})
