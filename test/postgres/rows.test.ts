import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { sqlOf } from '../../src/drivers/sql/database.ts'
import type { Database, Sql } from '../../src/drivers/sql/sql.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { postgres } from '../../src/postgres/index.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import { outboxSchema } from '../../src/postgres/migrate-tables.ts'
import { PostgresOutbox } from '../../src/postgres/outbox.ts'
import { collector } from '../../src/testing/index.ts'
import { describeOn } from '../support/services.ts'
import { catalog, KINDS, type TestDatabase, type TestOutbox, testDatabase, testOutbox } from './admin-support.ts'

const PLAIN = `INSERT INTO outbox (event_id, topic, source, event_type, payload, key)`
const STATES = ['ready', 'scheduled', 'retrying', 'leased', 'held', 'published', 'dead']
const TIMED = ['scheduled', 'retrying', 'leased']
const LONG_KEY = 'k'.repeat(1025)

describeOn(KINDS, 'what a row may be, on %s', (kind) => {
  let t: TestOutbox
  beforeEach(async () => {
    t = await testOutbox(kind)
  })
  afterEach(() => t.end())

  test('a row that no relay could find or settle is refused, all others are taken', async () => {
    const insert = (columns: Record<string, string>) => {
      const row = {
        event_id: 'gen_random_uuid()',
        topic: `'a'`,
        source: `'/t'`,
        event_type: `'x'`,
        payload: `'{}'`,
        ...columns,
      }
      return t.query(`INSERT INTO outbox (${Object.keys(row).join(', ')}) VALUES (${Object.values(row).join(', ')})`)
    }
    const refused: Record<string, string>[] = [
      { state: `'sent'` },
      { state: `''` },
      { payload: 'NULL' },
      { payload_bytes: `'\\x00'` },
      { attempts: '-5' },
      { key: `'${LONG_KEY}'` },
      { key: `repeat('ü', 513)` },
      { state: `'held'` },
      ...TIMED.map((state) => ({ state: `'${state}'` })),
    ]
    for (const row of refused) {
      await expect(insert(row), JSON.stringify(row)).rejects.toThrow(/outbox_row/)
    }
    for (const state of STATES) {
      await insert({ state: `'${state}'`, available_at: TIMED.includes(state) ? 'now()' : 'NULL', key: `'k'` })
    }
    await insert({ key: `repeat('ü', 512)` })
    await insert({ payload: 'NULL', payload_bytes: `'\\x00'` })
    expect(await t.query('SELECT count(*)::int AS n FROM outbox')).toEqual([{ n: STATES.length + 2 }])
    await expect(t.query('UPDATE outbox SET attempts = -1')).rejects.toThrow(/outbox_row/)
    await expect(t.query(`UPDATE outbox SET state = 'sent'`)).rejects.toThrow(/outbox_row/)
  })
})

/** A table of an older version, as that version's own migration made it. */
async function olderOutbox(t: TestDatabase, version: number, options: { tenants?: boolean } = {}): Promise<void> {
  const { versions } = outboxSchema('outbox')
  const tenants = options.tenants ? 'CREATE INDEX outbox_tenant ON outbox (tenant_id, sequence);' : ''
  const timers = `DROP INDEX outbox_timed; CREATE INDEX outbox_timer ON outbox (available_at, sequence) INCLUDE (state)
    WHERE state IN ('scheduled', 'retrying', 'leased');`
  await t.script(`${versions.slice(0, version).join(';\n')};
    ${version < 4 ? timers : ''}
    ${tenants}
    CREATE TABLE waybill_schema (name text PRIMARY KEY, version int NOT NULL, options jsonb NOT NULL DEFAULT '{}',
      migrated_at timestamptz NOT NULL DEFAULT clock_timestamp());
    INSERT INTO waybill_schema (name, version, options)
      VALUES ('outbox', ${version}, '${JSON.stringify({ tenants: false, dedup: false, partition: false, archive: false, ...options })}')`)
}

