import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { telemetry, Unavailable } from '../../src/core/index.ts'
import { databaseOf, sqlOf } from '../../src/drivers/sql/database.ts'
import { type FaultProxy, faultProxy } from '../../src/testing/index.ts'
import { type FreshDatabase, freshDatabase, without } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

/** A network that swallows everything, and a pooler that gives every transaction another session. */
describe.skipIf(without('postgres')).each(['pg', 'postgres.js'])('%s on a bad network', (driver) => {
  let database: FreshDatabase
  let proxy: FaultProxy
  beforeAll(async () => {
    database = await freshDatabase()
    const { hostname, port } = new URL(database.url)
    proxy = await faultProxy({ host: hostname, port: Number(port) })
  })
  afterAll(async () => {
    await proxy?.close()
    await database?.drop()
  })

  function open(url: string, max = 3) {
    if (driver === 'pg') {
      const pool = new pg.Pool({ connectionString: url, max })
      return { db: databaseOf(pool), end: () => pool.end() }
    }
    const client = postgres(url, { max, onnotice: () => {}, fetch_types: false })
    return { db: databaseOf(client), end: () => client.end({ timeout: 0.1 }) }
  }

  test('a connection that answers nothing is given up in time, and its user told', async () => {
    const { db, end } = open(proxy.url(database.url))
    const connection = await db.connect({ prepare: true, timeout: 1500 })
    const lost: unknown[] = []
    connection.onLost((error) => lost.push(error))
    proxy.blackHole()
    const began = performance.now()
    await expect(connection.read('one', 'SELECT 1', [])).rejects.toBeInstanceOf(Unavailable)
    expect(performance.now() - began).toBeLessThan(20_000)
    expect(lost).toHaveLength(1)
    await expect(connection.query('SELECT 1')).rejects.toBeInstanceOf(Unavailable)
    await connection.release(true)
    await expect(db.connect({ prepare: true, timeout: 1500 })).rejects.toBeInstanceOf(Unavailable)
    proxy.cut()
    await proxy.restore()
    const again = await db.connect({ prepare: true, timeout: 5000 })
    expect(await again.read('one', 'SELECT 1', [])).toEqual([['1']])
    await again.release()
    await end()
  })

  test('connections that are cut at any moment leave a pool that works', async () => {
    const { db, end } = open(proxy.url(database.url))
    let committed = 0
    for (let round = 0; round < 40; round++) {
      const cutting = sleep(round % 8).then(() => proxy.cut())
      await db
        .transaction(async (tx) => {
          await sqlOf(tx).query('SELECT 1')
          await sqlOf(tx).query('SELECT pg_sleep(0.003)')
        })
        .then(
          () => committed++,
          () => {},
        )
      await cutting
    }
    for (let i = 0; i < 3; i++) await db.transaction((tx) => sqlOf(tx).query('SELECT 1')).catch(() => {})
    expect(await db.transaction(async (tx) => (await sqlOf(tx).query('SELECT 1')).count)).toBe(1)
    expect(committed).toBeLessThan(40)
    await end()
  })

  test('a server that is away is unavailable, at once', async () => {
    const { db, end } = open(proxy.url(database.url))
    await proxy.refuse()
    await expect(db.transaction(async () => {})).rejects.toBeInstanceOf(Unavailable)
    await proxy.restore()
    await db.transaction(async () => {})
    await end()
  })

  test.skipIf(without('pgbouncer'))('behind a pooler nothing is prepared, and listening is refused', async () => {
    const { db, end } = open(database.through('pgbouncer'), 2)
    const connection = await db.connect({ prepare: true, applicationName: 'waybill pooled', timeout: 5000 })
    expect(connection.pooled).toBe(true)
    for (let i = 0; i < 3; i++) expect(await connection.read('one', 'SELECT $1::int', [i])).toEqual([[String(i)]])
    const prepared = await connection.read('prepared', `SELECT count(*) FROM pg_prepared_statements`, [])
    expect(prepared).toEqual([['0']])
    await expect(connection.listen('waybill', () => {})).rejects.toMatchObject({ code: 'LISTEN_UNAVAILABLE' })
    await connection.release()
    await end()
  })
})

describe.skipIf(without('postgres'))('pg', () => {
  test('idle connections that break do not end the process, and are told of', async () => {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url })
    const told: string[] = []
    const stop = telemetry.warning.subscribe(({ where }) => told.push(where))
    const db = databaseOf(pool)
    await db.query('SELECT 1')
    const other = new pg.Client({ connectionString: database.url })
    await other.connect()
    await other.query(
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()',
      [database.name],
    )
    await eventually('it is told', () => told.length > 0)
    stop()
    expect(told).toContain('pg')
    expect((await db.query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }])
    await other.end()
    await pool.end()
    await database.drop()
  })

  test('a connection that remembers something is not given to the next', async () => {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url, max: 1 })
    const db = databaseOf(pool)
    const named = await db.connect({ prepare: true, applicationName: 'waybill named' })
    await named.release()
    const plain = await db.connect({ prepare: true })
    const name = await plain.read('name', `SELECT current_setting('application_name')`, [])
    expect(name).toEqual([['']])
    await plain.release()
    expect(pool.idleCount).toBe(1)
    await pool.end()
    await database.drop()
  })
})
