import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { Unavailable, type WaybillError } from '../../src/core/index.ts'
import { type Postgres, type PostgresOutboxOptions, postgres } from '../../src/postgres/index.ts'
import { faultProxy } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { outboxOn, type TestOutbox } from './support.ts'

/** What a person or a cleaner asks of the table ends, too, when nobody answers: a worker that waits for ever says nothing. */

let t: TestOutbox
const ends: (() => Promise<unknown>)[] = []

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(async () => {
  vi.useRealTimers()
  for (const end of ends.splice(0).reverse()) await end()
  await t.end()
})

/** One that gives up soon, and another on the same pool that does not: what comes before takes as long as it takes. */
function open(url: string, outbox: PostgresOutboxOptions = {}): { db: Postgres; patient: Postgres } {
  const pool = new pg.Pool({ connectionString: url, max: 2, application_name: 'limited' })
  pool.on('error', () => {})
  ends.push(() => pool.end())
  const [db, patient] = [200, 30_000].map(
    (statementTimeout) => postgres({ pool, statementTimeout, outbox }) as Postgres,
  )
  return { db: db!, patient: patient! }
}

/** Another transaction keeps this table for itself, and whoever asks for it waits. */
async function locked(table: string): Promise<void> {
  const client = new pg.Client({ connectionString: t.database.url })
  await client.connect()
  ends.push(() => client.end())
  await client.query('BEGIN')
  await client.query(`LOCK TABLE ${table}`)
}

const somebodyWaits = () =>
  eventually('it to wait for the lock', async () => {
    const { rows } = await t.pool.query(
      `SELECT 1 FROM pg_stat_activity WHERE application_name = 'limited' AND wait_event_type = 'Lock'`,
    )
    return rows.length > 0
  })

/** The error of what must not take long, however long the lock is kept. */
const failed = async (work: Promise<unknown>): Promise<unknown> => {
  let error: unknown
  work.catch((caught) => {
    error = caught
  })
  return eventually('it to give up', () => error)
}

describe('an admin whose server vanishes in the middle of a statement gives up:', () => {
  const who = { by: 'anna', note: 'test' }
  test.each<[name: string, seconds: number, call: (db: Postgres) => Promise<unknown>]>([
    ['a look', 36, ({ outbox }) => outbox.admin.list()],
    ['the statistics', 36, ({ outbox }) => outbox.admin.stats()],
    ['an action, which may take its time', 606, ({ outbox }) => outbox.admin.rearm({}, who)],
  ])('%s', async (_, seconds, call) => {
    const { hostname, port } = new URL(t.database.url)
    const proxy = await faultProxy({ host: hostname, port: Number(port) })
    ends.push(() => proxy.close())
    const { db } = open(proxy.url(t.database.url))
    // Otherwise the pool would wait for what nobody answers.
    ends.push(async () => proxy.cut())
    await db.outbox.admin.list()
    await locked('outbox')
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'], shouldAdvanceTime: true })
    const work = failed(call(db))
    await somebodyWaits()
    proxy.blackHole()
    await vi.advanceTimersByTimeAsync(seconds * 1000)
    expect(await work).toBeInstanceOf(Unavailable)
  })
})

describe('a cleaner that gets no answer gives up:', () => {
  test('on the way into files', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
    ends.push(() => rm(directory, { recursive: true }))
    const { db, patient } = open(t.database.url, { archive: { directory } })
    await patient.outbox.admin.clean()
    await locked('outbox')
    expect(await failed(db.outbox.admin.clean())).toBeInstanceOf(Unavailable)
  })

  test('when partitions are made', async () => {
    const { db, patient } = open(t.database.url, { table: 'parted', partition: 'day' })
    await patient.migrate()
    const { rows } = await t.pool.query(`SELECT max(inhrelid::regclass::text) AS last FROM pg_inherits
      WHERE inhparent = 'parted'::regclass AND inhrelid::regclass::text ~ '_p[0-9]{8}$'`)
    await t.pool.query(`DROP TABLE ${rows[0].last}`)
    await patient.outbox.admin.maintain()
    await t.pool.query(`DROP TABLE ${rows[0].last}`)
    // Rows may still be written: only what needs the table for itself waits, and for longer than it has.
    const client = new pg.Client({ connectionString: t.database.url })
    await client.connect()
    ends.push(() => client.end())
    await client.query('BEGIN')
    await client.query('LOCK TABLE parted_default IN ROW EXCLUSIVE MODE')
    expect(await failed(db.outbox.admin.maintain())).toBeInstanceOf(Unavailable)
  })

  test('when a partition is dropped', async () => {
    const { db, patient } = open(t.database.url, { table: 'parted', partition: 'day' })
    await patient.migrate()
    await t.pool.query(
      `CREATE TABLE parted_p20200101 PARTITION OF parted FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')`,
    )
    const client = new pg.Client({ connectionString: t.database.url })
    await client.connect()
    ends.push(() => client.end())
    await client.query('BEGIN')
    await client.query('LOCK TABLE parted_p20200101 IN ROW EXCLUSIVE MODE')
    // On a busy machine something else may have been too slow.
    const error = await eventually('the partition is what it gives up', async () => {
      const caught = (await failed(db.outbox.admin.maintain())) as WaybillError
      return caught.code === 'NOT_DROPPED' ? caught : undefined
    })
    expect(error.cause).toBeInstanceOf(Unavailable)
  })
})