describeOn(KINDS, 'version 3 on %s', (kind) => {
  let t: TestDatabase
  beforeEach(async () => {
    t = await testDatabase(kind)
  })
  afterEach(() => t.end())

  test.each([1, 2])('comes from version %i, with sound rows as they were and odd ones mended', async (version) => {
    await olderOutbox(t, version)
    const values = (more: string) => `gen_random_uuid(), 'a', '/t', 'x', '{}', ${more}`
    for (const state of STATES) {
      await t.query(`${PLAIN.replace(')', ', state, available_at, published_at, attempts)')}
        VALUES (${values(`'sound', '${state}', ${TIMED.includes(state) ? 'now()' : 'NULL'}, ${state === 'published' ? 'now()' : 'NULL'}, 3`)})`)
      await t.query(`${PLAIN.replace(')', ', state, attempts)')} VALUES (${values(`'odd', '${state}', -5`)})`)
    }
    await t.query(`${PLAIN.replace(')', ', state)')} VALUES (${values(`NULL, 'held'`)})`)
    await t.query(`${PLAIN} SELECT ${values(`repeat('long', 2000)`)} FROM generate_series(1, 2)`)
    await t.query(`${PLAIN} VALUES (${values(`repeat('long', 2001)`)})`)
    const sound = `SELECT md5(string_agg(o::text, '|' ORDER BY sequence)) AS sum FROM outbox o WHERE key = 'sound'`
    const before = await t.query(sound)
    const migrations = new Migrations(t.db, { outbox: 'outbox' })
    expect(await migrations.migrate()).toEqual([{ table: 'outbox', from: version, to: 4 }])
    expect(await t.query(sound)).toEqual(before)
    const odd =
      await t.query(`SELECT state, attempts, available_at IS NOT NULL AS timed, published_at IS NOT NULL AS done
      FROM outbox WHERE key = 'odd' ORDER BY sequence`)
    expect(odd).toEqual(
      STATES.map((state) => ({ state, attempts: 0, timed: TIMED.includes(state), done: state === 'published' })),
    )
    expect(await t.query('SELECT state FROM outbox WHERE key IS NULL')).toEqual([{ state: 'ready' }])
    const keys =
      await t.query(`SELECT octet_length(key) <= 1024 AS fits, count(*)::int AS n, key LIKE 'longlong%' AS begins
      FROM outbox WHERE key LIKE 'long%' GROUP BY key ORDER BY n`)
    expect(keys).toEqual([
      { fits: true, n: 1, begins: true },
      { fits: true, n: 2, begins: true },
    ])
    // Each of them can be settled, in whatever way.
    for (const state of STATES)
      await t.query(`UPDATE outbox SET state = '${state}', available_at = now(), key = COALESCE(key, 'k')`)
  })

  test('the index by tenant is replaced', async () => {
    await olderOutbox(t, 2, { tenants: true })
    const migrations = new Migrations(t.db, { outbox: 'outbox', tenants: true })
    await migrations.migrate()
    await migrations.check()
    const rows = await t.query(`SELECT indexdef FROM pg_indexes WHERE tablename = 'outbox' AND indexdef ~ 'tenant'`)
    expect(rows.map((row) => row['indexdef'])).toEqual([
      expect.stringMatching(/outbox_backlog ON public.outbox USING btree \(tenant_id, state, sequence\)/),
    ])
  })
})

const TIMED_INDEX = `(state, available_at, sequence) WHERE state IN ('scheduled', 'retrying', 'leased')`

/** Indexes by time, and whether queries may use them. */
async function timedIndexes(t: TestDatabase): Promise<string[]> {
  const rows =
    await t.query(`SELECT format('%s %s', indexrelid::regclass, CASE WHEN indisvalid THEN 'valid' ELSE 'invalid' END) AS line
    FROM pg_index WHERE indrelid = 'outbox'::regclass AND pg_get_indexdef(indexrelid) ~ 'available_at' ORDER BY 1`)
  return rows.map((row) => row['line'])
}

describeOn(KINDS, 'version 4 on %s', (kind) => {
  let t: TestDatabase
  beforeEach(async () => {
    t = await testDatabase(kind)
  })
  afterEach(() => t.end())

  test.each([1, 2, 3])('replaces the index of timers of version %i', async (version) => {
    await olderOutbox(t, version)
    const migrations = new Migrations(t.db, { outbox: 'outbox' })
    expect(await timedIndexes(t)).toEqual(['outbox_timer valid'])
    await migrations.migrate()
    expect(await timedIndexes(t)).toEqual(['outbox_timed valid'])
    const upgraded = await catalog(t)
    await migrations.down()
    await migrations.migrate()
    expect(upgraded).toEqual(await catalog(t))
  })

  test('something else of the name of its index is an error, and the index before it stays', async () => {
    await olderOutbox(t, 3)
    await t.script('CREATE TABLE outbox_timed (id int)')
    const migrations = new Migrations(t.db, { outbox: 'outbox' })
    await expect(migrations.migrate()).rejects.toThrow(/"outbox_timed" already exists/)
    expect(await timedIndexes(t)).toEqual(['outbox_timer valid'])
    expect(await migrations.version()).toEqual({ outbox: 3 })
  })
})

