import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type TelemetryEvents, telemetry } from '../../src/core/index.ts'
import { databaseOf } from '../../src/drivers/sql/database.ts'
import type { Database } from '../../src/drivers/sql/sql.ts'
import { memory } from '../../src/memory/index.ts'
import { type Cleanable, Cleaner } from '../../src/outbox/cleaner.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { InboxNames, PostgresInbox } from '../../src/postgres/inbox.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import { sql } from '../../src/postgres/sql.generated.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeOn } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { KINDS, type TestOutbox, testOutbox } from './admin-support.ts'

const DAY = 86_400_000
const LONG_AGO = `now() - interval '30 days'`

describeOn(KINDS, 'cleaning on %s', (kind) => {
  let t: TestOutbox
  beforeEach(async () => {
    t = await testOutbox(kind)
  })
  afterEach(() => t.end())

  test('removes what was published before the retention, and nothing else', async () => {
    for (const state of ['ready', 'scheduled', 'retrying', 'leased', 'held', 'dead']) {
      // However old, and even where somebody has written a time of publishing.
      await t.insert({ state, key: 'k', created: LONG_AGO, available: LONG_AGO, published: LONG_AGO })
    }
    await t.insert({ state: 'published', created: LONG_AGO, published: `now() - interval '6 days'` })
    await t.insert({ state: 'published', created: LONG_AGO, published: `now() - interval '8 days'` })
    const admin = new PostgresOutboxAdmin(t.db, t.names)
    expect(await admin.clean()).toBe(1)
    expect(await admin.clean()).toBe(0)
    expect(await t.states()).toEqual({ ready: 1, scheduled: 1, retrying: 1, leased: 1, held: 1, dead: 1, published: 1 })
    expect(await new PostgresOutboxAdmin(t.db, t.names, { retention: '5d' }).clean()).toBe(1)
  })

  test('removes at most as many as it may, the oldest first', async () => {
    const ids = await t.insert(
      ...[9, 11, 10].map((n) => ({ state: 'published', published: `now() - interval '${n} days'` })),
    )
    const admin = new PostgresOutboxAdmin(t.db, t.names)
    expect(await admin.clean({ retention: 7 * DAY, limit: 2 })).toBe(2)
    expect(await t.query('SELECT event_id FROM outbox')).toEqual([{ event_id: ids[0] }])
  })

  test('an event that was marked as published by hand, without a time, is kept for the retention from then on', async () => {
    await t.insert({ state: 'published', published: 'NULL' })
    const admin = new PostgresOutboxAdmin(t.db, t.names, { retention: '1h' })
    const cleaner = new Cleaner({ of: admin })
    expect(await cleaner.runOnce()).toEqual({ outbox: 0 })
    const [row] = await t.query(`SELECT now() - published_at < interval '1 minute' AS now FROM outbox`)
    expect(row).toEqual({ now: true })
    await t.query(`UPDATE outbox SET published_at = published_at - interval '2 hours'`)
    expect(await cleaner.runOnce()).toEqual({ outbox: 1 })
  })

  test("a batch that takes longer than the role's statement_timeout is made smaller until it fits", async () => {
    await t.insert(...Array.from({ length: 12 }, () => ({ state: 'published', published: LONG_AGO })))
    await t.script(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT count(*) FROM old_rows) > 3 THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END $$;
      CREATE TRIGGER slow AFTER DELETE ON outbox REFERENCING OLD TABLE AS old_rows
        FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
    if (t.url === '') return // One session, without a timer of its own.
    const pool = new pg.Pool({ connectionString: t.url, options: '-c statement_timeout=1000' })
    try {
      const admin = new PostgresOutboxAdmin(databaseOf(pool as never) as Database, t.names)
      await expect(admin.clean()).rejects.toThrow(/statement_timeout; raise it for the role, or give a smaller limit/)
      expect(await new Cleaner({ of: admin, batch: 12 }).runOnce()).toEqual({ outbox: 12 })
      expect(await t.states()).toEqual({})
    } finally {
      await pool.end()
    }
  })

  test('keeps the ids of events that are still there', async () => {
    await new Migrations(t.db, { outbox: t.names, dedup: true }).migrate()
    const [dead] = await t.insert({ state: 'dead' })
    const ids = `INSERT INTO outbox_ids (event_id, sequence, created_at) VALUES ($1, 1, now() - interval '1 day' * $2)`
    const young = randomUUID()
    for (const [id, days] of [
      [dead, 30],
      [young, 1],
      [randomUUID(), 8],
      [randomUUID(), 9],
    ])
      await t.query(ids, [id, days])
    const admin = new PostgresOutboxAdmin(t.db, t.names)
    expect(await admin.clean({ limit: 1 })).toBe(1)
    expect(await admin.clean({ limit: 10 })).toBe(1)
    const left = await t.query('SELECT event_id FROM outbox_ids ORDER BY created_at')
    expect(left.map((row) => row['event_id'])).toEqual([dead, young])
  })

  test('a cleaner goes over outbox and inbox until nothing is left, each with its own retention', async () => {
    const names = new InboxNames('seen')
    await new Migrations(t.db, { outbox: t.names, inbox: names }).migrate()
    await t.insert(...Array.from({ length: 25 }, () => ({ state: 'published', published: LONG_AGO })))
    await t.query(`INSERT INTO seen (subscriber, source, message_id, created_at)
      SELECT 's', '/t', n::text, now() - n * interval '1 day' FROM generate_series(1, 40) AS n`)
    const inbox = new PostgresInbox(t.db, { table: 'seen' })
    const cleaner = new Cleaner({ of: [new PostgresOutboxAdmin(t.db, t.names), inbox], batch: 10 })
    const told: TelemetryEvents['cleaner.cleaned'][] = []
    const stop = telemetry['cleaner.cleaned'].subscribe((event) => told.push(event))
    expect(await cleaner.runOnce()).toEqual({ outbox: 25, seen: 11 })
    expect(await cleaner.runOnce()).toEqual({ outbox: 0, seen: 0 })
    stop()
    expect(told.map(({ store, count, partitions }) => [store, count, partitions])).toEqual([
      ['outbox', 25, 0],
      ['seen', 11, 0],
    ])
  })
})

