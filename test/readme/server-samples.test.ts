/** Samples of the guides on PostgreSQL and of an outbox on Redis: each is run here, as it stands. */
import type { Redis } from 'ioredis'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { event } from '../../src/index.ts'
import type { Postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'
import { collector, scriptedSource } from '../../src/testing/index.ts'
import { admin as redisAt, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { OrderPlaced, onPostgres, place, play, playUntil, type Stage } from './play.ts'
import { read } from './support.ts'

// Samples log to the console.
beforeEach(() => void vi.spyOn(console, 'log').mockImplementation(() => {}))
afterEach(() => void vi.restoreAllMocks())

const window = () => ({ since: new Date(Date.now() - 3_600_000), until: new Date(Date.now() + 60_000) })
const set = ({ pool }: Stage, state: string, key: string) =>
  pool.query(`UPDATE outbox SET state = $1, published_at = CASE $1 WHEN 'published' THEN now() END WHERE key = $2`, [
    state,
    key,
  ])
const states = async ({ outbox }: Pick<Postgres<unknown>, 'outbox'>) =>
  Object.fromEntries((await outbox.admin.list()).map(({ key, state }) => [key, state]))
const actions = async ({ outbox }: Pick<Postgres<unknown>, 'outbox'>) =>
  (await outbox.admin.audits()).map(({ action }) => action).sort()

describeWith(['postgres'], 'samples of the guides on PostgreSQL', () => {
  test('postgres: an outbox that is a log', () =>
    onPostgres(async ({ pool }) => {
      const made = await play('postgres', 1, { pool: await emptied(pool) })
      expect(made['events']).toEqual([])
      expect(made).toHaveProperty('upTo')
    }))

  test('postgres-setup: migrate() says what it did; the SQL of migrations is printed', () =>
    onPostgres(async ({ db }) => {
      await play('postgres-setup', 1, { db })
      await play('postgres-setup', 2, { db })
      const [migrated, ...texts] = vi.mocked(console.log).mock.calls.flat()
      const [, newest] = /from: 0, to: (\d+)/.exec(read('docs/guides/postgres-setup.md'))!
      expect(migrated).toContainEqual({ table: 'outbox', from: Number(newest), to: Number(newest) })
      expect(texts).toEqual([
        expect.stringContaining('CREATE TABLE'),
        expect.stringMatching(/ALTER TABLE/),
        expect.stringMatching(/DROP TABLE/),
      ])
    }))

  test('postgres-failures: the last minutes are sent again', () =>
    onPostgres(async (stage) => {
      const { admin } = stage.db.outbox
      await place(stage, 'A-1')
      await set(stage, 'published', 'A-1')
      await stage.pool.query(
        `UPDATE outbox SET created_at = '2026-05-01T09:55:00Z', published_at = '2026-05-01T09:56:00Z'`,
      )
      await play('postgres-failures', 1, { admin })
      expect(vi.mocked(console.log).mock.calls.flat()).toEqual(['1 events will be sent again'])
      expect(await states(stage.db)).toEqual({ 'A-1': 'ready' })
    }))

  test('postgres-pool: a transaction with a limit', () =>
    onPostgres(async ({ db, pool }) => {
      await pool.query(`CREATE TABLE accounts (id text, balance int); INSERT INTO accounts VALUES ('B-7', 100)`)
      await play('postgres-pool', 1, { db, OrderPlaced })
      expect((await pool.query('SELECT balance FROM accounts')).rows).toEqual([{ balance: 70 }])
      expect(await db.outbox.admin.list()).toHaveLength(1)
    }))

  test('postgres-operations: dead events are listed, shown, re-armed, discarded', () =>
    onPostgres(async (stage) => {
      await place(stage, 'A-1', 'B-2')
      for (const key of ['A-1', 'B-2']) await set(stage, 'dead', key)
      await play('postgres-operations', 1, { db: stage.db, ...window() })
      expect(await states(stage.db)).toEqual({ 'A-1': 'retrying', 'B-2': 'retrying' })
      expect(await actions(stage.db)).toContain('discard-dead')
    }))

  test('postgres-operations: pending events are removed, as many as were counted', () =>
    onPostgres(async (stage) => {
      await place(stage, 'A-1', 'B-2')
      await play('postgres-operations', 2, { admin: stage.db.outbox.admin, ...window() })
      expect(await states(stage.db)).toEqual({})
      expect(vi.mocked(console.log).mock.calls[0]![0]).toBe(2)
    }))

  test('postgres-operations: published events are sent again, archived ones too', () =>
    onPostgres(
      async (stage) => {
        await place(stage, 'A-1')
        await set(stage, 'published', 'A-1')
        await play('postgres-operations', 3, { db: stage.db, admin: stage.db.outbox.admin, ...window() })
        expect(await states(stage.db)).toEqual({ 'A-1': 'ready' })
        expect(await actions(stage.db)).toEqual(['replay', 'replay'])
      },
      { outbox: { archive: 'table' } },
    ))

  test('postgres-operations: a cleaner of outbox and inbox', () =>
    onPostgres(async (stage) => {
      await place(stage, 'A-1')
      await set(stage, 'published', 'A-1')
      await stage.pool.query(`UPDATE outbox SET published_at = now() - interval '8 days'`)
      const { cleaner } = await play('postgres-operations', 4, { db: stage.db })
      await eventually('it has cleaned', async () => (await stage.db.outbox.admin.list()).length === 0)
      await cleaner.stop()
    }))
})

describeWith(['redis'], 'samples of the guides on an outbox on Redis', () => {
  const TicketExpired = event<{ ticketId: string }>('ticket.expired')

  test('redis-outbox: the order and its event are one script; relay, cleaner and repair end at a SIGTERM', async () => {
    const server = await standalone()
    const broker = collector()
    const sent = () => eventually('it is sent', () => broker.messages.length === 1)
    await playUntil('redis-outbox', 1, { url: server.url, broker, OrderPlaced }, sent)
    expect(await redisAt(server).hget('{shop}:order:7', 'total')).toBe('10')
  })

  test('redis-outbox: shards, and a router whose messages go to the store of their key', async () => {
    const server = await standalone()
    const made = await play('redis-outbox', 2, { url: server.url, OrderPlaced, orderId: '7' })
    const { stores, outbox, db, billing } = made
    expect(await outbox.admin.list()).toMatchObject([{ key: '7', type: 'order.placed' }])
    expect(await redisAt(server).hget(db.key('order:7'), 'total')).toBe('10')
    const consumer = billing
      .on(OrderPlaced, () => {})
      .consume(scriptedSource([[OrderPlaced({ orderId: '7', total: 1 })]]))
    expect(await consumer.runOnce()).toMatchObject({ done: 1 })
    await consumer.stop()
    for (const store of stores) await store.stop()
    made['client'].disconnect()
  })

  test('redis-due: an intent is recorded, revoked, moved and cancelled', async () => {
    const client: Redis = redisAt(await standalone())
    const db = redis({ client, tag: 'shop', outbox: { kind: 'stored' } })
    const expiresAt = new Date(Date.now() + 3_600_000)
    const given = { db, id: 'T-1', expiresAt, later: new Date(Date.now() + 7_200_000), TicketExpired }
    const { worker, due } = await play('redis-due', 1, given)
    expect(await client.get('{shop}:ticket:T-1')).toBe('minted')
    await due.record({ id: 'T-2', at: new Date(0) })
    expect(await worker.runOnce()).toMatchObject({ enqueued: 1, suppressed: 0 })
    expect(await db.outbox.admin.list()).toMatchObject([{ type: 'ticket.expired', key: 'T-2' }])
    await db.stop()
  })
})

/** Without the tables that stand in it: the sample makes them otherwise. */
async function emptied(pool: Stage['pool']): Promise<Stage['pool']> {
  await pool.query('DROP SCHEMA public CASCADE; CREATE SCHEMA public')
  return pool
}
