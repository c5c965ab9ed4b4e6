import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { recognisers, refusePool, sqlOf } from '../../../src/drivers/sql/database.ts'
import { numberArray, textArray } from '../../../src/drivers/sql/sql.ts'
import { freshPGlite } from '../../support/pglite.ts'
import { type FreshDatabase, freshDatabase, without } from '../../support/services.ts'

const refused = (instead: string) =>
  expect.objectContaining({ code: 'NOT_A_TRANSACTION', message: expect.stringContaining(instead) })

describe.skipIf(without('postgres'))("the caller's own transaction", () => {
  let database: FreshDatabase
  beforeAll(async () => {
    database = await freshDatabase()
  })
  afterAll(() => database?.drop())

  test('of pg: a client within BEGIN, not without, and not the pool', async () => {
    const pool = new pg.Pool({ connectionString: database.url })
    const client = await pool.connect()
    expect(() => refusePool(pool)).toThrow(refused('take a client'))
    await client.query('SELECT 1')
    expect(() => refusePool(client)).toThrow(refused('BEGIN first'))
    await client.query('BEGIN')
    refusePool(client)
    const result = await sqlOf(client).query('SELECT $1::text AS a', ['x'])
    expect(result).toEqual({ rows: [{ a: 'x' }], count: 1, command: 'SELECT' })
    await client.query('ROLLBACK')
    client.release()
    await pool.end()
  })

  test('of postgres.js: the sql of begin(), not the one it was called on', async () => {
    const root = postgres(database.url, { max: 1 })
    expect(() => refusePool(root)).toThrow(refused('sql.begin()'))
    await root.begin(async (tx) => {
      refusePool(tx)
      const result = await sqlOf(tx).query('SELECT $1::text AS a', ['x'])
      expect([...result.rows]).toEqual([{ a: 'x' }])
      expect(result).toMatchObject({ count: 1, command: 'SELECT' })
    })
    await root.end()
  })
})

test('of PGlite: the tx of transaction(), not the instance', async () => {
  const instance = await freshPGlite()
  expect(() => refusePool(instance)).toThrow(refused('transaction()'))
  await instance.transaction(async (tx) => {
    refusePool(tx)
    expect(await sqlOf(tx).query('SELECT $1::text AS a', ['x'])).toMatchObject({ rows: [{ a: 'x' }], count: 1 })
  })
  await instance.close()
})

test('anything that runs SQL', async () => {
  const calls: unknown[] = []
  const answers = [
    [{ a: 1 }],
    { rows: [{ a: 1 }] },
    { rows: [], rowCount: 3 },
    { rows: [], affectedRows: 2 },
    { rows: [], count: 1 },
  ]
  const counts: number[] = []
  for (const answer of answers) {
    const run = async (...args: unknown[]) => {
      calls.push(args)
      return answer
    }
    counts.push((await sqlOf(run).query('SELECT 1', [1])).count, (await sqlOf({ query: run }).query('SELECT 1')).count)
  }
  expect(counts).toEqual([1, 1, 1, 1, 3, 3, 2, 2, 1, 1])
  expect(calls[0]).toEqual(['SELECT 1', [1]])
  expect(calls[1]).toEqual(['SELECT 1', []])
  await expect(sqlOf(async () => 'ok').query('SELECT 1')).rejects.toMatchObject({ code: 'BAD_DRIVER' })
})

