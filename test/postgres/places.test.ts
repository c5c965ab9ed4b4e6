import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Delivery, Session } from '../../src/flow/index.ts'
import { type Message, outboxSource } from '../../src/index.ts'
import { sql } from '../../src/postgres/sql.generated.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox
let clock: FakeClock
const sessions: Session[] = []

beforeEach(async () => {
  t = await outboxOn()
  clock = new FakeClock()
})
afterEach(async () => {
  await Promise.all(sessions.splice(0).map((session) => session.close()))
  await t.end()
})

const DONE = { kind: 'done' } as const
const at = (n: number, key?: string) => Placed({ n }, key === undefined ? {} : { key })
const many = (from: number, to: number, key?: string) =>
  Array.from({ length: to - from + 1 }, (_, i) => at(from + i, key))
const due = () => ({ availableAt: new Date(Date.now() - 1000) })
const numbers = (taken: readonly Delivery[]) => taken.map(({ message }) => number(message as Message))

/** An owner whose clock stands still, until a test says so. */
async function owner(wake = false): Promise<Session> {
  const source = outboxSource(t.outbox, { reader: 'owner', wake, lease: '1h', clock })
  const session = (await source.open(new AbortController().signal))!
  sessions.push(session)
  return session
}
const take = (session: Session, count = 100) => session.take({ count, bytes: 1e9 }, session.lost)
const settle = (session: Session, taken: readonly Delivery[]) => session.settle(taken.map((one) => [one, DONE]))

/** Takes and settles until nothing comes. */
async function drain(session: Session, count = 100): Promise<number[]> {
  const all: number[] = []
  for (;;) {
    const taken = await take(session, count)
    if (taken.length === 0) return all
    all.push(...numbers(taken))
    await settle(session, taken)
  }
}

describe('timers', () => {
  test('a due event waits for ready ones of its key that are not read yet', async () => {
    await t.enqueue(many(1, 30, 'a'))
    await t.enqueue(at(31, 'a'), due())
    await t.enqueue(many(32, 40, 'a'))
    const session = await owner()
    expect(await drain(session, 10)).toEqual(Array.from({ length: 40 }, (_, i) => i + 1))
  })

  test('a due event whose key is blocked waits for ready ones that are not read yet, too', async () => {
    await t.enqueue(at(1, 'a'))
    const session = await owner()
    await session.settle([
      [(await take(session))[0]!, { kind: 'retry', after: 0, error: new Error('no'), charged: true }],
    ])
    await t.enqueue(many(2, 30, 'b'))
    await t.enqueue(at(31, 'a'))
    await t.enqueue(at(32, 'a'), due())
    await clock.advance(60)
    const all = await drain(session, 10)
    expect(all.filter((n) => n === 1 || n > 30)).toEqual([1, 31, 32])
  })

  test('a due event comes between earlier and later ones of its key, in one take', async () => {
    await t.enqueue(at(1, 'a'))
    await t.enqueue(at(2, 'a'), due())
    await t.enqueue(at(3, 'a'))
    expect(numbers(await take(await owner()))).toEqual([1, 2, 3])
  })

  test('many that are due do not keep ready events waiting, nor the other way round', async () => {
    await t.enqueue(many(1, 400), due())
    await t.enqueue(many(401, 405))
    const session = await owner()
    const first = numbers(await take(session))
    expect(first.filter((n) => n > 400)).toHaveLength(5)
    expect(first.filter((n) => n <= 400).length).toBeGreaterThanOrEqual(45)
    await t.enqueue(many(406, 905))
    const next = numbers(await take(session))
    expect(next.filter((n) => n <= 400).length).toBeGreaterThanOrEqual(45)
  })

  test('where only timers are due a take comes full', async () => {
    await t.enqueue(many(1, 400), due())
    const session = await owner()
    await take(session)
    expect(await take(session)).toHaveLength(100)
  })

  test('one that a person sets again right after timers were read is found', async () => {
    await t.enqueue(at(1, 'a'))
    const session = await owner(true)
    const [delivery] = await take(session)
    await session.settle([[delivery!, { kind: 'dead', reason: 'refused', error: undefined }]])
    expect(await take(session)).toEqual([])
    const waiting = session.wait!(3_600_000, session.lost)
    await t.outbox.admin.rearm({}, { by: 'test', note: 'again' })
    await waiting
    expect(numbers(await take(session))).toEqual([1])
  })

  test('one that is set anew right after timers were read is waited for, and no longer', async () => {
    const session = await owner(true)
    expect(await take(session)).toEqual([])
    const waiting = session.wait!(3_600_000, session.lost)
    await eventually('it sleeps', () => clock.nextIn === 3_600_000)
    await t.enqueue(at(1), { availableAt: new Date(Date.now() + 60_000) })
    await waiting
    expect(await take(session)).toEqual([])
    const over = new AbortController()
    const again = session.wait!(3_600_000, over.signal)
    await eventually('it sleeps', () => clock.nextIn !== undefined && clock.nextIn <= 60_000)
    over.abort()
    await again
  })

  test('one that is set while the relay is busy is found soon', async () => {
    const session = await owner()
    await t.enqueue(many(1, 3))
    await take(session, 1)
    await t.enqueue(at(4), due())
    await clock.advance(60)
    expect(numbers(await take(session, 3))).toContain(4)
  })
})

