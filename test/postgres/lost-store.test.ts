import { type EventEmitter, once } from 'node:events'
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
    await other.query('CREATE TABLE slow (n int)')
    await other.query(
      `CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END'`,
    )
    await other.query(
      'CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits()',
    )
    const locker = await other.connect()
    await locker.query('SELECT pg_advisory_lock(77)')
    const work = fails(db.withTransaction((tx) => sqlOf(tx).query('INSERT INTO slow VALUES (1)')))
    await eventually('the COMMIT to be under way', async () => {
      const { rows } = await other.query(
        `SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`,
      )
      return rows.length > 0
    })
    proxy.cut()
    const error = await work
    await locker.query('SELECT pg_advisory_unlock(77)')
    locker.release()
    expect(error).toMatchObject({ code: 'COMMIT_UNKNOWN' })
    expect(error).toBeInstanceOf(Unavailable)
  })

  test('a connection that is lost while no statement is under way: pg says why, and that all is rolled back', async () => {
    const db = open()
    const gone = (pid: number) => async () =>
      (await other.query('SELECT FROM pg_stat_activity WHERE pid = $1', [pid])).rows.length === 0
    const work = db.withTransaction(async (tx) => {
      const heard = driver === 'pg' ? once(tx as EventEmitter, 'error') : undefined
      await sqlOf(tx).query('INSERT INTO orders VALUES (1)')
      // The last that it hears: before it, a busy machine could take longer than this limit.
      const { rows } = await sqlOf(tx).query(
        `SELECT pg_backend_pid() AS pid, set_config('idle_in_transaction_session_timeout', '100', true)`,
      )
      await eventually('the server to end it', gone(Number(rows[0]!['pid'])))
      await heard
    })
    const error = await fails(work)
    expect(error).toBeInstanceOf(Unavailable)
    const text = /lost inside the transaction, which is rolled back: .*25P03/
    // postgres.js sends COMMIT itself, and tells nobody what it has heard.
    expect(error).toMatchObject(driver === 'pg' ? { message: expect.stringMatching(text) } : { code: 'COMMIT_UNKNOWN' })
    expect((await other.query('SELECT n FROM orders')).rows).toEqual([])
  })

  test.skipIf(driver !== 'pg')(
    'a connection that is lost in one breath with the answer to BEGIN: the same',
    async () => {
      const pool = new pg.Pool({ connectionString: database.url, max: 1 })
      ends.push(() => pool.end())
      // Both are in what the socket brings at once: a busy machine reads late.
      const last = Object.assign(new Error('terminating connection'), { severity: 'FATAL', code: '25P04' })
      pool.on('connect', (client) => {
        const { connection } = client as unknown as { connection: EventEmitter }
        connection.once('readyForQuery', () => connection.emit('errorMessage', last))
      })
      const error = await fails(postgres({ pool }).withTransaction((tx) => sqlOf(tx).query('SELECT 1')))
      expect(error).toBeInstanceOf(Unavailable)
      expect(error.message).toMatch(/lost inside the transaction, which is rolled back: .*25P04/)
    },
  )

  test.each(['COMMIT', '\n end;', { text: 'commit work' }])('%j of the function itself is not sent', async (ends) => {
    // Its answer could be lost like any other, and then it would be wrong to say that all is rolled back.
    const work = open().withTransaction(async (tx) => {
      await sqlOf(tx).query('INSERT INTO orders VALUES (1)')
      await sqlOf(tx).query('SAVEPOINT here')
      await sqlOf(tx).query('ROLLBACK TO here')
      if (typeof ends === 'string') await sqlOf(tx).query(ends)
      else await (driver === 'pg' ? (tx as pg.Client).query(ends) : sqlOf(tx).query(ends.text))
    })
    expect(await fails(work)).toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect((await other.query('SELECT n FROM orders')).rows).toEqual([])
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
