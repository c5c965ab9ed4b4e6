import type pg from 'pg'
import { afterEach, describe, expect, test } from 'vitest'
import { postgres } from '../../../src/postgres/index.ts'
import { type SeededRandom, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { Placed, record } from './business.ts'
import { until, type World, world } from './support.ts'

let t: World

afterEach(() => t.end())

const limit = scale({ test: 120_000, full: 600_000, torture: 7_200_000 })
const writers = scale({ test: 8, full: 32, torture: 32 })
const events = scale({ test: 400, full: 20_000, torture: 1_000_000 })
const kills = scale({ test: 2, full: 40, torture: 1000 })
/** In tier test other files run beside it. An owner that is late by a whole lease loses it, and a kill right then is charged. */
const lease = scale({ test: 4000, full: 1000, torture: 1000 })
const keys = scale({ test: 20, full: 100, torture: 1000 })

/** Locks the key in a table of the business, which also counts its events: numbers are in commit order. */
async function next(tx: pg.ClientBase, key: string): Promise<number> {
  const { rows } = await tx.query(
    'INSERT INTO counters AS c VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = c.n + 1 RETURNING n',
    [key],
  )
  return rows[0].n
}

/** One transaction of a kind chosen by chance; answers how many events it left. */
async function transact(client: pg.PoolClient, random: SeededRandom, id: number): Promise<number> {
  const quiet = postgres({ pool: t.pool, outbox: { wake: 'off' } }).outbox
  const { outbox } = t.db
  const key = `key ${random.integer(keys)}`
  const kind = random.integer(6)
  await client.query('BEGIN')
  const n = await next(client, key)
  const event = Placed({ n }, { key })
  await record(client, [event])
  if (kind === 0) {
    await outbox.enqueue(client, event)
    await client.query('ROLLBACK')
    return 0
  }
  if (kind === 1) {
    // What a savepoint took back is gone, the rest stays.
    await outbox.enqueue(client, event)
    await client.query('SAVEPOINT s')
    await outbox.enqueue(client, Placed({ n: 0 }, { key }))
    await client.query('ROLLBACK TO SAVEPOINT s')
  } else if (kind === 2) {
    const name = `writer ${process.pid} ${id}`
    await quiet.enqueue(client, event)
    await client.query(`PREPARE TRANSACTION '${name}'`)
    const commits = random.integer(10) < 7
    await client.query(`${commits ? 'COMMIT' : 'ROLLBACK'} PREPARED '${name}'`)
    return commits ? 1 : 0
  } else if (kind === 3) {
    await outbox.enqueue(client, event, { serialize: true })
  } else {
    await outbox.enqueue(client, event)
  }
  await client.query('COMMIT')
  return 1
}

/** Two transactions write the same event: the second waits for the first, and has it when that is rolled back. */
async function conflict(random: SeededRandom): Promise<number> {
  const event = Placed({ n: 1 })
  const [first, second] = [await t.pool.connect(), await t.pool.connect()]
  await first.query('BEGIN')
  await t.db.outbox.enqueue(first, event)
  await second.query('BEGIN')
  const waiting = t.db.outbox.enqueue(second, event)
  await until(async () => {
    const { rows } = await t.pool.query(`SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'`)
    return rows.length > 0
  })
  const commits = random.integer(2) === 0
  if (commits) await record(first, [event])
  await first.query(commits ? 'COMMIT' : 'ROLLBACK')
  await waiting
  if (!commits) await record(second, [event])
  await second.query('COMMIT')
  first.release()
  second.release()
  return 1
}

describe('writers of all kinds', { timeout: limit }, () => {
  test('commits, rollbacks, savepoints, prepared transactions and waits, with takeovers: every committed event arrives, in order', async () => {
    t = await world()
    let left = events
    let relay = await t.child({ relay: { lease, batch: 50, maxBatch: 50 }, delay: 1 })
    const write = async (id: number) => {
      const random = seededRandom(id)
      const client = await t.pool.connect()
      while (left > 0) {
        const done = await transact(client, random, id)
        left -= done
      }
      client.release()
    }
    const conflicts = async () => {
      const random = seededRandom(77)
      while (left > 0) {
        const done = await conflict(random)
        left -= done
      }
    }
    // Owners are killed in the middle of whatever they do, a settlement as likely as not.
    let deaths = 0
    const takeovers = async () => {
      while (left > 0 && deaths < kills) {
        const settled = t.journal.count('settled')
        await until(() => left <= 0 || t.journal.count('settled') > settled + 20, limit)
        relay.kill('SIGKILL')
        await relay.finished
        deaths++
        relay = await t.child({ relay: { lease, batch: 50, maxBatch: 50 }, delay: 1 })
      }
    }
    await Promise.all([...Array.from({ length: writers }, (_, id) => write(id)), conflicts(), takeovers()])
    await t.settled(limit)
    relay.kill('SIGTERM')
    await relay.finished
    expect(await t.problems({ duplicates: deaths * 100 })).toEqual([])
    const { rows } = await t.pool.query('SELECT (SELECT count(*) FROM ledger) = (SELECT count(*) FROM outbox) AS same')
    expect(rows).toEqual([{ same: true }])
  })

  test('a transaction left open holds nobody up, and its event arrives after its commit', async () => {
    t = await world()
    const open = await t.pool.connect()
    await open.query('BEGIN')
    const late = Placed({ n: 0 }, { key: 'late' })
    await t.db.outbox.enqueue(open, late)
    await record(open, [late])
    // It does not look by itself: whatever arrives was told of, or found by the lock that it waits for.
    const relay = await t.child({ relay: { poll: '1h', maxPoll: '1h' } })
    await until(() => t.journal.count('opened') > 0)
    const committed = new Map<string, number>()
    const count = scale({ test: 150, full: 3000, torture: 100_000 })
    for (let i = 0; i < count; i++) {
      const [event] = await t.fill(1)
      committed.set(event!.id, Date.now())
      await new Promise((resolve) => setTimeout(resolve, 4))
    }
    await until(() => t.journal.arrived() === count)
    const starts = t.journal.read().filter(({ what }) => what === 'start')
    const delays = starts.map(({ id, at }) => at - committed.get(id!)!).sort((a, b) => a - b)
    // In tier test other tests run beside it, and a machine that is busy is late now and then.
    const most = scale({ test: 0.5, full: 0.99, torture: 0.99 })
    expect(delays[Math.floor(delays.length * most)]).toBeLessThan(250)
    await open.query('COMMIT')
    open.release()
    await until(() => t.journal.arrived() === count + 1)
    await t.settled()
    relay.kill('SIGTERM')
    await relay.finished
    expect(await t.problems()).toEqual([])
  })
})
