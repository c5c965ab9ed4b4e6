import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, open, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gunzipSync } from 'node:zlib'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { RawMessage } from '../../src/core/index.ts'
import { topicOf } from '../../src/flow/index.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { readArchive } from '../../src/postgres/archive.ts'
import { Migrations } from '../../src/postgres/migrate.ts'
import { describeOn } from '../support/services.ts'
import { KINDS, type TestOutbox, testOutbox } from './admin-support.ts'

const WHO = { by: 'ada', note: 'test' }
const LONG_AGO = `'2026-01-02T12:00:00Z'::timestamptz`

async function all(messages: AsyncIterable<RawMessage>): Promise<RawMessage[]> {
  const list: RawMessage[] = []
  for await (const message of messages) list.push(message)
  return list
}

/** What a receiver would see of a message. */
const seen = (message: RawMessage) => ({
  ...message.attributes(),
  data: message.data,
  form: message.form,
  topic: topicOf(message),
})

/** From now on what is written does not come to the disk. Returns what ends that. */
async function fullDisk(path: string): Promise<() => void> {
  const handle = await open(path, 'w')
  const methods = Object.getPrototypeOf(handle) as { sync(): Promise<void> }
  await handle.close()
  const { sync } = methods
  methods.sync = () => Promise.reject(Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' }))
  return () => {
    methods.sync = sync
  }
}

describeOn(KINDS, 'archive on %s', (kind) => {
  let t: TestOutbox
  let directory: string
  beforeEach(async () => {
    t = await testOutbox(kind)
    directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
  })
  afterEach(async () => {
    await t.end()
    await rm(directory, { recursive: true })
  })

  /** Payloads, ids and attributes that a careless reader would change. */
  async function insertOdd(): Promise<string[]> {
    const ids = await t.insert(
      ...[0, 1, 2, 3].map(() => ({
        state: 'published',
        published: LONG_AGO,
        key: 'k"\n',
        tenant: 'acme',
        topic: 'other',
      })),
    )
    await t.query(
      `UPDATE outbox SET payload = '{"n": 12345678901234567890, "payload_json": ",\\"payload_json\\":"}' WHERE sequence = 1`,
    )
    await t.query(`UPDATE outbox SET payload = NULL, payload_bytes = '\\x00ff7b22' WHERE sequence = 2`)
    await t.query(`UPDATE outbox SET payload = NULL, payload_bytes = '{"b":1,  "a":2}', attributes = '{"text": true,
      "subject": "line\\nbreak", "extensions": {"payload": ",\\"payload_json\\":1", "n": 7, "raw": {"base64": "AAE="}}}' WHERE sequence = 3`)
    await t.query(`UPDATE outbox SET foreign_id = 'their id', payload = '"text"' WHERE sequence = 4`)
    await t.insert({ state: 'ready' }, { state: 'dead' }, { state: 'published' })
    return ids
  }

  test.each(['table', 'files'])('in a %s: what is read back is what was relayed', async (where) => {
    const migrations = new Migrations(t.db, { outbox: t.names, archive: where === 'table' })
    await migrations.migrate()
    const ids = await insertOdd()
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: where === 'table' ? 'table' : { directory } })
    const before: unknown[] = []
    for (const id of ids) before.push(seen((await admin.show(id))!.message))
    expect(await admin.clean({ limit: 3 })).toBe(3)
    expect(await admin.clean()).toBe(1)
    expect(await t.states()).toEqual({ ready: 1, dead: 1, published: 1 })
    const from = where === 'table' ? { on: t.db, names: t.names } : directory
    expect((await all(readArchive(from))).map(seen)).toEqual(before)
  })

  test('files stand by day, are lines of JSON, and are ignored while they are unfinished', async () => {
    await insertOdd()
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory } })
    await admin.clean()
    const [name, ...others] = await readdir(join(directory, 'outbox', '2026-01-02'))
    expect(others).toEqual([])
    expect(name).toMatch(/^0000000000000000001-[0-9a-f]{8}\.ndjson\.gz$/)
    const path = join(directory, 'outbox', '2026-01-02', name!)
    const lines = gunzipSync(await readFile(path))
      .toString()
      .trimEnd()
      .split('\n')
    expect(lines.map((line) => JSON.parse(line)['sequence'])).toEqual(['1', '2', '3', '4'])
    await writeFile(`${path}.unfinished`, 'half')
    expect(await all(readArchive(directory))).toHaveLength(4)
    await writeFile(path, (await readFile(path)).subarray(0, 60))
    await expect(all(readArchive(directory))).rejects.toThrow(expect.objectContaining({ code: 'DAMAGED_ARCHIVE' }))
  })

  describe.each([
    ['table', {}],
    ['files', {}],
    ['table', { partition: 'day' }],
    ['files', { dedup: true }],
  ] as const)('replay from %s with %j', (where, more) => {
    const world = async () => {
      const own = await testOutbox(kind, { table: 'shop', ...more, archive: where === 'table' || 'files' })
      const admin = new PostgresOutboxAdmin(own.db, own.names, { archive: where === 'table' ? 'table' : { directory } })
      const published = (n: number, key: string) => ({ state: 'published', published: LONG_AGO, key, payload: { n } })
      const ids = await own.insert(published(0, 'a'), published(1, 'b'), published(2, 'a'), published(3, 'a'))
      return { own, admin, ids, ready: () => own.query(READY) }
    }
    const READY = `SELECT event_id AS id, payload ->> 'n' AS n, foreign_id, attempts, published_at FROM shop
      WHERE state = 'ready' ORDER BY sequence`

    test('each event once, under its id, in its order, behind what is pending', async () => {
      const { own, admin, ids, ready } = await world()
      // Archived twice, the second time after a replay, so that its number is the last; and one is still in the outbox.
      expect(await admin.clean({ limit: 2 })).toBe(2)
      await own.query(`UPDATE shop SET foreign_id = 'theirs' WHERE event_id = '${ids[2]}'`)
      expect(await admin.replay({ eventIds: [ids[0]!] }, WHO, { archive: true })).toBe(1)
      await own.query(`UPDATE shop SET state = 'published', published_at = ${LONG_AGO} - interval '1 day',
        foreign_id = 'second' WHERE event_id = '${ids[0]}'`)
      expect(await admin.clean({ limit: 2 })).toBe(2)
      const [pending] = await own.insert({ state: 'ready', key: 'a', payload: { n: 9 } })
      expect((await own.states())['published']).toBe(1)
      await expect(admin.replay({}, WHO, { archive: true, limit: 3 })).rejects.toThrow(
        expect.objectContaining({ code: 'TOO_MANY' }),
      )
      expect(await admin.replay({}, WHO)).toBe(1)
      await own.query(
        `UPDATE shop SET state = 'published', published_at = now() WHERE state = 'ready' AND event_id <> '${pending}'`,
      )
      const before = await all(readArchive(where === 'table' ? { on: own.db, names: own.names } : directory))
      const drawn = async () => Number((await own.query('SELECT last_value AS n FROM shop_sequence_seq'))[0]!['n'])
      const last = await drawn()
      expect(await admin.replay({}, WHO, { archive: true })).toBe(4)
      expect((await drawn()) - last).toBe(4)
      const rows = await ready()
      expect(rows.find((row) => row['id'] === ids[0])!['foreign_id']).toBe('second')
      expect(rows.map((row) => row['id'])[0]).toBe(pending)
      expect(new Set(rows.map((row) => row['id']))).toEqual(new Set([pending, ...ids]))
      expect(rows).toHaveLength(5)
      const order = rows.map((row) => row['id'])
      expect(order.indexOf(ids[2])).toBeGreaterThan(order.indexOf(ids[1]))
      expect(rows.every((row) => row['attempts'] === 0 && row['published_at'] === null)).toBe(true)
      expect(rows.find((row) => row['id'] === ids[2])!['foreign_id']).toBe('theirs')
      expect(await admin.replay({}, WHO, { archive: true })).toBe(0)
      expect(await all(readArchive(where === 'table' ? { on: own.db, names: own.names } : directory))).toHaveLength(
        before.length,
      )
      expect((await admin.audits())[1]).toMatchObject({ action: 'replay', count: 4, filter: { archive: true } })
      if (kind !== 'pglite') await own.end()
    })

    test('by filter, and as new', async () => {
      const { own, admin, ids, ready } = await world()
      expect(await admin.clean({ limit: 3 })).toBe(3)
      expect(await admin.replay({ key: 'a' }, WHO, { archive: true, asNew: true })).toBe(3)
      const rows = await ready()
      expect(rows.map((row) => row['n'])).toEqual(['0', '2', '3'])
      expect(rows.some((row) => ids.includes(row['id']))).toBe(false)
      expect((await own.states())['published']).toBe(1)
      await own.query(`DELETE FROM shop WHERE state = 'ready'`)
      const later = { since: new Date(Date.now() + 3_600_000) }
      expect(await admin.replay(later, WHO, { archive: true })).toBe(0)
      expect(await admin.replay({ key: 'a', until: later.since }, WHO, { archive: true })).toBe(3)
      expect((await ready()).map((row) => row['n'])).toEqual(['0', '2', '3'])
      if ('dedup' in more || 'partition' in more) {
        expect(await own.query('SELECT 1 FROM shop_ids JOIN shop USING (event_id)')).not.toEqual([])
      }
      if (kind !== 'pglite') await own.end()
    })
  })

  test('replay from an archive that is none is refused', async () => {
    for (const archive of [undefined, 'none', 'table'] as const) {
      const admin = new PostgresOutboxAdmin(t.db, t.names, archive === undefined ? {} : { archive })
      await expect(admin.replay({}, WHO, { archive: true })).rejects.toThrow(/replay: outbox has no archive to read/)
    }
    const empty = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory: join(directory, 'none yet') } })
    expect(await empty.replay({}, WHO, { archive: true })).toBe(0)
  })

  test('what is read from a table is all of it, whatever its numbers', async () => {
    await new Migrations(t.db, { outbox: t.names, archive: true }).migrate()
    await t.insert(...Array.from({ length: 3 }, () => ({ state: 'published', published: LONG_AGO })))
    await t.query('UPDATE outbox SET sequence = sequence - 3')
    // Numbers that began anew: a thousand events, each number twice.
    for (const n of [1, 2]) {
      await t.query(`INSERT INTO outbox (event_id, sequence, state, topic, source, event_type, payload, published_at)
        SELECT gen_random_uuid(), number, 'published', 'a', '/t', 'x', '${n}', ${LONG_AGO} FROM generate_series(1, 600) AS number`)
    }
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: 'table' })
    await admin.clean({ limit: 2000 })
    const found = await all(readArchive({ on: t.db, names: t.names }))
    expect(new Set(found.map(({ id }) => id)).size).toBe(1203)
  })

  test('a row under the same id that is not in the file stays', async () => {
    const t = await testOutbox(kind, { table: 'parted', partition: 'day' })
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory } })
    const [id] = await t.insert({ state: 'published', created: LONG_AGO, published: LONG_AGO })
    await t.insert({ id: id!, state: 'published' })
    expect(await admin.clean()).toBe(1)
    expect(await t.states()).toEqual({ published: 1 })
    if (kind !== 'pglite') await t.end()
  })

  test('a disk that is full: nothing is removed, and nothing unfinished is left with every round', async () => {
    await insertOdd()
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory } })
    const mended = await fullDisk(join(directory, 'any'))
    for (let n = 0; n < 3; n++) await expect(admin.clean()).rejects.toThrow('ENOSPC')
    mended()
    expect((await t.states())['published']).toBe(5)
    expect(await readdir(join(directory, 'outbox', '2026-01-02'))).toEqual([])
    expect(await admin.clean()).toBe(4)
    expect(await all(readArchive(directory))).toHaveLength(4)
  })

  test('what cannot be written is not removed', async () => {
    await insertOdd()
    const file = join(directory, 'taken')
    await writeFile(file, '')
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory: file } })
    await expect(admin.clean()).rejects.toThrow()
    expect((await t.states())['published']).toBe(5)
    const none = new PostgresOutboxAdmin(t.db, t.names, { archive: 'table' })
    await expect(none.clean()).rejects.toThrow(/has no archive table; run migrate\(\) with archive: true/)
    expect((await t.states())['published']).toBe(5)
  })
})

