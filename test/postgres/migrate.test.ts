import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { telemetry, WaybillError } from '../../src/core/index.ts'
import { databaseOf, sqlOf } from '../../src/drivers/sql/database.ts'
import type { Database, Sql } from '../../src/drivers/sql/sql.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import { type MigrationsOptions, outboxSchema } from '../../src/postgres/migrate-tables.ts'
import { OutboxNames } from '../../src/postgres/names.ts'
import { statements } from '../../src/postgres/statements.ts'
import { describeOn } from '../support/services.ts'
import { catalog, KINDS, type TestDatabase, testDatabase } from './admin-support.ts'

const BOTH: MigrationsOptions = { outbox: 'outbox', inbox: 'processed_messages' }
const ALL: MigrationsOptions = { ...BOTH, tenants: true, dedup: true, archive: true }

/** The same database, with every statement written down, those of transactions too. */
function recording(db: Database): { db: Database; sent: string[] } {
  const sent: string[] = []
  const record = (on: Sql): Sql => ({
    query: (text, values) => {
      sent.push(text)
      return on.query(text, values)
    },
  })
  const wrapped = {
    driver: db.driver,
    single: db.single,
    query: record(db).query,
    connect: db.connect.bind(db),
    transaction: <T>(fn: (tx: unknown) => Promise<T>) => db.transaction((tx) => fn(record(sqlOf(tx)))),
  }
  return { db: wrapped as Database, sent }
}

async function codeOf(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (thrown) => thrown,
  )
  expect(error).toBeInstanceOf(WaybillError)
  return `${(error as WaybillError).code}: ${(error as WaybillError).message}`
}

