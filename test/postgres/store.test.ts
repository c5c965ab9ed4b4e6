import { setTimeout as sleep } from 'node:timers/promises'
import type { PGlite, Transaction } from '@electric-sql/pglite'
import pg from 'pg'
import type postgres from 'postgres'
import { afterAll, afterEach, beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { event, type Message, telemetry, Unavailable, type WaybillError } from '../../src/core/index.ts'
import { databaseOf, sqlOf } from '../../src/drivers/sql/database.ts'
import { PostgresUnitOfWork, postgres as postgresStore } from '../../src/postgres/store.ts'
import { EventCollector, enqueueEvents, saveEvents } from '../../src/store/entity.ts'
import { drivers, type Opened } from '../drivers/drivers.ts'

const fails = (work: Promise<unknown>): Promise<WaybillError> =>
  work.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )

describe.each(drivers)('unit of work on $name', ({ open }) => {
  let opened: Opened
  let unit: PostgresUnitOfWork
  beforeAll(async () => {
    opened = await open()
    unit = new PostgresUnitOfWork(opened.db)
    await opened.sql('CREATE TABLE things (name text PRIMARY KEY)')
  })
  afterEach(() => opened.sql('DELETE FROM things'))
  afterAll(() => opened?.close())

  const names = async () => (await opened.sql('SELECT name FROM things ORDER BY name')).map(({ name }) => name)
  /** As an adapter does it, deep inside, with no transaction in its hands. */
  const add = (name: string) => sqlOf(unit.required()).query('INSERT INTO things VALUES ($1)', [name])

  test('the transaction is current inside and nowhere else', async () => {
    expect(unit.current()).toBeUndefined()
    const answer = await unit.withTransaction(async (tx) => {
      expect(unit.current()).toBe(tx)
      await add('a')
      expect(unit.executor('pool')).toBe(tx)
      return 'answer'
    })
    expect(answer).toBe('answer')
    expect(unit.current()).toBeUndefined()
    expect(unit.executor('pool')).toBe('pool')
    expect(await names()).toEqual(['a'])
  })

  test('what needs one says so when there is none', async () => {
    for (const call of [() => unit.required(), () => unit.executor(), () => unit.afterCommit(() => {})]) {
      expect(call).toThrow(expect.objectContaining({ code: 'NO_TRANSACTION' }))
    }
  })

  test('inner calls join: one transaction, committed at the end', async () => {
    await unit.withTransaction(async (outer) => {
      await add('a')
      await unit.withTransaction(async (inner) => {
        expect(inner).toBe(outer)
        await add('b')
      })
      if (!opened.db.single) expect(await names()).toEqual([])
    })
    expect(await names()).toEqual(['a', 'b'])
  })

  test('an inner failure rolls back the whole, even when it is caught', async () => {
    const inner = new Error('inner')
    const work = unit.withTransaction(async () => {
      await add('a')
      await unit
        .withTransaction(async () => {
          throw inner
        })
        .catch(() => {})
      await add('b')
    })
    expect(await fails(work)).toMatchObject({ code: 'ROLLBACK_ONLY', cause: inner })
    expect(await names()).toEqual([])
  })

  test('an inner failure that is not caught is itself the error', async () => {
    const inner = new Error('inner')
    const work = unit.withTransaction(() => unit.withTransaction(() => Promise.reject(inner)))
    expect(await fails(work)).toBe(inner)
  })

  test('inner calls at once all join, and nobody is cut in two by the failure of one', async () => {
    const finished: string[] = []
    const work = unit.withTransaction(async () => {
      await Promise.all([
        unit.withTransaction(async () => {
          await add('a')
          await sleep(30)
          await add('b')
          finished.push('slow')
        }),
        unit.withTransaction(async () => {
          throw new Error('quick')
        }),
      ])
    })
    expect((await fails(work)).message).toBe('quick')
    expect(finished).toEqual(['slow'])
    expect(await names()).toEqual([])

    await unit.withTransaction(async () => {
      await Promise.all(['c', 'd', 'e'].map((name) => unit.withTransaction(() => add(name))))
    })
    expect(await names()).toEqual(['c', 'd', 'e'])
  })

  test('an inner call that nobody waits for is still part of it', async () => {
    await unit.withTransaction(async () => {
      void unit.withTransaction(async () => {
        await sleep(20)
        await add('late')
      })
    })
    expect(await names()).toEqual(['late'])
  })

  test('separate calls at once are separate transactions', async () => {
    const results = await Promise.allSettled(
      ['a', 'b', 'a'].map((name) => unit.withTransaction(async () => void (await add(name)))),
    )
    expect(results.filter(({ status }) => status === 'rejected')).toHaveLength(1)
    expect(await names()).toEqual(['a', 'b'])
  })

  test('work that outlives its transaction cannot use it, and can begin another', async () => {
    let late: Promise<unknown> | undefined
    let leaked: unknown
    await unit.withTransaction(async (tx) => {
      leaked = tx
      late = sleep(30).then(async () => {
        expect(unit.current()).toBeUndefined()
        expect(() => unit.required()).toThrow('has ended')
        await unit.withTransaction(async (tx) => {
          expect(tx).not.toBe(leaked)
          await add('second')
        })
      })
    })
    await late
    await expect(sqlOf(leaked).query(`INSERT INTO things VALUES ('leaked')`)).rejects.toThrow()
    expect(await names()).toEqual(['second'])
  })

  test('hooks run after the commit, in their order, and never after a rollback', async () => {
    const ran: string[] = []
    const seen: unknown[] = []
    await unit.withTransaction(async () => {
      await add('a')
      unit.afterCommit(() => ran.push(unit.current() === undefined ? 'first' : 'inside'))
      await unit.withTransaction(async () => unit.afterCommit(() => ran.push('second')))
      await sleep(5)
      seen.push(...ran)
    })
    expect(seen).toEqual([])
    expect(ran).toEqual(['first', 'second'])
    const work = unit.withTransaction(async () => {
      unit.afterCommit(() => ran.push('never'))
      throw new Error('no')
    })
    await fails(work)
    const aborted = unit.withTransaction(async () => {
      unit.afterCommit(() => ran.push('never'))
      await add('a').catch(() => {})
    })
    expect((await fails(aborted)).code).toBe('ROLLED_BACK')
    expect(ran).toEqual(['first', 'second'])
  })

  test('a failing hook is told and thrown at nobody', async () => {
    const told: string[] = []
    const stop = telemetry.warning.subscribe(({ where, message }) => told.push(`${where}: ${message}`))
    const value = await unit.withTransaction(async () => {
      unit.afterCommit(() => {
        throw new Error('one')
      })
      unit.afterCommit((async () => {
        throw new Error('two')
      }) as () => void)
      return 'value'
    })
    await sleep(1)
    stop()
    expect(value).toBe('value')
    expect(told).toEqual(['afterCommit: a hook failed: Error: one', 'afterCommit: a hook failed: Error: two'])
  })

  describe('events of an entity', () => {
    const Renamed = event<{ to: string }>('thing.renamed')
    class Thing extends EventCollector {
      rename(to: string): void {
        this.record(Renamed({ to }))
      }
    }
    /** An outbox as small as can be. */
    const outbox = {
      enqueue: async (tx: unknown, events: readonly Message[]) => {
        for (const { id } of events) {
          await sqlOf(tx).query('INSERT INTO things VALUES ($1) ON CONFLICT DO NOTHING', [id])
        }
        return []
      },
    }

    test('are kept by a rollback and forgotten by the commit', async () => {
      const thing = new Thing()
      thing.rename('a')
      const [first] = thing.recorded
      await fails(
        unit.withTransaction(async () => {
          await saveEvents(unit, outbox, thing)
          throw new Error('no')
        }),
      )
      expect(thing.recorded).toEqual([first])
      expect(await names()).toEqual([])
      await unit.withTransaction(async () => {
        await saveEvents(unit, outbox, thing)
        await saveEvents(unit, outbox, thing)
        expect(thing.recorded).toEqual([first])
        thing.rename('b')
      })
      expect(thing.recorded.map(({ data }) => data)).toEqual([{ to: 'b' }])
      expect(await names()).toEqual([first!.id])
    })

    test('need a transaction, or are cleared by hand in one of your own', async () => {
      const thing = new Thing()
      thing.rename('a')
      expect(await fails(saveEvents(unit, outbox, thing))).toMatchObject({ code: 'NO_TRANSACTION' })
      const clear = await opened.db.transaction((tx) => enqueueEvents(tx, outbox, thing))
      expect(thing.recorded).toHaveLength(1)
      clear()
      expect(thing.recorded).toEqual([])
      expect(await names()).toHaveLength(1)
    })
  })
})