describeOn(['postgres', 'postgres15'], 'archive faults on %s', (kind) => {
  test('killed between the file and the removal: nothing is lost, some is there twice', async () => {
    const t = await testOutbox(kind)
    const directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
    const ids = await t.insert(...Array.from({ length: 60 }, () => ({ state: 'published', published: LONG_AGO })))
    // The removal takes for ever, so that the process dies just before it.
    await t.script(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN OLD; END $$;
      CREATE TRIGGER slow BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
    const script = fileURLToPath(new URL('archive-child.ts', import.meta.url))
    const child = spawn(process.execPath, ['--import', 'tsx', script, t.url, directory], { stdio: 'inherit' })
    const asleep = `SELECT pid FROM pg_stat_activity WHERE application_name = 'archive-child' AND wait_event = 'PgSleep'`
    await expect.poll(async () => (await t.query(asleep)).length, { timeout: 50_000, interval: 50 }).toBe(1)
    child.kill('SIGKILL')
    await once(child, 'exit')
    await t.query(`SELECT pg_terminate_backend(pid) FROM (${asleep}) AS sleeping`)
    await t.script('DROP TRIGGER slow ON outbox')
    expect(await t.states()).toEqual({ published: 60 })
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory } })
    expect(await admin.clean()).toBe(60)
    const archived = (await all(readArchive(directory))).map((message) => message.id)
    expect(new Set(archived)).toEqual(new Set(ids))
    expect(archived).toHaveLength(110)
    await t.end()
    await rm(directory, { recursive: true })
  })

  test('large payloads are written in files of bounded size, and all of them', async () => {
    const t = await testOutbox(kind)
    const directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
    await t.insert(...[1, 2, 3].map(() => ({ state: 'published', published: LONG_AGO })))
    await t.query(`UPDATE outbox SET payload = to_jsonb(repeat('x', 20 * 1024 * 1024))`)
    const admin = new PostgresOutboxAdmin(t.db, t.names, { archive: { directory } })
    expect(await admin.clean()).toBe(3)
    expect(await readdir(join(directory, 'outbox', '2026-01-02'))).toHaveLength(3)
    expect((await all(readArchive(directory))).map(({ data }) => data.length)).toEqual(
      [1, 2, 3].map(() => 20 * 1024 * 1024 + 2),
    )
    await t.end()
    await rm(directory, { recursive: true })
  })
})