describeOn(['postgres', 'postgres15'], 'version 4 with an index that was created before, on %s', (kind) => {
  let t: TestDatabase
  let other: pg.Client
  beforeEach(async () => {
    t = await testDatabase(kind)
    other = new pg.Client({ connectionString: t.url })
    await other.connect()
  })
  afterEach(async () => {
    await other.end()
    await t.end()
  })

  /** Does not come to its end, since it waits for another transaction that writes. */
  async function createInVain(index: string): Promise<void> {
    await other.query(`BEGIN; ${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)`)
    const hasty = new pg.Client({ connectionString: t.url, options: '-c statement_timeout=300' })
    await hasty.connect()
    await expect(hasty.query(`CREATE INDEX CONCURRENTLY ${index} ${TIMED_INDEX}`)).rejects.toThrow(/statement timeout/)
    await hasty.end()
    await other.query('ROLLBACK')
  }

  test('it is used, and a transaction that has read and writes next is in no deadlock', async () => {
    await olderOutbox(t, 3)
    await t.query(`CREATE INDEX CONCURRENTLY outbox_timed ON outbox ${TIMED_INDEX}`)
    const indexOf = `SELECT 'outbox_timed'::regclass::oid AS oid`
    const before = await t.query(indexOf)
    await other.query('BEGIN; SELECT FROM outbox')
    const migrating = new Migrations(t.db, { outbox: 'outbox' }).migrate()
    const waiting = `SELECT FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted`
    await expect.poll(async () => (await t.query(waiting)).length, { timeout: 9000, interval: 20 }).toBe(1)
    await other.query(`${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)`)
    await other.query('COMMIT')
    expect(await migrating).toEqual([{ table: 'outbox', from: 3, to: 4 }])
    expect(await t.query(indexOf)).toEqual(before)
  })

  test('one that was not finished is created anew', async () => {
    await olderOutbox(t, 3)
    await createInVain('outbox_timed ON outbox')
    expect(await timedIndexes(t)).toEqual(['outbox_timed invalid', 'outbox_timer valid'])
    await new Migrations(t.db, { outbox: 'outbox' }).migrate()
    expect(await timedIndexes(t)).toEqual(['outbox_timed valid'])
  })

  test('those of partitions are used, and one that was not finished is created anew', async () => {
    const migrations = new Migrations(t.db, { outbox: 'outbox', partition: 'month' })
    const older = async () => {
      await t.script(`DROP INDEX outbox_timed; UPDATE waybill_schema SET version = 3;
        CREATE INDEX outbox_timer ON outbox (available_at, sequence) INCLUDE (state)
          WHERE state IN ('scheduled', 'retrying', 'leased')`)
    }
    await migrations.migrate()
    const parts = await t.query(
      `SELECT inhrelid::regclass AS name FROM pg_inherits WHERE inhparent = 'outbox'::regclass`,
    )
    const names = parts.map(({ name }) => name)
    const made = () =>
      t.query(`SELECT inhrelid::int AS oid FROM pg_inherits WHERE inhparent = 'outbox_timed'::regclass ORDER BY 1`)
    await older()
    for (const name of names) await t.query(`CREATE INDEX CONCURRENTLY ON ${name} ${TIMED_INDEX}`)
    const before = await t.query(`SELECT indexrelid::int AS oid FROM pg_index WHERE indrelid <> 'outbox'::regclass
      AND pg_get_indexdef(indexrelid) ~ '\\(state, available_at' ORDER BY 1`)
    await migrations.migrate()
    expect(before).toHaveLength(names.length)
    expect(await made()).toEqual(before)

    await older()
    const [row] = await t.query(`${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)
      RETURNING tableoid::regclass AS part`)
    await createInVain(`ON ${row!['part']}`)
    await migrations.migrate()
    expect(await timedIndexes(t)).toEqual(['outbox_timed valid'])
    expect(await made()).toHaveLength(names.length)
  })
})

describeOn(['postgres', 'postgres15'], 'version 3 in traffic on %s', (kind) => {
  test('a table is upgraded under a writer and an idle relay, and nothing is lost', async () => {
    const t = await testDatabase(kind)
    await olderOutbox(t, 2)
    const pool = new pg.Pool({ connectionString: t.url })
    const db = postgres({ pool })
    const open = new pg.Client({ connectionString: t.url })
    await open.connect()
    await open.query('BEGIN')
    await open.query(`${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)`)
    const migrating = db.migrate()
    const waiting = `SELECT 1 FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted`
    await expect.poll(async () => (await t.query(waiting)).length, { timeout: 9000, interval: 20 }).toBe(1)
    await open.query('COMMIT')
    await open.end()
    expect((await migrating)[0]).toEqual({ table: 'outbox', from: 2, to: 4 })
    const sink = collector()
    const relay = new Relay({ from: db.outbox, to: sink })
    await relay.runOnce()
    await relay.stop()
    expect(sink.messages).toHaveLength(1)
    await pool.end()
    await t.end()
  })
})