/** Shapes of TypeORM 0.3, Sequelize 6, Knex 3, Prisma 7, Kysely, Drizzle and pg-promise, as far as they are looked at. */
describe('other libraries', () => {
  const run = async () => []
  const runner = (isTransactionActive: boolean) => ({ query: run, startTransaction: run, isTransactionActive })
  const manager = (queryRunner: unknown) => ({ query: run, transaction: run, getRepository: run, queryRunner })
  const knexOf = (isTransaction: boolean | undefined, more = {}) =>
    Object.assign(() => ({}), { raw: run, transaction: run, client: {}, isTransaction, ...more })
  const kysely = (isTransaction: boolean) => ({ executeQuery: run, selectFrom: run, transaction: run, isTransaction })

  test.each<[string, unknown]>([
    ['a TypeORM DataSource', { query: run, createQueryRunner: run, transaction: run, manager: manager(undefined) }],
    ['a TypeORM EntityManager', manager(undefined)],
    ['a TypeORM EntityManager', manager(runner(false))],
    ['a TypeORM QueryRunner', { ...runner(false), manager: {} }],
    ['a Sequelize instance', { query: run, transaction: run, define: run }],
    ['a Knex instance', knexOf(undefined)],
    ['a Knex instance', knexOf(false)],
    ['a Prisma client', { $queryRawUnsafe: run, $transaction: run, $connect: run }],
    ['a Kysely instance', kysely(false)],
    ['a Drizzle database', { execute: run, transaction: run, select: run, query: {}, $client: {} }],
    ['a pg-promise database', { query: run, tx: run, task: run, connect: run }],
    ['a pg-promise database or task', { query: run, tx: run, task: run, ctx: { inTransaction: false } }],
  ])('%s is no transaction', (name, given) => {
    expect(() => refusePool(given)).toThrow(refused(name))
  })

  test('their transactions pass', () => {
    refusePool(manager(runner(true)))
    refusePool({ ...runner(true), manager: {} })
    refusePool(knexOf(true))
    refusePool({ $queryRawUnsafe: run })
    refusePool({ query: run, tx: run, task: run, ctx: { inTransaction: true } })
    refusePool({ query: run })
    refusePool(async () => [])
  })

  test('SQL through them: Knex counts its parameters by ?, Sequelize runs by its root, Prisma spreads them', async () => {
    const calls: unknown[] = []
    const say =
      (answer: unknown) =>
      async (...args: unknown[]) => {
        calls.push(args)
        return answer
      }
    const rows = [{ a: 1 }]
    const trx = knexOf(true, { raw: say({ rows, rowCount: 1 }), commit: run, rollback: run })
    expect(await sqlOf(trx).query('SELECT $2::text, $1, $2', ['x', 'y'])).toMatchObject({ rows, count: 1 })
    const t = { commit: run, rollback: run, sequelize: { query: say([rows, {}]), define: run } }
    expect(await sqlOf(t).query('SELECT $1', ['x'])).toMatchObject({ rows, count: 1 })
    expect(await sqlOf({ $queryRawUnsafe: say(rows) }).query('SELECT $1', ['x'])).toMatchObject({ rows, count: 1 })
    expect(calls).toEqual([
      ['SELECT ?::text, ?, ?', ['y', 'x', 'y']],
      ['SELECT $1', { bind: ['x'], transaction: t }],
      ['SELECT $1', 'x'],
    ])
  })
})

test('what runs none is refused, and what would do is named', () => {
  for (const wrong of [undefined, null, 1, 'tx', {}, { unsafe: 1 }]) {
    expect(() => sqlOf(wrong)).toThrow(
      expect.objectContaining({ code: 'INVALID_OPTION', message: expect.stringContaining('query(text, values)') }),
    )
  }
})

test('further libraries are recognised by one more entry', async () => {
  const mark = Symbol('an ORM')
  recognisers.unshift((tx) =>
    tx === mark ? { query: async () => ({ rows: [], count: 7, command: undefined }) } : undefined,
  )
  expect((await sqlOf(mark).query('SELECT 1')).count).toBe(7)
  recognisers.shift()
})

test('arrays as text', () => {
  expect(numberArray([1, '2', 3n])).toBe('{1,2,3}')
  expect(textArray(['a', 'b"c', 'd\\e', null, undefined, '', 'NULL', '{x},'])).toBe(
    '{"a","b\\"c","d\\\\e",NULL,NULL,"","NULL","{x},"}',
  )
})
