/**
 * Databases of tests. Making one costs a server a tenth of a second of a processor, emptying one a fraction of that: a
 * test gets one that another test of its file has left, under a new name, so that nobody who knew it gets in.
 */
import { randomBytes } from 'node:crypto'
import pg from 'pg'

/** Empty ones, by the URL of their server. */
const spare = new Map<string, string[]>()

/** The name of a new empty database. */
export async function make(url: string): Promise<string> {
  const left = spare.get(url)?.pop()
  const name = fresh()
  await administer(
    url,
    left === undefined ? `CREATE DATABASE ${name} TEMPLATE template0` : `ALTER DATABASE ${left} RENAME TO ${name}`,
  )
  return name
}

/** Empties it for the next test of this file. Where that cannot be, it is dropped. */
export async function giveBack(url: string, name: string): Promise<void> {
  await administer(url, farewell(name))
  const hidden = fresh()
  try {
    await administer(at(url, name), EMPTIED)
    // Refused while anybody is connected to it.
    await administer(url, `ALTER DATABASE ${name} RENAME TO ${hidden}`)
  } catch {
    return await drop(url, name)
  }
  spare.set(url, [...(spare.get(url) ?? []), hidden])
}

export async function drop(url: string, name: string): Promise<void> {
  await administer(url, farewell(name), `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
}

/** At the end of the file. */
export async function dropSpare(url: string): Promise<void> {
  const names = spare.get(url) ?? []
  spare.delete(url)
  if (names.length) await administer(url, ...names.map((name) => `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`))
}

export function at(url: string, database: string): string {
  const target = new URL(url)
  target.pathname = `/${database}`
  return target.href
}

const fresh = () => `t_${randomBytes(6).toString('hex')}`

/**
 * Waits up to two seconds until everybody has left the database. The `end()` of a pool settles before the
 * server has seen its clients go; a client that is thrown out meanwhile raises an error nobody listens for.
 */
const farewell = (name: string) => `
  DO $$ BEGIN
    FOR i IN 1..40 LOOP
      PERFORM pg_stat_clear_snapshot();
      EXIT WHEN NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = '${name}' AND backend_type = 'client backend');
      PERFORM pg_sleep(0.05);
    END LOOP;
  END $$`

/** All schemas are dropped, and `public` is made as it was. Fails where anything is left that is in no schema. */
const EMPTIED = `
  DO $$ DECLARE one text; BEGIN
    IF EXISTS (SELECT 1 FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid())
      OR EXISTS (SELECT 1 FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
      OR EXISTS (SELECT 1 FROM pg_prepared_xacts WHERE database = current_database())
      OR EXISTS (SELECT 1 FROM pg_database
        WHERE datname = current_database() AND (datacl IS NOT NULL OR datconnlimit <> -1 OR datistemplate))
      OR EXISTS (SELECT 1 FROM pg_extension WHERE extname <> 'plpgsql')
      OR EXISTS (SELECT 1 FROM pg_default_acl)
      OR EXISTS (SELECT 1 FROM pg_replication_slots WHERE database = current_database())
      OR EXISTS (SELECT 1 FROM pg_event_trigger)
      OR EXISTS (SELECT 1 FROM pg_publication)
      OR EXISTS (SELECT 1 FROM pg_subscription)
      OR EXISTS (SELECT 1 FROM pg_largeobject_metadata)
      OR EXISTS (SELECT 1 FROM pg_foreign_data_wrapper)
    THEN RAISE 'this database is not like a new one';
    END IF;
    FOR one IN SELECT nspname FROM pg_namespace
      WHERE nspname !~ '^pg_(toast|temp)' AND nspname NOT IN ('pg_catalog', 'information_schema')
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', one);
    END LOOP;
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    COMMENT ON SCHEMA public IS 'standard public schema';
  END $$`

async function administer(url: string, ...statements: string[]): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {})
  await client.connect()
  try {
    for (const sql of statements) await client.query(sql)
  } finally {
    await client.end()
  }
}