/** Waits until the relay has said that it is idle. PGlite has no flag. */
async function idle(t: TestDatabase): Promise<void> {
  if (t.url === '') return
  const flag = `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1463897676 AND mode = 'ExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
  await expect.poll(async () => (await t.query(flag)).length, { timeout: 20_000, interval: 5, message: 'idle' }).toBe(1)
}

describeOn(KINDS, 'a plain INSERT on %s', (kind) => {
  test('wakes an idle relay, whoever writes it and however', async () => {
    const t = await testOutbox(kind)
    const sink = collector()
    const relay = new Relay({ from: new PostgresOutbox(t.db, () => undefined), to: sink, poll: '1h', maxPoll: '1h' })
    await relay.start()
    const arrived = async (count: number, what: string) =>
      expect.poll(() => sink.messages.length, { timeout: 20_000, interval: 5, message: what }).toBe(count)
    try {
      await idle(t)
      await t.query(`${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)`)
      await arrived(1, 'the first')
      await idle(t)
      await t.query(`${PLAIN} SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', NULL FROM generate_series(1, 3)`)
      await arrived(4, 'many of one statement')
      await idle(t)
      await t.script(`CREATE TABLE orders (id int);
        CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          ${PLAIN} VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL); RETURN NEW; END $$;
        CREATE TRIGGER told AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION told();`)
      await t.query('INSERT INTO orders VALUES (1)')
      await arrived(5, 'one that a trigger wrote')
      if (t.url === '') return
      // A role that may insert, and nothing else; functions are not for everybody here, and names are not found.
      await idle(t)
      const role = `w_${Math.random().toString(36).slice(2)}`
      await t.script(`CREATE ROLE ${role} LOGIN; GRANT INSERT ON outbox TO ${role}`)
      const url = new URL(t.url)
      url.username = role
      const writer = new pg.Client({ connectionString: url.href, options: `-c search_path=''` })
      await writer.connect()
      await writer.query(
        PLAIN.replace('outbox', 'public.outbox').concat(` VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}', NULL)`),
      )
      await writer.end()
      await arrived(6, 'one of a role without any other right')
      await t.script(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
    } finally {
      await relay.stop()
      await t.end()
    }
  })
})

interface Sent {
  readonly text: string
  readonly values: readonly unknown[]
}

/** The same database, with every statement of its transactions written down. */
function watched(db: Database, sent: Sent[]): Database {
  const record = (on: Sql): Sql => ({
    query: (text, values) => {
      sent.push({ text, values: values ?? [] })
      return on.query(text, values)
    },
  })
  return {
    ...{ driver: db.driver, single: db.single, query: db.query.bind(db), connect: db.connect.bind(db) },
    transaction: <T>(fn: (tx: unknown) => Promise<T>) => db.transaction((tx) => fn(record(sqlOf(tx)))),
  } as Database
}

describeOn(['postgres', 'postgres15'], "one tenant's backlog on %s", (kind) => {
  test('is found among all that it and others have published', async () => {
    const t = await testOutbox(kind, { tenants: true })
    await t.script(`INSERT INTO outbox (event_id, topic, source, event_type, payload, tenant_id, state, published_at)
        SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', 'acme', 'published', now() FROM generate_series(1, 20000);
      INSERT INTO outbox (event_id, topic, source, event_type, payload, tenant_id, state)
        SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', 't' || n % 100, 'ready' FROM generate_series(1, 20000) AS n;
      INSERT INTO outbox (event_id, topic, source, event_type, payload, tenant_id, state)
        SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', 'acme', 'ready' FROM generate_series(1, 5)`)
    await t.script('VACUUM ANALYZE outbox')
    const seen: Sent[] = []
    const admin = new PostgresOutboxAdmin(watched(t.db, seen), t.names)
    const window = { since: new Date(0), until: new Date(Date.now() + 60_000) }
    expect((await admin.list({ tenant: 'acme', states: ['ready'] })).length).toBe(5)
    expect((await admin.preview('discard-pending', { tenant: 'acme', ...window })).count).toBe(5)
    await admin.discardPending({ tenant: 'acme', ...window }, { by: 'ada', note: 'test' }, { expected: 5 })
    const looked = seen.filter(({ text }) => /FROM "outbox" event/.test(text))
    expect(looked.length).toBeGreaterThan(5)
    for (const { text, values } of looked) {
      const plan = await t.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`, [...values])
      const { Plan } = plan[0]!['QUERY PLAN'][0]
      expect(Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks'], text).toBeLessThan(100)
    }
    await t.end()
  })
})
