import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Cleaner } from '../../src/index.ts'
import { postgres, readArchive } from '../../src/postgres/index.ts'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox

beforeAll(async () => {
  t = await outboxOn()
})
afterAll(() => t.end())

test('one cleaner for outbox and inbox, with the retention and the archive the outbox was given', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'waybill-archive-'))
  const db = postgres({
    pool: t.pool,
    outbox: { table: 'kept_outbox', retention: '1h', archive: { directory } },
    inbox: { table: 'kept_inbox', retention: '1h' },
  })
  await db.migrate()
  await db.withTransaction(async (tx) => {
    await db.outbox.enqueue(tx, [Placed({ n: 1 }), Placed({ n: 2 })])
    await db.inbox.receive(tx, { subscriber: 's', source: '/s', id: 'old' })
    await db.inbox.receive(tx, { subscriber: 's', source: '/s', id: 'new' })
  })
  await untilEmpty(t.relay({ from: db.outbox }))
  await t.pool.query(`UPDATE kept_outbox SET published_at = now() - interval '2 hours' WHERE payload->>'n' = '1'`)
  await t.pool.query(`UPDATE kept_inbox SET created_at = now() - interval '2 hours' WHERE message_id = 'old'`)
  const cleaner = new Cleaner({ of: [db.outbox.admin, db.inbox] })
  expect(await cleaner.runOnce()).toEqual({ kept_outbox: 1, kept_inbox: 1 })
  const archived = []
  for await (const message of readArchive(directory)) archived.push(number(message))
  expect(archived).toEqual([1])
  expect((await readdir(directory)).length).toBeGreaterThan(0)
  await rm(directory, { recursive: true })
})

test('an archive table is made by migrate', async () => {
  const db = postgres({
    pool: t.pool,
    outbox: { table: 'tabled_outbox', archive: 'table' },
    inbox: { table: 'tabled_inbox' },
  })
  await db.migrate()
  await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 7 })))
  await untilEmpty(t.relay({ from: db.outbox }))
  expect(await new Cleaner({ of: db.outbox.admin, retention: 0 }).runOnce()).toEqual({ tabled_outbox: 1 })
  const { rows } = await t.pool.query(`SELECT payload FROM tabled_outbox_archive`)
  expect(rows).toEqual([{ payload: { n: 7 } }])
})