describeOn(['postgres', 'postgres15'], 'cleaning in traffic on %s', (kind) => {
  test('two cleaners and many writers: each row once, no pending one touched', async () => {
    const t = await testOutbox(kind)
    const old = scale({ test: 20_000, full: 100_000, torture: 1_000_000 })
    await t.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, published_at)
      SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', 'published', ${LONG_AGO} FROM generate_series(1, ${old})`)
    const sizes: number[] = []
    const watched = (admin: PostgresOutboxAdmin): Cleanable => ({
      name: 'outbox',
      async clean(options) {
        const count = await admin.clean(options)
        sizes.push(count)
        return count
      },
    })
    let cleaning = true
    let written = 0
    const writer = async () => {
      while (cleaning) {
        await t.insert({ state: 'ready' })
        written++
      }
    }
    const writers = [writer(), writer(), writer()]
    const cleaners = [1, 2].map(() => new Cleaner({ of: watched(new PostgresOutboxAdmin(t.db, t.names)) }))
    const done = await Promise.all(cleaners.map((cleaner) => cleaner.runOnce()))
    cleaning = false
    await Promise.all(writers)
    expect(done[0]!['outbox']! + done[1]!['outbox']!).toBe(old)
    expect(Math.max(...sizes)).toBe(1000)
    expect(written).toBeGreaterThan(0)
    expect(await t.states()).toEqual({ ready: written })
    await t.end()
  })

  test('waits for nobody: rows that another has locked are left to it', async () => {
    const t = await testOutbox(kind)
    const [held] = await t.insert(...[1, 2, 3].map(() => ({ state: 'published', published: LONG_AGO })))
    const other = new pg.Client({ connectionString: t.url })
    await other.connect()
    await other.query('BEGIN')
    await other.query(`UPDATE outbox SET state = 'ready', published_at = NULL WHERE event_id = $1`, [held])
    const admin = new PostgresOutboxAdmin(t.db, t.names)
    expect(await admin.clean()).toBe(2)
    await other.query('COMMIT')
    await other.end()
    expect(await admin.clean()).toBe(0)
    expect(await t.states()).toEqual({ ready: 1 })
    await t.end()
  })

  test('a cleaner that a lock holds up is failing, says where, and runs again when that is gone', async () => {
    const t = await testOutbox(kind)
    await t.insert({ state: 'published', created: LONG_AGO, published: LONG_AGO })
    const other = new pg.Client({ connectionString: t.url })
    await other.connect()
    await other.query('BEGIN; LOCK TABLE outbox')
    const clock = new FakeClock()
    const cleaner = new Cleaner({ of: new PostgresOutboxAdmin(t.db, t.names), clock })
    await cleaner.start()
    await clock.advance(29_000)
    expect(cleaner.status().state).toBe('starting')
    await clock.advance(1000)
    const reason = expect.stringContaining(': a statement has taken more than 30 s; is it held up by a lock?')
    expect(cleaner.status()).toMatchObject({ state: 'failing', reason })
    await other.query('COMMIT')
    await other.end()
    await eventually('it is running', () => cleaner.status().state === 'running')
    await cleaner.stop()
    expect(await t.states()).toEqual({})
    await t.end()
  })
})

