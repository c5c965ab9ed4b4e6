import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { outboxSource } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { type FreshDatabase, freshDatabase } from '../support/services.ts'

/**
 * Every statement that picks rows which others may pick too passes over those that are locked. The server itself bounds
 * these tests: a statement that waits for a row fails after `lock_timeout`.
 */

const PAST = `now() - interval '60 days'`

let database: FreshDatabase
let pool: pg.Pool
let other: pg.Client
let folder: string

beforeAll(async () => {
  database = await freshDatabase()
  pool = new pg.Pool({ connectionString: database.url, options: '-c lock_timeout=1000 -c statement_timeout=10000' })
  other = new pg.Client({ connectionString: database.url })
  await other.connect()
  await store().migrate()
  folder = await mkdtemp(join(tmpdir(), 'waybill-claims-'))
})
afterAll(async () => {
  await other.end()
  await pool.end()
  await database.drop()
  await rm(folder, { recursive: true })
})
beforeEach(() => pool.query('TRUNCATE outbox, outbox_ids, outbox_archive, processed_messages'))

/** The layout of the table has an id table and an archive; what the cleaner does with them is up to its options. */
function store(archive: 'table' | 'none' | { directory: string } = 'table') {
  return postgres({ pool, outbox: { dedup: true, archive } })
}

/** Rows of the outbox, named by their topic in the order of their numbers. */
async function insert(rows: Record<string, string>): Promise<void> {
  for (const [topic, columns] of Object.entries(rows)) {
    await pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, key, attempts, available_at,
      published_at, lease) SELECT gen_random_uuid(), '${topic}', '/t', 'x', '{}', ${columns}`)
  }
}

/** Does something while another session has locked the rows. */
async function whileLocked<T>(rows: string, work: () => Promise<T>): Promise<T> {
  await other.query('BEGIN')
  try {
    const { rowCount } = await other.query(`SELECT 1 FROM ${rows} FOR UPDATE`)
    expect(rowCount).toBe(1)
    return await work()
  } finally {
    await other.query('ROLLBACK')
  }
}

describe('a claim under leases passes over what another has locked:', () => {
  const columns = {
    ready: `'ready', NULL, 0, NULL::timestamptz, NULL::timestamptz, NULL::uuid`,
    scheduled: `'scheduled', NULL, 0, ${PAST}, NULL::timestamptz, NULL::uuid`,
    retrying: `'retrying', NULL, 1, ${PAST}, NULL::timestamptz, NULL::uuid`,
    held: `'held', 'k', 0, NULL::timestamptz, NULL::timestamptz, NULL::uuid`,
    'leased, run out for the first time': `'leased', NULL, 0, ${PAST}, NULL::timestamptz, gen_random_uuid()`,
    'leased, run out again': `'leased', NULL, 1, ${PAST}, NULL::timestamptz, gen_random_uuid()`,
  }

  test.each(Object.entries(columns))('%s', async (_, row) => {
    await insert({ locked: row, free: row })
    const session = (await outboxSource(store().outbox, { reader: 'lease' }).open(new AbortController().signal))!
    const take = async () => {
      const taken = await session.take({ count: 10, bytes: 1e6 }, session.lost)
      await session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
      const ids = taken.map(({ message }) => message.id)
      const { rows } = await pool.query('SELECT topic FROM outbox WHERE event_id = ANY ($1::uuid[])', [ids])
      return rows.map(({ topic }) => topic)
    }
    try {
      expect(await whileLocked(`outbox WHERE topic = 'locked'`, take)).toEqual(['free'])
      // It is not forgotten: once it is free it comes like any other.
      expect(await take()).toEqual(['locked'])
    } finally {
      await session.close()
    }
  })
})

test.each(['scheduled', 'retrying'])('a table of the name of a state is claimed from: %s', async (table) => {
  const db = postgres({ pool, outbox: { table } })
  await db.migrate()
  await pool.query(`INSERT INTO ${table} (event_id, topic, source, event_type, payload, state, available_at)
    SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', state, ${PAST} FROM unnest(ARRAY['ready', 'scheduled', 'retrying']) AS state`)
  const session = (await outboxSource(db.outbox, { reader: 'lease' }).open(new AbortController().signal))!
  try {
    const take = () => session.take({ count: 10, bytes: 1e6 }, session.lost)
    expect([...(await take()), ...(await take())]).toHaveLength(3)
  } finally {
    await session.close()
  }
  await pool.query(`DROP TABLE ${table} CASCADE; DELETE FROM waybill_schema WHERE name = '${table}'`)
})

describe('cleaning passes over what another has locked:', () => {
  const old = `'published', NULL, 0, NULL::timestamptz, ${PAST}, NULL::uuid`
  const event = (which: string) => `outbox WHERE topic = '${which}'`
  const cases: [name: string, locked: string, clean: () => Promise<number>, fill: () => Promise<unknown>][] = [
    [
      'published events',
      event('locked'),
      () => store('none').outbox.admin.clean(),
      () => insert({ locked: old, free: old }),
    ],
    [
      'published events on their way into the archive table',
      event('locked'),
      () => store().outbox.admin.clean(),
      () => insert({ locked: old, free: old }),
    ],
    [
      'published events on their way into files',
      event('locked'),
      () => store({ directory: folder }).outbox.admin.clean(),
      () => insert({ locked: old, free: old }),
    ],
    [
      'ids of events that are gone',
      'outbox_ids WHERE sequence = 1',
      () => store().outbox.admin.clean(),
      () =>
        pool.query(`INSERT INTO outbox_ids (event_id, sequence, created_at)
          SELECT gen_random_uuid(), n, ${PAST} FROM generate_series(1, 2) AS n`),
    ],
    [
      'messages an inbox has seen',
      `processed_messages WHERE message_id = '1'`,
      () => store().inbox.clean(),
      () =>
        pool.query(`INSERT INTO processed_messages (subscriber, source, message_id, created_at)
          SELECT 's', '/t', n::text, ${PAST} FROM generate_series(1, 2) AS n`),
    ],
  ]

  test.each(cases)('%s', async (_, locked, clean, fill) => {
    await fill()
    expect(await whileLocked(locked, clean)).toBe(1)
    expect(await clean()).toBe(1)
    expect(await clean()).toBe(0)
  })
})
