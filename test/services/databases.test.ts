import pg from 'pg'
import { afterAll, describe, expect, test } from 'vitest'
import * as databases from '../support/databases.ts'
import { service, without } from '../support/services.ts'

describe.skipIf(without('postgres'))('a database that a test has left', () => {
  const { url } = service('postgres')
  afterAll(() => databases.dropSpare(url))

  async function query(name: string, text: string): Promise<Record<string, unknown>[]> {
    const client = new pg.Client({ connectionString: databases.at(url, name) })
    await client.connect()
    try {
      return (await client.query(text)).rows
    } finally {
      await client.end()
    }
  }

  const which = async (name: string) =>
    (await query(name, 'SELECT oid FROM pg_database WHERE datname = current_database()'))[0]!['oid']

  /** Whether the next test gets the same one. */
  async function usedAgain(left: string): Promise<boolean> {
    const name = await databases.make(url)
    const before = await which(name)
    await query(name, left)
    await databases.giveBack(url, name)
    const next = await databases.make(url)
    expect(next).not.toBe(name)
    const again = (await which(next)) === before
    const names = await query(
      next,
      `SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY nspname`,
    )
    expect(names).toMatchObject([{ nspname: 'information_schema' }, { nspname: 'public' }])
    expect(names[1]!['nspacl']).toBe('{pg_database_owner=UC/pg_database_owner,=U/pg_database_owner}')
    await databases.drop(url, next)
    return again
  }

  const here = (text: string) => `DO $$ BEGIN EXECUTE format('${text}', current_database()); END $$`

  test.each([
    ['tables and types', 'CREATE TABLE t (n int); CREATE SCHEMA s; CREATE TYPE s.c AS ENUM ()'],
    ['a schema public of its own', 'REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public RENAME TO mine'],
  ])('is used again without its %s', async (_, left) => {
    expect(await usedAgain(left)).toBe(true)
  })

  test.each([
    ['its settings', here('ALTER DATABASE %I SET lock_timeout = 1')],
    ['settings of a role in it', here('ALTER ROLE CURRENT_USER IN DATABASE %I SET lock_timeout = 1')],
    ['its rights', here('REVOKE CONNECT ON DATABASE %I FROM PUBLIC')],
    ['default rights', 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC'],
    ['a large object', 'SELECT lo_create(0)'],
    ['a publication', 'CREATE PUBLICATION all_of_it FOR ALL TABLES'],
    [
      'an event trigger',
      `CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
        CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION e()`,
    ],
  ])('is dropped for what no schema holds: %s', async (_, left) => {
    expect(await usedAgain(left)).toBe(false)
  })
})
