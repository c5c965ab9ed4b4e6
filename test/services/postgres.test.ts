import pg from 'pg'
import { expect, test } from 'vitest'
import { describeWith, freshDatabase, privatePostgres, service } from '../support/services.ts'

async function one(url: string, sql: string): Promise<Record<string, unknown>> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query(sql)).rows[0]
  } finally {
    await client.end()
  }
}

describeWith(['postgres', 'postgres15'], 'PostgreSQL', () => {
  test.each([
    ['postgres', /^18\./],
    ['postgres15', /^15\./],
  ])('%s runs with the settings the tests rely on', async (name, version) => {
    const { url } = service(name)
    expect((await one(url, 'SHOW server_version'))['server_version']).toMatch(version)
    expect(await one(url, 'SHOW wal_level')).toEqual({ wal_level: 'logical' })
    expect(await one(url, 'SHOW max_connections')).toEqual({ max_connections: '200' })
    expect(await one(url, 'SHOW max_prepared_transactions')).toEqual({ max_prepared_transactions: '20' })
    expect(Number(new URL(url).port)).toBeLessThan(32_768)
  })

  test('a fresh database is empty, its own, and gone after drop', async () => {
    const [a, b] = await Promise.all([freshDatabase(), freshDatabase()])
    await one(a.url, 'CREATE TABLE t (id int)')
    expect(await one(b.url, "SELECT to_regclass('t') AS t")).toEqual({ t: null })
    await Promise.all([a.drop(), b.drop()])
    await expect(one(a.url, 'SELECT 1')).rejects.toThrow(/does not exist/)
  })

  test.each(['fast', 'immediate', 'kill'] as const)(
    'a private server keeps what was committed over restart(%s)',
    async (mode) => {
      const server = await privatePostgres()
      // What is stopped by tests is as safe as in production.
      expect(await one(server.url, 'SHOW fsync')).toEqual({ fsync: 'on' })
      await one(server.url, 'CREATE TABLE t AS SELECT 7 AS n')
      const before = server.pid
      await server.restart(mode)
      expect(server.pid).not.toBe(before)
      expect(await one(server.url, 'SELECT n FROM t')).toEqual({ n: 7 })
      await server.end()
      expect(server.pid).toBeNull()
    },
  )

  test('a private server takes settings, and stays down until it is started', async () => {
    const server = await privatePostgres({ version: 'postgres15', settings: { max_connections: '7' } })
    expect(await one(server.url, 'SHOW max_connections')).toEqual({ max_connections: '7' })
    await server.stop('immediate')
    await expect(one(server.url, 'SELECT 1')).rejects.toThrow(/ECONNREFUSED/)
    await server.start()
    expect(await one(server.url, 'SELECT 1 AS up')).toEqual({ up: 1 })
  })
})

describeWith(['pgbouncer'], 'PgBouncer', () => {
  test('gives a fresh database through transaction pooling', async () => {
    const database = await freshDatabase()
    const [a, b] = [database.url, database.through('pgbouncer')].map((url) => new pg.Client({ connectionString: url }))
    await a!.connect()
    await b!.connect()
    await a!.query('CREATE TABLE t AS SELECT 1 AS n')
    expect((await b!.query('SELECT n FROM t')).rows).toEqual([{ n: 1 }])
    // Session state does not follow a client from transaction to transaction: that is what the mode is about.
    await b!.query('BEGIN')
    const inside = (await b!.query('SELECT pg_backend_pid() AS pid')).rows[0].pid
    const other = await one(database.through('pgbouncer'), 'SELECT pg_backend_pid() AS pid')
    await b!.query('COMMIT')
    expect(other['pid']).not.toBe(inside)
    const later = await Promise.all(
      [1, 2].map(() => one(database.through('pgbouncer'), 'SELECT pg_backend_pid() AS pid')),
    )
    expect([inside, other['pid']]).toEqual(expect.arrayContaining(later.map((row) => row['pid'])))
    await Promise.all([a!.end(), b!.end()])
    await database.drop()
  })
})
