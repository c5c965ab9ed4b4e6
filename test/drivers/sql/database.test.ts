import { type EventEmitter, once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Unavailable, type WaybillError } from '../../../src/core/index.ts'
import { databaseOf, sqlOf } from '../../../src/drivers/sql/database.ts'
import type { Connection } from '../../../src/drivers/sql/sql.ts'
import { eventually } from '../../support/wait.ts'
import { drivers, type Opened } from '../drivers.ts'

const OPTIONS = { prepare: true, timeout: 10_000 }

describe.each(drivers)('$name', ({ name, open, single }) => {
  let opened: Opened
  let connection: Connection
  beforeAll(async () => {
    opened = await open()
    await opened.sql('CREATE TABLE things (id bigint PRIMARY KEY, name text)')
    connection = await opened.db.connect(OPTIONS)
  })
  afterAll(async () => {
    await connection?.release()
    await opened?.close()
  })

  const begin = async (fn: (tx: unknown) => Promise<unknown>) => opened.db.transaction(fn)
  const names = async () => (await opened.sql('SELECT name FROM things ORDER BY id')).map(({ name }) => name)
  const fails = (work: Promise<unknown>): Promise<WaybillError> =>
    work.then(
      () => expect.unreachable('it did not fail'),
      (error) => error,
    )

  test('reads text, whatever the type', async () => {
    const text = `SELECT 9007199254740993::bigint, true, 1.50::numeric, '{"b":1,"a":2}'::json, '\\x00ff'::bytea, NULL,
      'ü'::text, ARRAY[1,2], gen_random_uuid() IS NOT NULL, $1::text`
    const [row] = await connection.read('types', text, ['x'])
    expect([...row!]).toEqual([
      '9007199254740993',
      't',
      '1.50',
      '{"b":1,"a":2}',
      expect.anything(),
      null,
      'ü',
      '{1,2}',
      't',
      'x',
    ])
    expect([...(row![4] as Uint8Array)]).toEqual([0, 255])
    expect(await connection.read('types', text, ['y'])).toHaveLength(1)
  })

  test('takes every kind of value', async () => {
    const when = new Date('2024-05-06T07:08:09.123Z')
    const text = `SELECT $1::text, $2::int, $3::bigint, $4::boolean, $5::text, $6::bytea, $7::timestamptz = '2024-05-06T07:08:09.123Z'`
    const [row] = await connection.read('values', text, [
      'a"\\',
      7,
      2n ** 62n,
      true,
      null,
      Buffer.from([1, 0, 2]),
      when,
    ])
    expect([row![0], row![1], row![2], row![3], row![4], row![6]]).toEqual([
      'a"\\',
      '7',
      '4611686018427387904',
      't',
      null,
      't',
    ])
    expect([...(row![5] as Uint8Array)]).toEqual([1, 0, 2])
  })

  test('counts what it changed, and prepares two texts under one name', async () => {
    expect(await connection.run('put', 'INSERT INTO things VALUES ($1, $2), (2, $2)', [1, 'one'])).toBe(2)
    expect(await connection.run('put', 'DELETE FROM things WHERE name = $1', ['one'])).toBe(2)
    expect((await connection.query('UPDATE things SET name = name')).count).toBe(0)
    expect((await opened.db.query('SELECT 1 AS one WHERE $1', [true])).rows).toEqual([{ one: 1 }])
  })

  test('hears notifications until it is released', async () => {
    const listener = await opened.db.connect(OPTIONS)
    let heard = 0
    await listener.listen('A Channel', () => heard++)
    await opened.sql(`SELECT pg_notify('A Channel', '')`)
    await opened.sql(`SELECT pg_notify('another', '')`)
    await holdsSoon(() => heard === 1)
    await listener.release()
    await opened.sql(`SELECT pg_notify('A Channel', '')`)
    await sleep(20)
    expect(heard).toBe(1)
    await expect(listener.query('SELECT 1')).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    for (const wrong of ['', 'x'.repeat(64), 'a"b']) {
      expect((await fails(connection.listen(wrong, () => {}))).code).toBe('INVALID_NAME')
    }
  })

  test('commits what its function did, and answers what it returned', async () => {
    const value = await begin(async (tx) => {
      const { count } = await sqlOf(tx).query('INSERT INTO things VALUES ($1, $2)', [10, 'kept'])
      return count
    })
    expect(value).toBe(1)
    expect(await names()).toEqual(['kept'])
  })

  test('rolls back when its function throws, and throws that', async () => {
    const mine = new Error('mine')
    const work = begin(async (tx) => {
      await sqlOf(tx).query('INSERT INTO things VALUES (11)')
      throw mine
    })
    expect(await fails(work)).toBe(mine)
    expect(await names()).toEqual(['kept'])
  })

  // postgres.js names it only with its option `debug`, and frames of PGlite's own fill the stack.
  test.skipIf(!/^pg\b/.test(name))('the stack of a statement that fails names who sent it', async () => {
    const billed = async (tx: unknown) => {
      await sqlOf(tx).query('INSERT INTO nowhere VALUES (1)')
    }
    expect((await fails(begin(billed))).stack).toMatch(/billed .*database\.test\.ts:\d+/)
  })

  test('COMMIT answered with ROLLBACK is an error', async () => {
    const work = begin(async (tx) => {
      await sqlOf(tx).query('INSERT INTO things VALUES (12)')
      await sqlOf(tx)
        .query('INSERT INTO things VALUES (12)')
        .catch(() => {})
      await sqlOf(tx)
        .query('SELECT 1')
        .catch(() => {})
      return 'all is well'
    })
    expect(await fails(work)).toMatchObject({ code: 'ROLLED_BACK', cause: { code: '23505' } })
    expect(await names()).toEqual(['kept'])
  })

  test('a savepoint makes a caught error harmless', async () => {
    const doubled = 'INSERT INTO things VALUES (10)'
    await begin(async (tx) => {
      // postgres.js has its own, and takes every failure outside of them to heart.
      const { savepoint } = tx as { savepoint?: (fn: (inner: unknown) => Promise<unknown>) => Promise<unknown> }
      const sql = sqlOf(tx)
      if (savepoint === undefined) {
        await sql.query('SAVEPOINT a')
        await sql.query(doubled).catch(() => {})
        await sql.query('ROLLBACK TO SAVEPOINT a')
      } else {
        expect(await fails(savepoint((inner) => sqlOf(inner).query(doubled)))).toMatchObject({ code: '23505' })
      }
      await sql.query(`UPDATE things SET name = 'kept' WHERE id = 10`)
    })
  })

  test('what COMMIT itself refuses is that error', async () => {
    await opened.sql('ALTER TABLE things ADD CONSTRAINT later UNIQUE (name) DEFERRABLE INITIALLY DEFERRED')
    const work = begin(async (tx) => {
      await sqlOf(tx).query(`INSERT INTO things VALUES (13, 'kept')`)
    })
    expect(await fails(work)).toMatchObject({ code: '23505' })
    await opened.sql('ALTER TABLE things DROP CONSTRAINT later')
    await begin(async () => {})
  })

  test.each(['ROLLBACK', 'COMMIT'])('%s inside the function is an error', async (statement) => {
    const given = single && statement === 'ROLLBACK'
    const work = begin((tx) => (given ? (tx as { rollback(): Promise<void> }).rollback() : sqlOf(tx).query(statement)))
    expect((await fails(work)).code).toBe('TRANSACTION_ENDED')
    await begin(async () => {})
  })

  test('nothing passes through a transaction that has ended', async () => {
    let leaked: unknown
    await begin(async (tx) => {
      leaked = tx
    })
    const late = fails(sqlOf(leaked).query(`INSERT INTO things VALUES (14, 'late')`))
    if (!single) expect((await late).code).toBe('TRANSACTION_ENDED')
    else expect((await late).message).toBe('Transaction is closed')
    expect(await names()).toEqual(['kept'])
  })

  test('many at once', async () => {
    await Promise.all(Array.from({ length: 30 }, () => begin((tx) => sqlOf(tx).query('SELECT pg_sleep(0.001)'))))
  })

  describe.skipIf(single)('when the connection breaks', () => {
    const kill = (pid: unknown) => opened.sql('SELECT pg_terminate_backend($1)', [pid])
    const pidOf = async (sql: ReturnType<typeof sqlOf>) =>
      (await sql.query('SELECT pg_backend_pid() AS pid')).rows[0]!['pid']

    test('tells its user once, and sends nothing more', async () => {
      const mortal = await opened.db.connect({ ...OPTIONS, applicationName: 'waybill mortal' })
      const told: unknown[] = []
      mortal.onLost((error) => told.push(error))
      const [shown] = await opened.sql('SELECT pid FROM pg_stat_activity WHERE application_name = $1', [
        'waybill mortal',
      ])
      expect(shown!['pid']).toBe(await pidOf(mortal))
      await kill(shown!['pid'])
      await holdsSoon(() => told.length === 1)
      await expect(mortal.query('SELECT 1')).rejects.toBeInstanceOf(Unavailable)
      await mortal.release(true)
      expect(told).toHaveLength(1)
    })

    test('what was under way fails', async () => {
      const mortal = await opened.db.connect(OPTIONS)
      const pid = await pidOf(mortal)
      const asleep = fails(mortal.query('SELECT pg_sleep(30)'))
      await kill(pid)
      await asleep
      await mortal.release()
    })

    test('the error of the function stays the one that is thrown', async () => {
      const mine = new Error('mine') as Error & { suppressed?: unknown }
      const work = begin(async (tx) => {
        const sql = sqlOf(tx)
        await sql.query(`INSERT INTO things VALUES (15, 'broken')`)
        await kill(await pidOf(sql))
        await sql.query('SELECT 1').catch(() => {})
        throw mine
      })
      expect(await fails(work)).toBe(mine)
      expect(mine.suppressed).toBeInstanceOf(Error)
      expect(await names()).toEqual(['kept'])
      await begin(async () => {})
    })

    const tells = name.startsWith('pg')

    test('a connection that is lost before COMMIT: told as rolled back where that is known', async () => {
      const work = begin(async (tx) => {
        // postgres.js tells nobody, and sends its COMMIT itself.
        const heard = tells ? once(tx as EventEmitter, 'error') : sleep(30)
        await kill(await pidOf(sqlOf(tx)))
        await heard
      })
      expect((await fails(work)).code).toBe(tells ? 'UNAVAILABLE' : 'COMMIT_UNKNOWN')
      for (let i = 0; i < 20; i++) await begin(async (tx) => sqlOf(tx).query('SELECT 1'))
    })
  })
})

test('a pool tells its size, given or not', async () => {
  const pools = [new pg.Pool({ max: 3 }), new pg.Pool(), new pg.Pool({ max: '4' as never })]
  expect(pools.map((pool) => databaseOf(pool).size)).toEqual([3, 10, 4])
  expect(databaseOf(postgres('postgres://127.0.0.1:1/none', { max: 5 })).size).toBe(5)
  expect(databaseOf(postgres('postgres://127.0.0.1:1/none')).size).toBe(10)
})

test('what is no database is refused, and what is one is named', () => {
  for (const wrong of [undefined, null, 'postgres://', {}, () => {}, new pg.Client()]) {
    expect(() => databaseOf(wrong)).toThrow(
      expect.objectContaining({ code: 'INVALID_OPTION', message: expect.stringContaining('give a pg Pool') }),
    )
  }
})

const holdsSoon = (holds: () => boolean) => eventually(holds.toString(), holds)
