import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { telemetry } from '../../src/core/index.ts'
import { Cleaner } from '../../src/outbox/cleaner.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { readArchive } from '../../src/postgres/archive.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import { describeOn } from '../support/services.ts'
import { KINDS, type TestOutbox, testOutbox } from './admin-support.ts'

const WHO = { by: 'ada', note: 'test' }

/** The time partitions of the outbox, by name. */
async function partitions(t: TestOutbox): Promise<string[]> {
  const rows = await t.query(`SELECT inhrelid::regclass::text AS name FROM pg_inherits
    WHERE inhparent = 'outbox'::regclass AND inhrelid::regclass::text ~ '_p[0-9]{8}$' ORDER BY 1`)
  return rows.map((row) => row['name'] as string)
}

/** A partition of a day that is so many days past. */
async function past(t: TestOutbox, days: number): Promise<string> {
  const [row] = await t.query(`SELECT to_char(d, 'YYYYMMDD') AS name, d::text AS low, (d + 1)::text AS high
    FROM (SELECT (now() AT TIME ZONE 'UTC')::date - ${days} AS d) AS day`)
  const name = `outbox_p${row!['name']}`
  await t.query(
    `CREATE TABLE ${name} PARTITION OF outbox FOR VALUES FROM ('${row!['low']} 00:00+00') TO ('${row!['high']} 00:00+00')`,
  )
  return name
}

const at = (days: number) => `now() - interval '${days} days'`