describeOn(KINDS, 'migrations on %s', (kind) => {
  let t: TestDatabase
  beforeEach(async () => {
    t = await testDatabase(kind)
  })
  afterEach(() => t.end())

  test('create the tables, and change nothing when run again', async () => {
    const migrations = new Migrations(t.db, ALL)
    expect(await migrations.version()).toEqual({ outbox: 0, processed_messages: 0 })
    expect(await migrations.migrate()).toEqual([
      { table: 'outbox', from: 0, to: 4 },
      { table: 'processed_messages', from: 0, to: 2 },
    ])
    const before = await catalog(t)
    // Not even a lock that would keep it waiting for whoever is writing, and others behind it.
    const writer = t.url === '' ? undefined : new pg.Client({ connectionString: t.url })
    await writer?.connect()
    await writer?.query('BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE')
    expect(await migrations.migrate()).toEqual([
      { table: 'outbox', from: 4, to: 4 },
      { table: 'processed_messages', from: 2, to: 2 },
    ])
    await writer?.end()
    expect(await catalog(t)).toEqual(before)
    expect(await migrations.version()).toEqual({ outbox: 4, processed_messages: 2 })
    await migrations.check()
  })

  test('can run in many processes at once', async () => {
    const pools = t.url === '' ? [] : Array.from({ length: 8 }, () => new pg.Pool({ connectionString: t.url, max: 1 }))
    const dbs = pools.length === 0 ? [t.db, t.db] : pools.map((pool) => databaseOf(pool as never) as Database)
    const done = await Promise.all(dbs.map((db) => new Migrations(db, ALL).migrate()))
    await Promise.all(pools.map((pool) => pool.end()))
    expect(done.filter(([outbox]) => outbox!.from === 0)).toHaveLength(1)
    await new Migrations(t.db, ALL).check()
  })

  test.each<[string, MigrationsOptions]>([
    ['plain', BOTH],
    ['everything', ALL],
    ['module', { outbox: 'billing.hrm_outbox', inbox: 'billing.seen', partition: 'month', archive: true }],
  ])('what is printed is what is run: %s', async (_, options) => {
    const { db, sent } = recording(t.db)
    await new Migrations(db, options).migrate()
    const migrations = new Migrations(t.db, options)
    const printed = statements(migrations.sql().up)
    expect(sent.filter((text) => printed.includes(text))).toEqual(printed)
    const made = await catalog(t)
    await t.script(migrations.sql().down)
    expect((await catalog(t)).length).toBeLessThan(made.length / 10)
    await t.script(migrations.sql().up)
    expect(await catalog(t)).toEqual(made)
    await migrations.check()
  })

  test('modules have tables of their own, in schemas of their own', async () => {
    const org = new Migrations(t.db, { outbox: 'org_outbox', inbox: 'org_inbox' })
    const billing = new Migrations(t.db, { outbox: 'billing.hrm_outbox' })
    await org.migrate()
    await billing.migrate()
    await billing.down()
    await org.check()
    expect(await codeOf(billing.check())).toMatch(
      /^NOT_MIGRATED: billing\.hrm_outbox does not exist; check the name, then run db\.migrate\(\)/,
    )
    await org.down()
    const left = await t.query(`SELECT relname FROM pg_class WHERE relnamespace IN
      (SELECT oid FROM pg_namespace WHERE nspname IN ('public', 'billing'))`)
    expect(left).toEqual([])
    await org.down()
  })

  test('a table in use is upgraded in place, with its rows', async () => {
    const [first] = outboxSchema('outbox').versions
    await t.script(`${first};
      CREATE TABLE waybill_schema (name text PRIMARY KEY, version int NOT NULL, options jsonb NOT NULL DEFAULT '{}',
        migrated_at timestamptz NOT NULL DEFAULT clock_timestamp());
      INSERT INTO waybill_schema (name, version) VALUES ('outbox', 1);
      INSERT INTO outbox (event_id, topic, source, event_type, payload, state, published_at)
      SELECT gen_random_uuid(), 'a', '/t', 'x', jsonb_build_object('n', n), CASE WHEN n % 3 = 0 THEN 'published' ELSE 'ready' END,
        CASE WHEN n % 3 = 0 THEN now() END FROM generate_series(1, 1000) AS n`)
    const rows = 'SELECT md5(string_agg(o::text, $1 ORDER BY sequence)) AS sum FROM outbox o'
    const before = await t.query(rows, ['|'])
    const migrations = new Migrations(t.db, { outbox: 'outbox' })
    expect(await codeOf(migrations.check())).toMatch(/^OLD_SCHEMA: outbox is of version 1, and this code needs 4/)
    expect(await migrations.migrate()).toEqual([{ table: 'outbox', from: 1, to: 4 }])
    expect(await t.query(rows, ['|'])).toEqual(before)
    await migrations.check()
    const upgraded = await catalog(t)
    await migrations.down({ discard: 'pending' })
    await migrations.migrate()
    expect(upgraded).toEqual(await catalog(t))
    expect(upgraded.join('\n')).toContain('Do not delete rows by hand')
  })

  test('an index by tenant, ids and an archive only when asked for; what was chosen once stays', async () => {
    const plain = new Migrations(t.db, { outbox: 'outbox' })
    await plain.migrate()
    expect((await catalog(t)).join('\n')).not.toMatch(/INDEX outbox_backlog|outbox_ids|outbox_archive/)
    await t.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload)
      VALUES ('11111111-1111-4111-8111-111111111111', 'a', '/t', 'x', '{}')`)
    const more = new Migrations(t.db, { outbox: 'outbox', tenants: true, dedup: true })
    expect(await codeOf(more.check())).toMatch(/^OLD_SCHEMA: outbox was created without tenants: true; run migrate/)
    await more.migrate()
    await more.check()
    expect((await catalog(t)).join('\n')).toMatch(/INDEX outbox_backlog/)
    expect(await t.query('SELECT event_id FROM outbox_ids')).toHaveLength(1)
    await plain.migrate()
    await more.check()
    const said: string[] = []
    const stop = telemetry.warning.subscribe(({ message }) => said.push(message))
    await plain.check()
    stop()
    // Told once in a process, so only the first kind of server can show it.
    if (kind === 'postgres') expect(said.join()).toMatch(/outbox keeps event ids, .* give dedup: true/)
  })

  test('down refuses while events are pending or dead, unless told so by name; what it prints does too', async () => {
    const migrations = new Migrations(t.db, BOTH)
    await migrations.migrate()
    const insert = (state: string) =>
      t.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, published_at)
        VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', '${state}', now())`)
    for (const state of ['ready', 'ready', 'dead', 'published']) await insert(state)
    const made = await catalog(t)
    const text = await codeOf(migrations.down())
    expect(text).toMatch(/^NOT_EMPTY: outbox holds 3 events that are not published, 0 .* nothing was dropped/)
    expect(text).toContain(`down({ discard: ['pending', 'archive'] })`)
    expect(await codeOf(migrations.down({ discard: 'archive' }))).toMatch(/^NOT_EMPTY/)
    await expect(t.script(migrations.sql().down)).rejects.toThrow(/holds 3 events/)
    expect(await catalog(t)).toEqual(made)
    expect(await codeOf(migrations.down({ discard: 'all' as 'pending' }))).toMatch(
      /down: discard: "all" is not allowed/,
    )
    await t.script(migrations.sql({ discard: 'pending' }).down)
    await migrations.migrate()
    // What is published has arrived: without an archive nobody is asked.
    await insert('published')
    await migrations.down()
    expect(await migrations.version()).toEqual({ outbox: 0, processed_messages: 0 })
  })

  test.each([true, 'files'] as const)('down refuses while events are not archived (%s)', async (archive) => {
    const migrations = new Migrations(t.db, { outbox: 'billing.outbox', archive })
    await migrations.migrate()
    await t.query(`INSERT INTO billing.outbox (event_id, topic, source, event_type, payload, state, published_at)
      VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', 'published', now())`)
    expect(await codeOf(migrations.down())).toMatch(
      /billing.outbox holds 0 .*, 1 that are not archived and 0 in its archive/,
    )
    const admin = new PostgresOutboxAdmin(t.db, new OutboxNames('billing.outbox'), { archive: 'table' })
    if (archive === true) {
      expect(await admin.clean({ retention: 0 })).toBe(1)
      expect(await codeOf(migrations.down())).toMatch(/0 that are not archived and 1 in its archive/)
    }
    await migrations.down({ discard: ['archive'] })
    expect(await migrations.version()).toEqual({ 'billing.outbox': 0 })
  })

  test('a table cannot be turned into partitions', async () => {
    await new Migrations(t.db, { outbox: 'outbox' }).migrate()
    const parted = new Migrations(t.db, { outbox: 'outbox', partition: 'day' })
    expect(await codeOf(parted.migrate())).toMatch(/^INVALID_OPTION: outbox exists without partitions/)
    await new Migrations(t.db, { outbox: 'other', partition: 'week' }).migrate()
    const other = new Migrations(t.db, { outbox: 'other', partition: 'day' })
    expect(await codeOf(other.migrate())).toMatch(/^INVALID_OPTION: other exists with partition: "week"/)
  })

  test('a missing table, one that was dropped by hand, one that is newer', async () => {
    const migrations = new Migrations(t.db, BOTH)
    expect(await codeOf(migrations.check())).toMatch(/^NOT_MIGRATED/)
    await migrations.migrate()
    await t.script('DROP TABLE outbox CASCADE')
    expect(await codeOf(migrations.check())).toMatch(/^NOT_MIGRATED: outbox/)
    expect((await migrations.migrate())[0]).toEqual({ table: 'outbox', from: 0, to: 4 })
    const newer = 90 + KINDS.indexOf(kind)
    await t.query(`UPDATE waybill_schema SET version = ${newer} WHERE name = 'outbox'`)
    const said: string[] = []
    const stop = telemetry.warning.subscribe(({ message }) => said.push(message))
    await migrations.check()
    stop()
    expect(said.join()).toContain(`version ${newer}`)
    expect((await migrations.migrate())[0]).toEqual({ table: 'outbox', from: newer, to: newer })
  })
})

