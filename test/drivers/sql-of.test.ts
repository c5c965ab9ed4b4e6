import { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { recognisers, refusePool, sqlOf } from '../../src/drivers/database.ts'
import { numberArray, textArray } from '../../src/drivers/sql.ts'
import { type FreshDatabase, freshDatabase, without } from '../support/services.ts'

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
  const instance = await PGlite.create()
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