describe('the low-water mark', () => {
  /** So much was published that scans begin far behind. */
  async function raised(): Promise<Session> {
    await t.enqueue(many(1, 2500))
    const session = await owner()
    for (const count of [1000, 1000, 200, 200, 100]) {
      await settle(session, await take(session, count))
      await clock.advance(100)
    }
    await drain(session)
    return session
  }

  test.each([3, -3])('an idle owner finds what was made ready below it: number %i', async (low) => {
    const session = await raised()
    expect(await take(session)).toEqual([])
    const told = recordTelemetry(['warning'])
    await t.pool.query(`UPDATE outbox SET state = 'ready', sequence = $1 WHERE payload ->> 'n' = '3'`, [low])
    expect(await take(session)).toEqual([])
    await clock.advance(1001)
    expect(numbers(await take(session))).toEqual([3])
    told.stop()
    if (low === 3) expect(told.of('warning')).toMatchObject([{ message: expect.stringContaining('numbers are not') }])
  })

  test('where numbers were set back, events are found without waiting for the scan from the left', async () => {
    const session = await raised()
    await t.pool.query(`SELECT setval(pg_get_serial_sequence('outbox', 'sequence'), 1, false)`)
    await t.enqueue(at(5001))
    await clock.advance(1001)
    await settle(session, await take(session))
    for (const n of [5002, 5003]) {
      await t.enqueue(at(n))
      expect(numbers(await take(session))).toEqual([n])
    }
  })

  test('there is none where sessions cache numbers, and a person is told', async () => {
    await t.pool.query('ALTER SEQUENCE outbox_sequence_seq CACHE 50')
    // This one keeps the numbers that come first.
    const first = await t.pool.connect()
    try {
      const enqueue = async (n: number) => {
        await first.query('BEGIN')
        await t.outbox.enqueue(first, at(n))
        await first.query('COMMIT')
      }
      await enqueue(0)
      const told = recordTelemetry(['warning'])
      const session = await raised()
      told.stop()
      expect(told.of('warning')).toMatchObject([{ message: expect.stringContaining('CACHE 50') }])
      await enqueue(9001)
      expect(numbers(await take(session))).toEqual([9001])
    } finally {
      first.release(true)
    }
  })
})

test('held events are read key by key, whatever the statistics say', async () => {
  const client = await t.pool.connect()
  await client.query('ALTER TABLE outbox SET (autovacuum_enabled = false)')
  await client.query('SET plan_cache_mode = force_generic_plan')
  // Planned before there is anything, as by a relay that was there first.
  const held = t.outbox.names.fill(sql['scan-held'])
  await client.query(`PREPARE held (text, text, text, text) AS ${held}`)
  await client.query(`EXECUTE held ('{a}', '1', '{}', '1')`)
  await client.query(
    `INSERT INTO outbox (event_id, state, topic, key, source, event_type, payload)
     SELECT gen_random_uuid(), CASE WHEN n <= 100 AND n % 2 = 0 THEN 'dead' ELSE 'held' END, 't', 'k' || n % 100, '/s', 't', '{}'
     FROM generate_series(1, 20000) AS n`,
  )
  const keys = `{${Array.from({ length: 100 }, (_, i) => `k${i}`).join(',')}}`
  const { rows } = await client.query(
    `EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE held ('${keys}', '10', '{[1,100]}', '500')`,
  )
  client.release()
  const plan = rows[0]['QUERY PLAN'][0].Plan
  expect(plan['Actual Rows']).toBe(500)
  expect(visited(plan)).toBeLessThanOrEqual(100 * 12)
})

/** Rows that were read from the table, with those that a filter removed. */
function visited(plan: Record<string, unknown>): number {
  const inner = (plan['Plans'] as Record<string, unknown>[] | undefined) ?? []
  const below = inner.reduce((sum, part) => sum + visited(part), 0)
  if (plan['Relation Name'] !== 'outbox') return below
  const each = Number(plan['Actual Rows']) + Number(plan['Rows Removed by Filter'] ?? 0)
  return below + each * Number(plan['Actual Loops'])
}