describeOn(['postgres', 'postgres15'], 'plans on %s', (kind) => {
  test('cleaning looks only at what is old, by an index', async () => {
    const t = await testOutbox(kind, { dedup: true, archive: true })
    await t.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, published_at)
      SELECT gen_random_uuid(), 'a', '/t', 'x', '{}', 'published', now() FROM generate_series(1, 5000)`)
    await t.query(
      'INSERT INTO outbox_ids (event_id, sequence) SELECT gen_random_uuid(), n FROM generate_series(1, 5000) AS n',
    )
    await t.script('VACUUM ANALYZE outbox')
    await t.script('VACUUM ANALYZE outbox_ids')
    const texts = {
      'clean-published': sql['clean-published'].replaceAll('{{from}}', 'outbox'),
      'clean-ids': sql['clean-ids'],
      'archive-move': sql['archive-move'],
      'archive-pick': sql['archive-pick'].replace('{{stored}}', 'event.*'),
      'clean-undated': sql['clean-undated'],
      'partition-kept': sql['partition-kept'].replaceAll('{{partition}}', 'outbox'),
    }
    for (const [name, text] of Object.entries(texts)) {
      const values = ['604800000', '1000', '1000000'].slice(
        0,
        Math.max(...[...text.matchAll(/\$(\d)/g)].map(([, n]) => Number(n))),
      )
      const plan = (await t.query(`EXPLAIN ${t.names.fill(text)}`, values)).map((row) => row['QUERY PLAN']).join('\n')
      // So small a table may be read as a whole where the rows that were found are joined.
      if (/clean-published|partition/.test(name)) expect(plan, name).not.toContain('Seq Scan on outbox')
      if (name !== 'partition-kept') expect(plan, name).toMatch(/Index Cond: \((published|created)_at (<|IS NULL)/)
    }
    await t.end()
  })
})

describeOn(['postgres', 'postgres15'], 'an inbox on %s', (kind) => {
  test('is read no further than to what is due, however much is in it and whatever was removed before', async () => {
    const t = await testOutbox(kind)
    const names = new InboxNames('seen')
    await new Migrations(t.db, { inbox: names }).migrate()
    await t.script(`INSERT INTO seen (subscriber, source, message_id, created_at)
      SELECT 's', '/t', n::text, now() - n * interval '1 minute' FROM generate_series(1, 200000) AS n`)
    // What comes in uses the space of what has gone: every page holds old and new.
    await t.script('DELETE FROM seen WHERE message_id::int % 2 = 0')
    await t.script('VACUUM seen')
    await t.script(`INSERT INTO seen (subscriber, source, message_id)
      SELECT 's', '/t', 'new ' || n FROM generate_series(1, 100000) AS n`)
    await t.script('VACUUM ANALYZE seen')
    const read = async (retention: number) => {
      const [row] = await t.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${names.fill(sql['inbox-clean'])}`, [
        retention,
        1000,
      ])
      const { Plan } = row!['QUERY PLAN'][0]
      return Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks']
    }
    expect(await read(365 * DAY)).toBeLessThan(20)
    // 200,000 minutes are 138 days and 21 hours: some 30 rows.
    expect(await read(138.86 * DAY)).toBeLessThan(400)
    expect(await t.query('SELECT count(*)::int AS n FROM seen')).not.toEqual([{ n: 200_000 }])
    await t.end()
  })
})