describeOn(['postgres', 'postgres15'], 'roles on %s', (kind) => {
  test('a wrong role and a read-only connection are told so, and nothing is half-done', async () => {
    const t = await testDatabase(kind)
    const role = `r_${Math.random().toString(36).slice(2)}`
    await t.script(`CREATE ROLE ${role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
    const url = new URL(t.url)
    url.username = role
    const stranger = new pg.Pool({ connectionString: url.href })
    const reader = new pg.Pool({ connectionString: t.url, options: '-c default_transaction_read_only=on' })
    try {
      const asStranger = new Migrations(databaseOf(stranger as never) as Database, BOTH)
      expect(await codeOf(asStranger.migrate())).toMatch(/^NO_PERMISSION: this role may not create/)
      const asReader = new Migrations(databaseOf(reader as never) as Database, BOTH)
      expect(await codeOf(asReader.migrate())).toMatch(/^READ_ONLY: this connection is read-only/)
      const migrations = new Migrations(t.db, BOTH)
      expect(await migrations.version()).toEqual({ outbox: 0, processed_messages: 0 })
      await migrations.migrate()
      expect(await codeOf(asStranger.check())).toMatch(
        /^NO_PERMISSION: this role may not use table waybill_schema; grant it what docs\/guides\/postgres-setup\.md lists/,
      )
    } finally {
      await stranger.end()
      await reader.end()
      await t.script(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
      await t.end()
    }
  })
})

test.each([
  'out"box',
  `out'box`,
  'outbox; DROP TABLE x',
  'a.b.c',
  '',
  '1outbox',
  'größe',
  'x'.repeat(80),
  `${'s'.repeat(80)}.outbox`,
])('the table name %j is refused', (outbox) => {
  const db = {} as Database
  expect(() => new Migrations(db, { outbox })).toThrow(expect.objectContaining({ code: 'INVALID_NAME' }))
})

test('unknown options are refused', () => {
  const db = {} as Database
  expect(() => new Migrations(db, { outbox: 'outbox', tenant: true } as MigrationsOptions)).toThrow(
    /did you mean "tenants"/,
  )
  expect(() => new Migrations(db, { outbox: 'outbox', partition: 'year' as 'day' })).toThrow(/year/)
})

test('a server that is too old is refused before anything is sent to it', async () => {
  const sent: string[] = []
  const db = {
    async query(text: string) {
      sent.push(text)
      return { rows: [{ number: '130014' }], count: 1, command: 'SELECT' }
    },
    transaction() {
      throw new Error('nothing may be begun')
    },
  } as unknown as Database
  for (const call of ['migrate', 'check'] as const) {
    const text = await codeOf(new Migrations(db, BOTH)[call]())
    expect(text).toMatch(/^UNSUPPORTED_SERVER: this server is PostgreSQL 13; PostgreSQL 14 or later is needed/)
  }
  expect(sent.every((text) => text.includes('server_version_num'))).toBe(true)
})

test('statements end at semicolons that stand outside of quotes, comments and bodies', () => {
  const body = `DO $x$ BEGIN; 'a' -- ; \n END; $x$`
  expect(statements(`-- first; \nSELECT 'a;''b', ";" ;\n${body};\n\n-- only a comment;\n`)).toEqual([
    `SELECT 'a;''b', ";"`,
    body,
  ])
  expect(statements(' ;; ')).toEqual([])
})