test('a database that is away is unavailable: nobody is to blame', async () => {
  const pool = new pg.Pool({ connectionString: 'postgres://nobody@127.0.0.1:1/nothing' })
  const unit = new PostgresUnitOfWork(databaseOf(pool))
  expect(await fails(unit.withTransaction(async () => {}))).toBeInstanceOf(Unavailable)
  await pool.end()
})

test.each([
  [
    '127.0.0.1',
    'the database at 127.0.0.1:1 cannot be reached (ECONNREFUSED); is it running, and are host and port right?',
  ],
  ['localhost', ':1 cannot be reached (ECONNREFUSED)'],
])('migrate() names the place where no database is: %s', async (host, text) => {
  const pool = new pg.Pool({ connectionString: `postgres://nobody@${host}:1/nothing` })
  const migrated = postgresStore({ pool }).migrate()
  await expect(migrated).rejects.toMatchObject({ code: 'UNAVAILABLE', message: expect.stringContaining(text) })
  await pool.end()
})

test("the transaction has the driver's own type", () => {
  const ofPg = (pool: pg.Pool) => new PostgresUnitOfWork(databaseOf(pool))
  const ofPostgresJs = (sql: postgres.Sql) => new PostgresUnitOfWork(databaseOf(sql))
  const ofPglite = (instance: PGlite) => new PostgresUnitOfWork(databaseOf(instance))
  expectTypeOf(ofPg).returns.toEqualTypeOf<PostgresUnitOfWork<pg.PoolClient>>()
  expectTypeOf(ofPostgresJs).returns.toEqualTypeOf<PostgresUnitOfWork<postgres.TransactionSql>>()
  expectTypeOf(ofPglite).returns.toEqualTypeOf<PostgresUnitOfWork<Transaction>>()
})
