import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type Clock, systemClock } from '../../src/core/index.ts'
import { sqlOf } from '../../src/drivers/sql/database.ts'
import type { OutboxStats, State } from '../../src/outbox/admin.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { countExactly, type IndexCount, lookAt } from '../../src/postgres/admin-stats.ts'
import { TimedCounts } from '../../src/postgres/timed-counts.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeOn } from '../support/services.ts'
import { type TestOutbox, testOutbox } from './admin-support.ts'

/** Up to so many of a state are counted. More than what every look counts. */
const BOUND = scale({ test: 60_000, full: 1_000_000, torture: 1_000_000 })
/** Four states have so many each: just under the bound. */
const EACH = BOUND - 500
const LARGE = ['ready', 'scheduled', 'held', 'dead'] as const

const estimated = ({ states }: OutboxStats) =>
  Object.entries(states)
    .filter(([state, { estimated }]) => estimated && state !== 'published')
    .map(([state]) => state)
    .sort()

describeOn(['postgres', 'postgres15'], 'four states of %s with nearly as many as are counted', (kind) => {
  let t: TestOutbox
  const adminOf = (clock?: Clock) => new PostgresOutboxAdmin(t.db, t.names, {}, clock)
  const write = (state: State, count: number) =>
    t.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, key, state, available_at)
      SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', CASE WHEN '${state}' IN ('held', 'dead') THEN 'k' || n / 8 END,
        '${state}', CASE WHEN '${state}' IN ('scheduled', 'leased') THEN now() + n * interval '1 second' END
      FROM generate_series(1, ${count}) AS n`)

  beforeAll(async () => {
    t = await testOutbox(kind)
    await t.query('ALTER TABLE outbox SET UNLOGGED')
    await t.query('ALTER TABLE outbox SET (autovacuum_enabled = false)')
    for (const state of LARGE) await write(state, EACH)
    await write('leased', 7)
    await t.query('VACUUM ANALYZE outbox')
  }, 900_000)
  afterAll(() => t.end())

  test('each is exact, whatever the others hold', async () => {
    const stats = await adminOf().stats({ exactUpTo: BOUND, published: false })
    expect(estimated(stats)).toEqual([])
    for (const state of LARGE) expect(stats.states[state], state).toEqual({ count: EACH, estimated: false })
    expect(stats.states.leased).toEqual({ count: 7, estimated: false })
    expect(stats.blockedKeys).toEqual({ count: Math.floor(EACH / 8) + 1, estimated: false })
  })

  test('what the server cannot count in the time a scrape has is an estimate, and all else is told', async () => {
    // For this clock no time passes: nothing but the server ends a count. It cannot do it in a millisecond.
    const stats = await adminOf(new FakeClock()).stats({ exactUpTo: BOUND, published: false, within: 1 })
    expect(estimated(stats)).toContain('held')
    expect(stats.blockedKeys.estimated).toBe(true)
    expect(stats.oldestReadySeconds).toBeGreaterThan(0)
    for (const state of LARGE) {
      const { count } = stats.states[state]
      expect(Math.abs(count / EACH - 1), `${state}: ${count} for ${EACH}`).toBeLessThan(0.05)
    }
    // No time at all: none is begun.
    const none = await adminOf().stats({ exactUpTo: BOUND, published: false, within: 0 })
    expect(estimated(none)).toEqual(['dead', 'held', 'ready', 'scheduled'])
  })

  test('what took long to count is shared for twenty times as long; without a limit of time nothing is', async () => {
    let now = 0
    const clock: Clock = { ...systemClock, monotonic: () => (now += 100) }
    const admin = adminOf(clock)
    const ready = async (within: number | undefined = 10_000) =>
      (await admin.stats({ exactUpTo: BOUND, published: false, ...(within > 0 ? { within } : {}) })).states.ready
    expect(await ready()).toEqual({ count: EACH, estimated: false })
    await write('ready', 1)
    try {
      expect((await ready()).count).toBe(EACH)
      expect((await ready(0)).count).toBe(EACH + 1)
      // It took 100 ms by this clock.
      now += 2000
      expect((await ready()).count).toBe(EACH + 1)
    } finally {
      await t.query(`DELETE FROM outbox WHERE event_id = (SELECT event_id FROM outbox WHERE state = 'ready' LIMIT 1)`)
    }
  })

  test('what was given up is not begun again at once', async () => {
    let now = 0
    const admin = adminOf({ ...systemClock, monotonic: () => (now += 100) })
    const look = async (within: number) => estimated(await admin.stats({ exactUpTo: BOUND, published: false, within }))
    // A millisecond is left when the first count begins.
    expect(await look(101)).not.toEqual([])
    expect(await look(60_000)).not.toEqual([])
    now += 60_000
    expect(await look(60_000)).toEqual([])
  })

  test('what is above the bound is an estimate, and the others are exact', async () => {
    const more = Math.ceil(BOUND * 0.3)
    await write('dead', more)
    try {
      const { states } = await adminOf().stats({ exactUpTo: BOUND, published: false })
      expect(states.dead.estimated).toBe(true)
      expect(Math.abs(states.dead.count / (EACH + more) - 1)).toBeLessThan(0.05)
      for (const state of ['ready', 'scheduled', 'held'] as const) {
        expect(states[state], state).toEqual({ count: EACH, estimated: false })
      }
    } finally {
      await t.query(`DELETE FROM outbox WHERE state = 'dead' AND sequence > (SELECT max(sequence) FROM outbox
        WHERE state <> 'dead')`)
    }
  })
})

/** What is counted one by one, in its order; `undefined` instead of those behind one that the server has ended. */
async function countedBy(t: TestOutbox, exactUpTo: number, counts = new TimedCounts<IndexCount>(), within?: number) {
  const begun: string[] = []
  const until = within === undefined ? undefined : counts.clock.monotonic() + within
  const counting = t.db.transaction(async (tx) => {
    const on = sqlOf(tx)
    const look = await lookAt(on, t.names, false)
    const query: typeof on.query = (text, values) => {
      const condition = /WHERE .*(state = '\w+'|state IN \(.*?\))/.exec(text)?.[1]
      if (condition !== undefined) begun.push(condition)
      return on.query(text, values)
    }
    await countExactly({ query }, t.names, look, counts, { exactUpTo, until })
  })
  await counting.catch((error) => expect(error).toMatchObject({ code: '57014' }))
  return begun
}

describeOn(['postgres', 'postgres15'], 'what a sample or statistics of %s put too high', (kind) => {
  let t: TestOutbox
  beforeAll(async () => {
    t = await testOutbox(kind)
    await t.query('ALTER TABLE outbox SET UNLOGGED')
    await t.query('ALTER TABLE outbox SET (autovacuum_enabled = false)')
  })
  afterAll(() => t.end())
  afterEach(() => changed('TRUNCATE outbox'))
  const stats = (exactUpTo: number) =>
    new PostgresOutboxAdmin(t.db, t.names).stats({ exactUpTo, published: false }).then(({ states }) => states)
  /** The server counts changes for its statistics when they come to it: at once, not some time within the next seconds. */
  const changed = (text: string) => t.script(`${text}; SELECT pg_stat_force_next_flush()`)
  const write = (state: State, from: number, count: number) =>
    changed(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, available_at, sequence)
      SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', '${state}', CASE WHEN '${state}' IN ('scheduled',
        'retrying', 'leased') THEN now() + interval '1 day' END, n FROM generate_series(${from}, ${from + count - 1}) AS n`)
  /** One key has so many, and each of `others` one. */
  const hold = (count: number, others: number) =>
    changed(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, key)
      SELECT gen_random_uuid(), 'orders', '/t', 'x', '{}', 'held', CASE WHEN n <= ${count} THEN 'a' ELSE 'b' || n END
      FROM generate_series(1, ${count + others}) AS n`)

  test('dead ones that died together, and some much later: they are counted, and never estimated to be millions', async () => {
    await write('dead', 1, 12_000)
    await write('dead', 300_000_000, 5)
    expect((await stats(1_000_000)).dead).toEqual({ count: 12_005, estimated: false })
    // Where nobody asks for more than is counted at every look.
    const { dead } = await stats(0)
    expect(dead.estimated).toBe(true)
    expect(dead.count).toBeLessThan(20_000)
  })

  test.each(['ready', 'dead', 'held', 'scheduled', 'retrying', 'leased'] as const)(
    '%s: as many as the bound are exact, one more is not',
    async (state) => {
      const most = 12_000
      await (state === 'held' ? hold(1, most - 1) : write(state, 1, most))
      expect((await stats(most))[state]).toEqual({ count: most, estimated: false })
      await (state === 'held' ? hold(1, 0) : write(state, most + 1, 1))
      expect((await stats(most))[state].estimated).toBe(true)
    },
  )

  test('what is leased or retried is exact beside many more that are scheduled', async () => {
    const most = 11_000
    await write('scheduled', 1, 4 * most)
    await write('leased', 4 * most + 1, most)
    await write('retrying', 5 * most + 1, 7)
    const { scheduled, leased, retrying } = await stats(most)
    expect(scheduled.estimated).toBe(true)
    expect(leased).toEqual({ count: most, estimated: false })
    expect(retrying).toEqual({ count: 7, estimated: false })
  })

  test('keys that wait behind one that has most of the events', async () => {
    await hold(11_000, 4000)
    const of = (exactUpTo: number) => new PostgresOutboxAdmin(t.db, t.names).stats({ exactUpTo, published: false })
    expect((await of(1_000_000)).blockedKeys).toEqual({ count: 4001, estimated: false })
    expect((await of(15_000)).blockedKeys).toEqual({ count: 4001, estimated: false })
    expect((await of(14_999)).blockedKeys.estimated).toBe(true)
  })

  test('scheduled ones that have gone out since the last ANALYZE', async () => {
    await write('scheduled', 1, 70_000)
    await t.query('ANALYZE outbox')
    const { scheduled } = await stats(11_000)
    expect(scheduled.estimated).toBe(true)
    expect(Math.abs(scheduled.count / 70_000 - 1)).toBeLessThan(0.05)
    expect(await countedBy(t, 11_000), 'what is surely above is not begun').toEqual([])
    await changed('DELETE FROM outbox WHERE sequence > 10900')
    expect((await stats(11_000)).scheduled).toEqual({ count: 10_900, estimated: false })
  })

  test('a count that took too long comes last the next time, so that it keeps none of the others from being counted', async () => {
    await write('ready', 1, 60_000)
    await write('dead', 60_001, 60_000)
    // For this clock no time passes: nothing but the server ends a count. It cannot do it in a millisecond.
    const counts = new TimedCounts<IndexCount>(new FakeClock())
    const [first, ...more] = await countedBy(t, 1_000_000, counts, 1)
    expect(more).toEqual([])
    expect(await countedBy(t, 1_000_000, counts, 60_000)).toEqual([expect.not.stringContaining(first!), first])
  })
})
