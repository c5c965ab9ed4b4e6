import pg from 'pg'
import { describe, expect, type TestContext, test } from 'vitest'
import { Cleaner, Relay, WaybillError } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector, recordTelemetry } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { until } from './faults/support.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

/** An outbox of the test's own: many of them wait, side by side. */
async function world({ onTestFinished }: TestContext): Promise<TestOutbox> {
  const t = await outboxOn()
  onTestFinished(() => t.end())
  return t
}

type Settings = Readonly<Record<string, string>>

/** A role's settings, here those of the database: for all connections that are opened from now on. */
async function set(t: TestOutbox, settings: Settings): Promise<pg.Pool> {
  for (const [name, value] of Object.entries(settings)) {
    await t.pool.query(`ALTER DATABASE ${t.database.name} SET ${name} = '${value}'`)
  }
  const pool = new pg.Pool({ connectionString: t.database.url, max: 10 })
  pool.on('error', () => {})
  return pool
}

const LIMITS: Settings = {
  statement_timeout: '1000ms',
  lock_timeout: '500ms',
  idle_in_transaction_session_timeout: '1000ms',
  idle_session_timeout: '1500ms',
  transaction_timeout: '1500ms',
}
/** Longer than any of the limits, which are long enough for a writer on a busy machine. In milliseconds. */
const LONG = 2000
const FORMATS: Settings = {
  DateStyle: 'German, DMY',
  TimeZone: 'Pacific/Chatham',
  IntervalStyle: 'sql_standard',
  bytea_output: 'escape',
  extra_float_digits: '-15',
  standard_conforming_strings: 'off',
}
const ISOLATION: Settings = { default_transaction_isolation: 'serializable', default_transaction_deferrable: 'on' }
const EACH: Settings = { ...LIMITS, ...FORMATS, ...ISOLATION }
/** All of a kind at once; each by itself too where there is time. */
const SETTINGS: readonly (readonly [name: string, settings: Settings])[] = [
  ['all limits', LIMITS],
  ['all formats', FORMATS],
  ['serializable and deferrable', ISOLATION],
  ['repeatable read', { default_transaction_isolation: 'repeatable read' }],
  ...Object.entries(scale({ test: {}, full: EACH, torture: EACH })).map(
    ([name, value]) => [`${name} = ${value}`, { [name]: value }] as const,
  ),
]