describe('the cleaner itself', () => {
  /** A store of which so many are left to remove. */
  const store = (name: string, left: number, took = 0, clock?: FakeClock): Cleanable & { asked: object[] } => {
    const asked: object[] = []
    return {
      name,
      asked,
      async clean(options) {
        asked.push(options)
        if (took > 0) await clock?.sleep(took)
        const count = Math.min(left, options.limit!)
        left -= count
        return count
      },
    }
  }

  test('asks again while batches come back full, and says the retention only when it was told one', async () => {
    const one = store('one', 25)
    expect(await new Cleaner({ of: one, batch: 10 }).runOnce()).toEqual({ one: 25 })
    expect(one.asked).toEqual([{ limit: 10 }, { limit: 10 }, { limit: 10 }])
    const two = store('two', 0)
    await new Cleaner({ of: two, retention: '1d' }).runOnce()
    expect(two.asked).toEqual([{ limit: 1000, retention: DAY }])
  })

  test('pauses for as long as a batch took, runs every minute, and stops between two batches', async () => {
    const clock = new FakeClock()
    const busy = store('busy', 1_000_000, 100, clock)
    const cleaner = await new Cleaner({ of: busy, clock }).start()
    await clock.advance(1000)
    expect(busy.asked.length).toBeGreaterThanOrEqual(5)
    expect(busy.asked.length).toBeLessThanOrEqual(6)
    const stopping = cleaner.stop()
    await clock.advance(200)
    await stopping
    expect(busy.asked.length).toBeLessThanOrEqual(6)

    const idle = store('idle', 0)
    const other = await new Cleaner({ of: idle, clock }).start()
    await clock.advance(59_000)
    expect(idle.asked).toHaveLength(1)
    await clock.advance(2000)
    expect(idle.asked).toHaveLength(2)
    await other.stop()
  })

  test('runs as often as it is told, in batches as large as it is told', async () => {
    const clock = new FakeClock()
    const one = store('one', 0)
    const cleaner = await new Cleaner({ of: one, every: '10s', batch: 7, clock }).start()
    await clock.advance(0)
    expect(one.asked).toEqual([{ limit: 7 }])
    await clock.advance(9999)
    expect(one.asked).toHaveLength(1)
    await clock.advance(1)
    expect(one.asked).toHaveLength(2)
    await clock.advance(20_000)
    expect(one.asked).toHaveLength(4)
    await cleaner.stop()
  })

  test('a store that fails does not keep the others from their turn, and is told', async () => {
    const bad: Cleanable = { name: 'bad', clean: () => Promise.reject(new Error('away')) }
    const good = store('good', 5)
    await expect(new Cleaner({ of: [bad, good] }).runOnce()).rejects.toThrow('away')
    expect(good.asked).toHaveLength(1)
    const worse: Cleanable = { name: 'worse', clean: () => Promise.reject(new Error('gone')) }
    await expect(new Cleaner({ of: [bad, worse] }).runOnce()).rejects.toThrow(
      'Not all could be cleaned. bad: Error: away. worse: Error: gone',
    )
  })

  test('what cannot be maintained is cleaned all the same', async () => {
    const good = store('one', 5)
    const maintain = () => Promise.reject(new Error('locked'))
    await expect(new Cleaner({ of: { ...good, maintain } }).runOnce()).rejects.toThrow('locked')
    expect(good.asked).toHaveLength(1)
  })

  test.each(['TOO_SLOW', '57014'])('a statement that takes too long (%s) is tried with fewer rows', async (code) => {
    const clock = new FakeClock()
    const asked: number[] = []
    let left = 40
    const slow: Cleanable = {
      name: `slow ${code}`,
      async clean({ limit }) {
        asked.push(limit!)
        if (limit! > 20) throw Object.assign(new Error('too long'), { code })
        const count = Math.min(left, limit!)
        left -= count
        return count
      },
    }
    const said: string[] = []
    const stop = telemetry.warning.subscribe(({ message }) => said.push(message))
    const cleaner = new Cleaner({ of: slow, batch: 100, clock })
    expect(await cleaner.runOnce()).toEqual({ [slow.name]: 40 })
    expect(asked).toEqual([100, 25, 6, 6, 6, 6, 6, 6, 6])
    expect(said).toEqual([expect.stringContaining(`slow ${code}: removing 100 rows takes longer`)])
    asked.length = 0
    expect(await cleaner.runOnce()).toEqual({ [slow.name]: 0 })
    expect(asked).toEqual([12])
    stop()
    const never: Cleanable = {
      name: 'never',
      clean: () => Promise.reject(Object.assign(new Error('too long'), { code })),
    }
    await expect(new Cleaner({ of: never, batch: 100, clock }).runOnce()).rejects.toThrow('too long')
  })

  test('refuses what it does not know', () => {
    const of = store('one', 0)
    expect(() => new Cleaner({ of, batch: 0 })).toThrow(/cleaner: batch/)
    const instead = 'has no clean(); give the admin of an outbox, or an inbox: [db.outbox.admin, db.inbox]'
    for (const options of [undefined, {}, { of: [of, undefined] }]) {
      expect(() => new Cleaner(options as never)).toThrow(`cleaner: of: undefined ${instead}`)
    }
    const db = memory()
    for (const wrong of [db, [db], [db.outbox]]) {
      expect(() => new Cleaner({ of: wrong } as never)).toThrow(`cleaner: of: an object ${instead}`)
    }
    expect(() => new Cleaner({ of, retention: 'a week' as '7d' })).toThrow(/cleaner: retention/)
    expect(() => new Cleaner({ of, interval: 1 } as never)).toThrow(/unknown option "interval"/)
  })
})