describeOn(KINDS, 'partitions on %s', (kind) => {
  let t: TestOutbox
  let admin: PostgresOutboxAdmin
  beforeEach(async () => {
    t = await testOutbox(kind, { partition: 'day' })
    admin = new PostgresOutboxAdmin(t.db, t.names)
  })
  afterEach(() => t.end())

  test('stand ready for a week, and are made again when they are missing', async () => {
    const made = await partitions(t)
    expect(made).toHaveLength(8)
    await t.insert({})
    const [row] = await t.query('SELECT tableoid::regclass::text AS name FROM outbox')
    expect(row!['name']).toBe(made[0])
    await t.query(`DROP TABLE ${made[5]}`)
    await admin.maintain()
    await admin.maintain()
    expect(await partitions(t)).toEqual(made)
    const [settings] = await t.query(`SELECT reloptions::text AS text FROM pg_class WHERE relname = '${made[5]}'`)
    expect(settings!['text']).toContain('fillfactor=80')
  })

  test('are dropped once all in them is published and past the retention; others are kept, and that is said', async () => {
    const old = await past(t, 20)
    const dead = await past(t, 19)
    const pending = await past(t, 18)
    const late = await past(t, 17)
    const empty = await past(t, 16)
    const young = await past(t, 3)
    await t.insert(
      { state: 'published', created: at(20), published: at(20) },
      { state: 'published', created: at(19), published: at(19) },
      { state: 'dead', created: at(19) },
      { state: 'held', key: 'k', created: at(18) },
      { state: 'published', created: at(17), published: at(2) },
      { state: 'published', created: at(3), published: at(3) },
    )
    const said: string[] = []
    const stop = telemetry.warning.subscribe(({ message }) => said.push(message))
    const told: number[] = []
    const stopTold = telemetry['cleaner.cleaned'].subscribe(({ partitions }) => told.push(partitions))
    const cleaner = new Cleaner({ of: admin })
    await cleaner.runOnce()
    expect((await partitions(t)).slice(0, 4)).toEqual([dead, pending, late, young])
    expect(told).toEqual([2])
    if (kind === 'postgres') {
      expect(said.join('\n')).toMatch(new RegExp(`${dead} is older than the retention and is kept, .* dead`))
      expect(said.join('\n')).toMatch(new RegExp(`${pending} .* not published`))
    }
    expect(await t.states()).toEqual({ published: 3, dead: 1, held: 1 })
    expect([old, empty].some((name) => said.join().includes(name))).toBe(false)
    // What kept them is gone: so are they.
    await admin.discardDead({}, WHO)
    await t.query(`UPDATE outbox SET state = 'published', published_at = created_at WHERE state = 'held'`)
    await cleaner.runOnce()
    stop()
    stopTold()
    expect((await partitions(t)).slice(0, 2)).toEqual([late, young])
    expect(told).toEqual([2, 2])
  })

  test('one that cannot be dropped is told, and keeps neither the others nor what is to be cleaned', async () => {
    const first = await past(t, 20)
    const second = await past(t, 19)
    await t.script(`CREATE VIEW of_first AS SELECT * FROM ${first}`)
    await t.insert({ state: 'published', created: at(40), published: at(40) })
    const cleaner = new Cleaner({ of: admin })
    await expect(cleaner.runOnce()).rejects.toThrow(new RegExp(`${first}"? cannot be dropped`))
    const left = await partitions(t)
    expect(left).toContain(first)
    expect(left).not.toContain(second)
    expect(await t.states()).toEqual({})
    await t.script('DROP VIEW of_first')
    await cleaner.runOnce()
    expect(await partitions(t)).not.toContain(first)
  })

  test.each(['table', 'files'])('with an archive in a %s: dropped only when all in it is archived', async (where) => {
    const directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
    try {
      const archive = where === 'table' ? 'table' : { directory }
      await new Migrations(t.db, { outbox: t.names, partition: 'day', archive: where === 'table' || 'files' }).migrate()
      const old = await past(t, 20)
      const late = await past(t, 8)
      const ids = await t.insert(
        ...Array.from({ length: 25 }, () => ({ state: 'published', created: at(20), published: at(20) })),
        // Published within the retention, a while after its day: the last of its partition.
        ...Array.from({ length: 5 }, () => ({ state: 'published', created: at(8), published: at(6) })),
      )
      const careless = new PostgresOutboxAdmin(t.db, t.names)
      for (const call of ['clean', 'maintain'] as const) {
        await expect(careless[call]()).rejects.toThrow(/outbox has an archive, and this cleaner was not given it/)
      }
      const keeper = new PostgresOutboxAdmin(t.db, t.names, { archive })
      expect(await keeper.maintain()).toBe(0)
      expect(await t.states()).toEqual({ published: 30 })
      // Half of it, and then a crash.
      expect(await keeper.clean({ limit: 10 })).toBe(10)
      expect(await keeper.maintain()).toBe(0)
      const again = new PostgresOutboxAdmin(t.db, t.names, { archive })
      const cleaner = new Cleaner({ of: again, batch: 10 })
      await cleaner.runOnce()
      await cleaner.runOnce()
      expect(await partitions(t)).not.toContain(old)
      expect(await partitions(t)).toContain(late)
      const read = async () => {
        const found: string[] = []
        for await (const message of readArchive(where === 'table' ? { on: t.db, names: t.names } : directory)) {
          found.push(message.id)
        }
        return found
      }
      expect(await read()).toEqual(ids.slice(0, 25))
      await new Cleaner({ of: again, retention: '5d', batch: 10 }).runOnce()
      await new Cleaner({ of: again, retention: '5d', batch: 10 }).runOnce()
      expect(await partitions(t)).not.toContain(late)
      expect(await read()).toEqual(ids)
      // Who wants them gone for good says so.
      const gone = await past(t, 30)
      await t.insert({ state: 'published', created: at(30), published: at(30) })
      expect(await new PostgresOutboxAdmin(t.db, t.names, { archive: 'none' }).maintain()).toBe(1)
      expect(await partitions(t)).not.toContain(gone)
      expect(await read()).toEqual(ids)
    } finally {
      await rm(directory, { recursive: true })
    }
  })

  test('what has no partition is taken in all the same, and removed one by one', async () => {
    await t.insert(
      { state: 'published', created: at(40), published: at(40) },
      { state: 'published', created: at(40), published: at(1) },
      { state: 'dead', created: at(40) },
      { state: 'ready', created: `now() + interval '400 days'` },
    )
    expect(await t.query('SELECT count(*)::int AS n FROM outbox_default')).toEqual([{ n: 4 }])
    expect(await admin.clean()).toBe(1)
    expect(await t.states()).toEqual({ published: 1, dead: 1, ready: 1 })
    // A day whose events are there already stays there; the other days are not held up by it.
    const made = await partitions(t)
    await t.query(`DROP TABLE ${made[3]}, ${made[4]}`)
    await t.insert({ state: 'ready', created: `now() + interval '3 days'` })
    await admin.maintain()
    expect(await partitions(t)).toEqual(made.filter((name) => name !== made[3]))
  })

  test('everything people do works on them too', async () => {
    await past(t, 2)
    const [dead] = await t.insert({ state: 'dead', key: 'k', created: at(2) })
    const old = await t.insert(
      ...[2, 0].map((days) => ({ state: 'published', key: 'k', created: at(days), published: at(0) })),
    )
    expect((await admin.list({})).map((entry) => entry.eventId)).toEqual([dead, ...[...old].reverse()])
    expect((await admin.show(dead!))!.entry.state).toBe('dead')
    expect(await admin.rearm({}, WHO)).toBe(1)
    expect(await admin.replay({}, WHO)).toBe(2)
    const ready = await t.query(`SELECT event_id FROM outbox WHERE state = 'ready' ORDER BY sequence`)
    expect(ready.map((row) => row['event_id'])).toEqual(old)
    await t.query(`UPDATE outbox SET state = 'published', published_at = now(), available_at = NULL`)
    expect(await admin.replay({ key: 'k' }, WHO, { asNew: true })).toBe(3)
    const kept = await t.query(
      `SELECT count(*)::int AS n FROM outbox_ids JOIN outbox USING (event_id) WHERE state = 'ready'`,
    )
    expect(kept).toEqual([{ n: 3 }])
    expect((await admin.stats()).states).toMatchObject({ ready: { count: 3 }, published: { count: 3 } })
  })
})

describeOn(['postgres', 'postgres15'], 'partitions in traffic on %s', (kind) => {
  test('a transaction that stays open holds up neither the cleaner nor, for long, the others', async () => {
    const t = await testOutbox(kind, { partition: 'day' })
    const admin = new PostgresOutboxAdmin(t.db, t.names)
    const old = await past(t, 20)
    await t.insert({ state: 'published', created: at(20), published: at(20) })
    const open = new pg.Client({ connectionString: t.url })
    await open.connect()
    await open.query('BEGIN')
    await open.query(
      `INSERT INTO outbox (event_id, topic, source, event_type, payload) VALUES (gen_random_uuid(), 'a', '/t', 'x', '{}')`,
    )
    const maintaining = admin.maintain()
    const began = performance.now()
    for (let n = 0; n < 20; n++) await t.insert({})
    expect(performance.now() - began).toBeLessThan(30_000)
    expect(await maintaining).toBe(0)
    expect(await partitions(t)).toContain(old)
    await open.query('COMMIT')
    await open.end()
    expect(await admin.maintain()).toBe(1)
    expect(await partitions(t)).not.toContain(old)
    expect(await t.states()).toEqual({ ready: 21 })
    await t.end()
  })
})