describe.each(['owner', 'lease'] as const)('a relay that reads as %s', (reader) => {
  test.concurrent.for(SETTINGS)('works where these are set for its role: %s', async ([, settings], context) => {
    const t = await world(context)
    const pool = await set(t, settings)
    const db = postgres({ pool })
    const sink = collector()
    const telemetry = recordTelemetry(['flow.lost', 'warning'])
    const relay = new Relay({
      from: db.outbox,
      to: sink,
      reader,
      retry: { attempts: 2, backoff: { min: 0, jitter: 0 } },
      poll: '1h',
      maxPoll: '1h',
      lease: 3000,
    })
    try {
      const enqueue = (n: number, options = {}) =>
        db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n }, { key: `key ${n}` }), options))
      // A transaction left open keeps the flag waiting, longer than any of the limits.
      const writer = new pg.Client({ connectionString: t.database.url })
      writer.on('error', () => {})
      await writer.connect()
      await writer.query('SET idle_in_transaction_session_timeout = 0')
      await writer.query(`SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'`)
      await writer.query('BEGIN')
      await db.outbox.enqueue(writer as never, Placed({ n: 0 }))
      await relay.start()
      sink.fail({ where: (message) => number(message) === 2, times: 1 })
      sink.fail({ where: (message) => number(message) === 3, times: 2 })
      const began = performance.now()
      await until(() => performance.now() - began > LONG)
      for (const n of [1, 2, 3]) await enqueue(n)
      await enqueue(4, { availableAt: new Date(Date.now() + 300) })
      await writer.query('COMMIT')
      await writer.end()
      const arrived = () => sink.messages.map(number).sort()
      await until(
        () => arrived().length === 4,
        30_000,
        () => `of 0, 1, 2 and 4 arrived ${arrived()}`,
      )
      expect(arrived()).toEqual([0, 1, 2, 4])
      await until(async () => (await t.states())['published'] === 4)
      const [dead] = await db.outbox.admin.list({ states: ['dead'] })
      expect(dead).toMatchObject({ attempts: 2, type: 'order.placed' })
      expect(Math.abs(dead!.createdAt.getTime() - Date.now())).toBeLessThan(60_000)
      await db.outbox.admin.rearm({ states: ['dead'] }, { by: 'test', note: 'again' })
      await until(
        () => arrived().length === 5,
        30_000,
        () => `the re-armed one has arrived: ${arrived()}`,
      )
      await until(async () => (await t.states())['published'] === 5)
      await new Cleaner({ of: db.outbox.admin, retention: 0 }).runOnce()
      expect(await t.states()).toEqual({})
      expect([telemetry.of('flow.lost'), telemetry.of('warning').filter(({ where }) => where !== 'pg')]).toEqual([
        [],
        [],
      ])
    } finally {
      telemetry.stop()
      await relay.stop()
      await pool.end()
    }
  })

  test('says at start that a session is read-only', async (context) => {
    const t = await world(context)
    const pool = await set(t, { default_transaction_read_only: 'on' })
    const relay = new Relay({ from: postgres({ pool }).outbox, to: t.sink, reader })
    await expect(relay.start()).rejects.toMatchObject({ code: 'READ_ONLY' })
    await relay.stop()
    await pool.end()
  })

  test('with an empty search_path finds a table that is named with its schema, and says so of one that is not', async (context) => {
    const t = await world(context)
    const pool = await set(t, { search_path: '' })
    const without = new Relay({ from: postgres({ pool }).outbox, to: t.sink, reader })
    await expect(without.start()).rejects.toBeInstanceOf(WaybillError)
    await without.stop()
    const db = postgres({ pool, outbox: { table: 'public.outbox' } })
    const relay = new Relay({ from: db.outbox, to: t.sink, reader, poll: '1h', maxPoll: '1h' })
    await relay.start()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 })))
    await t.sink.arrived(1)
    await relay.stop()
    await pool.end()
  })

  test('takes fewer at once where the server gives the statement up', async (context) => {
    const t = await world(context)
    // Each row that a take looks at costs 10 ms, and a third of the lease is two seconds: a hundred fit, not three hundred.
    const role = `slow_${t.database.name}`
    await t.pool.query(`CREATE ROLE ${role} LOGIN`)
    await t.pool.query(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ${role}`)
    await t.pool.query(`GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ${role}`)
    await t.pool.query(`CREATE FUNCTION slow() RETURNS boolean LANGUAGE plpgsql AS $$
      BEGIN
        IF current_query() LIKE '%SKIP LOCKED%' OR current_query() NOT LIKE '%UPDATE%' THEN
          PERFORM pg_sleep(0.01);
        END IF;
        RETURN true;
      END $$`)
    await t.enqueue(Array.from({ length: 300 }, (_, n) => Placed({ n })))
    await t.pool.query('ALTER TABLE outbox ENABLE ROW LEVEL SECURITY')
    await t.pool.query('CREATE POLICY slowly ON outbox USING (slow())')
    const url = new URL(t.database.url)
    url.username = role
    const pool = new pg.Pool({ connectionString: url.href, max: 10 })
    const telemetry = recordTelemetry(['flow.take_failed', 'flow.lost'])
    const relay = new Relay({
      from: postgres({ pool }).outbox,
      to: t.sink,
      reader,
      batch: 300,
      lease: 6000,
      outage: { min: 10, max: 10, jitter: 0 },
    })
    await relay.start()
    await until(
      () => t.sink.messages.length === 300,
      100_000,
      () => `${t.sink.messages.length} have arrived`,
    )
    await until(async () => (await t.states())['published'] === 300)
    await relay.stop()
    telemetry.stop()
    await pool.end()
    expect(telemetry.of('flow.lost')).toEqual([])
    expect(telemetry.of('flow.take_failed')[0]!.error).toMatchObject({ code: '57014' })
    await t.pool.query(`DROP OWNED BY ${role}`)
    await t.pool.query(`DROP ROLE ${role}`)
  })
})
