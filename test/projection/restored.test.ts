import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Message } from '../../src/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { viewOf } from '../../src/projection/index.ts'
import { collector } from '../../src/testing/index.ts'
import { describeWith, type FreshDatabase, freshDatabase, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { created, itemAdded, Other, orders, type World, world } from './support.ts'

interface Shop {
  readonly db: Postgres<pg.PoolClient>
  readonly pool: pg.Pool
  write(...events: Message[]): Promise<unknown>
}

/** The view is in a database of its own: it is not restored with the log. */
describeWith(['postgres'], 'a log that was restored to an earlier time', () => {
  let at: World
  let database: FreshDatabase
  const ends: (() => unknown)[] = []
  beforeEach(async () => {
    at = await world()
    database = await freshDatabase()
    ends.push(() => database.drop())
  })
  afterEach(async () => {
    await at.end()
    for (const end of ends.splice(0).reverse()) await end()
  })

  function shop(url = database.url): Shop {
    const pool = new pg.Pool({ connectionString: url })
    pool.on('error', () => {})
    ends.push(() => pool.ended || pool.end())
    const db = postgres({ pool, outbox: { log: true } })
    return { db, pool, write: (...events) => db.withTransaction((tx) => db.outbox.enqueue(tx, events)) }
  }

  const administer = async (text: string) => {
    const client = new pg.Client({ connectionString: service('postgres').url })
    await client.connect()
    await client.query(text).finally(() => client.end())
  }

  /** As it is now. */
  async function backup({ pool }: Shop): Promise<string> {
    await pool.end()
    const name = `${database.name}_old`
    const left = `SELECT 1 FROM pg_stat_activity WHERE datname = '${database.name}' AND backend_type = 'client backend'`
    await eventually('nobody is there', async () => (await at.pool.query(left)).rows.length === 0)
    await administer(`CREATE DATABASE ${name} TEMPLATE ${database.name}`)
    ends.push(() => administer(`DROP DATABASE ${name} WITH (FORCE)`))
    const url = new URL(database.url)
    url.pathname = `/${name}`
    return url.href
  }

  /** Three events, of which a backup knows; two more are applied, and then the backup is what there is. */
  async function restored(): Promise<Shop> {
    const first = shop()
    await first.db.migrate()
    await first.write(created('o1'), created('o2'), created('o3'))
    const old = await backup(first)
    const lost = shop()
    await lost.write(itemAdded('o1', 1), itemAdded('o2', 1))
    const projector = at.projector(lost.db.log, [orders()])
    await projector.runOnce()
    await projector.stop()
    expect(await at.db.projections.load(orders())).toMatchObject({ position: 5n, event: expect.any(String) })
    return shop(old)
  }

  const refused = (message: RegExp) => ({ code: 'CHECKPOINT_AHEAD', message: expect.stringMatching(message) })

  test.each([
    ['not yet as far as it was', [created('n1')], /up to 5, and the log ends at 4/],
    ['exactly as far', [created('n1'), created('n2')], /applied event \S+ at 5, and the log has \S+ there by now/],
    ['further', [created('n1'), created('n2'), created('n3')], /applied event \S+ at 5, and the log has \S+ there/],
    ['further, with events nobody handles', [1, 2, 3, 4].map((n) => Other({ n })), /applied event \S+ at 5/],
  ])('it has grown %s: nothing is applied, and it is said', async (_, events, message) => {
    const now = await restored()
    const before = await at.rows()
    await now.write(...events)
    await expect(at.projector(now.db.log, [orders()]).runOnce()).rejects.toMatchObject(refused(message))
    expect(await at.rows()).toEqual(before)
    expect(await at.db.projections.load(orders())).toMatchObject({ position: 5n })
  })

  test('a write to it is not taken for one that was applied, though its number was reached', async () => {
    const now = await restored()
    const receipts = await now.db.withTransaction((tx) => now.db.outbox.enqueue(tx, created('n1')))
    const token = now.db.log.token(receipts)
    expect(token.positions).toEqual([4n])
    const projector = at.projector(now.db.log, [orders()])
    for (const events of [[], [created('n2'), created('n3')]]) {
      if (events.length > 0) await now.write(...events)
      await expect(projector.runOnce()).rejects.toMatchObject({ code: 'CHECKPOINT_AHEAD' })
      const stalled = { answer: 'stalled', reason: expect.stringContaining('was restored to an earlier time') }
      expect(await projector.view(orders()).waitFor(token)).toEqual(stalled)
      expect(await viewOf(at.db, orders()).waitFor(token)).toEqual(stalled)
    }
  })

  test('it has a gap there by now', async () => {
    const now = await restored()
    await now.write(created('n1'))
    const undone = now.db.withTransaction(async (tx) => {
      await now.db.outbox.enqueue(tx, created('n2'))
      throw new Error('undone')
    })
    await expect(undone).rejects.toThrow('undone')
    await now.write(created('n3'))
    const again = at.projector(now.db.log, [orders()]).runOnce()
    await expect(again).rejects.toMatchObject(refused(/the log has no event there/))
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['o1', 'o2', 'o3'])
  })

  /** In place, and nobody loses a connection. */
  const goBack = ({ pool }: Shop, to: number) =>
    pool.query(
      `BEGIN; DELETE FROM outbox WHERE sequence > ${to}; ALTER TABLE outbox ALTER sequence RESTART WITH ${to + 1}; COMMIT`,
    )

  test.each([0, 2])('while it is followed, and %i more are there at once: it stops and says so', async (more) => {
    const log = shop()
    await log.db.migrate()
    await log.write(created('o1'), created('o2'), created('o3'))
    const projector = at.projector(log.db.log, [orders()], { poll: 20 })
    await projector.runOnce()
    await goBack(log, 2)
    await log.write(created('n1'), ...Array.from({ length: more }, (_, n) => created(`m${n}`)))
    await expect(projector.runOnce()).rejects.toMatchObject(refused(/applied event \S+ at 3/))
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['o1', 'o2', 'o3'])
  })

  test('while it runs and has nothing to do: it stops, says so, and applies nothing more', async () => {
    const log = shop()
    await log.db.migrate()
    await log.write(created('o1'), created('o2'), created('o3'))
    const projector = await at.projector(log.db.log, [orders()], { poll: 20 }).start()
    const checkpoint = () => at.db.projections.load(orders())
    await eventually('it has been built', async () => (await checkpoint())?.builtAt)
    const locked = await log.pool.connect()
    // All at once for whoever reads.
    await locked.query('BEGIN; LOCK TABLE outbox; DELETE FROM outbox WHERE sequence > 2')
    await locked.query('ALTER TABLE outbox ALTER sequence RESTART WITH 3')
    await log.db.outbox.enqueue(locked, [created('n1'), created('n2')])
    await locked.query('COMMIT')
    locked.release()
    await eventually('it says so', async () => /applied event \S+ at 3/.test((await checkpoint())?.problem ?? ''))
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['o1', 'o2', 'o3'])
    await projector.stop()
  })

  test('the same log is not taken for another: published, cleaned, replayed, trimmed, or moved by older code', async () => {
    const log = shop()
    await log.db.migrate()
    const relay = new Relay({ from: log.db.outbox, to: collector() })
    const audit = { by: 'test', note: 'a test' }
    const again = async (...events: Message[]) => {
      await log.write(...events)
      await relay.runOnce()
      const projector = at.projector(log.db.log, [orders()])
      await projector.runOnce()
      await projector.stop()
      return (await at.rows()).length
    }
    expect(await again(created('o1'), created('o2'))).toBe(2)
    await log.db.outbox.admin.clean({ retention: 0 })
    expect(await again(Other({ n: 1 }), created('o3'), Other({ n: 2 }))).toBe(3)
    await log.db.outbox.admin.clean({ retention: 0 })
    await log.db.outbox.admin.replay({}, audit, { archive: true })
    expect(await again(created('o4'))).toBe(4)
    const { position } = await log.db.log.head()
    await log.db.trimLog(position + 1n, audit)
    expect(await again(created('o5'))).toBe(5)
    // Code that does not know of ids moves the position alone.
    await log.write(Other({ n: 3 }))
    await at.pool.query('UPDATE projections SET position = position + 1')
    expect(await again(created('o6'))).toBe(6)
    await relay.stop()
  })
})
