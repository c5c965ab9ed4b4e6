import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Outcome } from '../../../src/adapter.ts'
import type { Publisher } from '../../../src/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { until, type World, world } from './support.ts'

let t: World

beforeEach(async () => {
  t = await world()
  await t.fill(3, 1)
})
afterEach(() => t.end())

const rows = async () =>
  (await t.pool.query('SELECT state, attempts FROM outbox ORDER BY sequence')).rows as { state: string }[]

const always = (outcome: Outcome): Publisher => ({
  name: 'always',
  features: {},
  publish: async (messages) => messages.map(() => outcome),
})
const OK_ALL = always({ kind: 'ok' })
const NO = always({ kind: 'failed', error: new Error('no') })

/** Runs one round in which `meanwhile` happens while the first event is out, and answers how many were stale. */
async function staleAfter(meanwhile: string, options: Parameters<World['relay']>[0]): Promise<number> {
  const telemetry = recordTelemetry(['flow.settled'])
  let done = false
  const during = async () => {
    if (!done) await t.pool.query(meanwhile)
    done = true
  }
  await t.relay({ ...options, during }).runOnce()
  telemetry.stop()
  return telemetry.of('flow.settled').reduce((sum, { stale }) => sum + stale, 0)
}

const TAKEOVER = `UPDATE outbox_terms SET epoch = epoch + 1, holder = 'another', expires_at = now() + interval '1 hour' WHERE shard = 0`

describe('a right that has passed on', () => {
  test.each([
    ['published', OK_ALL, 1],
    // With the two of its key that wait behind it.
    ['retrying', NO, 3],
  ] as const)('an owner that was taken over settles nothing as %s, and says so', async (_, inner, stale) => {
    expect(await staleAfter(TAKEOVER, { inner })).toBe(stale)
    expect(await rows()).toEqual(Array(3).fill({ state: 'ready', attempts: 0 }))
  })

  test('a term ends by the clock: a settlement that waited past its end changes nothing', async () => {
    const other = await t.pool.connect()
    let begun = false
    const relay = t.relay({
      inner: OK_ALL,
      during: async () => {
        if (begun) return
        begun = true
        await other.query('BEGIN')
        await other.query(
          `UPDATE outbox_terms SET expires_at = clock_timestamp() + interval '400 milliseconds' WHERE shard = 0`,
        )
      },
    })
    const round = relay.runOnce()
    await until(async () => {
      const waiting = `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%published_at = clock%'
        AND datname = current_database()`
      return (await t.pool.query(waiting)).rows.length > 0
    })
    await other.query('SELECT pg_sleep(0.5)')
    await other.query('COMMIT')
    other.release()
    await round
    expect((await rows())[0]).toEqual({ state: 'ready', attempts: 0 })
  })

  test.each([
    ['claimed by another', 'UPDATE outbox SET lease = gen_random_uuid()'],
    ['run out', `UPDATE outbox SET available_at = clock_timestamp() - interval '1 second'`],
  ])('a lease that was %s settles nothing, and says so', async (_, meanwhile) => {
    for (const inner of [OK_ALL, NO]) {
      expect(await staleAfter(meanwhile, { inner, reader: 'lease' })).toBeGreaterThan(0)
      expect((await rows())[0]).toMatchObject({ state: 'leased' })
      await t.pool.query(`UPDATE outbox SET state = 'ready', lease = NULL, available_at = NULL, attempts = 0`)
    }
  })

  test('each holder of a term has an epoch of its own, and only the last can renew it', async () => {
    const { leadership } = t.db.outbox
    const first = (await leadership.acquire('a', 0, 60_000))!
    expect(await leadership.acquire('b', 0, 60_000)).toBeUndefined()
    await t.pool.query(`UPDATE outbox_terms SET expires_at = now() WHERE shard = 0`)
    const second = (await leadership.acquire('b', 0, 60_000))!
    expect(BigInt(second.epoch)).toBeGreaterThan(BigInt(first.epoch))
    expect(second.abandoned).toBe(true)
    expect(await leadership.renew('a', first, 60_000)).toBe(false)
    expect(await leadership.renew('b', second, 60_000)).toBe(true)
  })
})

describe('after a relay that died', () => {
  const ids = async () =>
    (await t.pool.query('SELECT event_id FROM outbox ORDER BY sequence')).rows.map((r) => r.event_id)
  const died = (note: string | null) =>
    t.pool.query(
      `INSERT INTO outbox_terms VALUES (0, 7, 'the dead', now() - interval '1 second', $1)
       ON CONFLICT (shard) DO UPDATE SET holder = 'the dead', expires_at = excluded.expires_at, note = excluded.note`,
      [note],
    )

  test('the next one records each event that goes out alone, before it does', async () => {
    await died(null)
    const notes: [string, string][] = []
    const relay = t.relay({
      during: async ([message]) => {
        const { rows } = await t.pool.query('SELECT note FROM outbox_terms WHERE shard = 0')
        notes.push([message!.id, rows[0].note])
      },
    })
    await relay.runOnce()
    const [first] = await ids()
    expect(notes[0]).toEqual([first, first])
    await relay.stop()
    const { rows: after } = await t.pool.query('SELECT note, holder FROM outbox_terms WHERE shard = 0')
    expect(after).toEqual([{ note: null, holder: '' }])
  })

  test('the event it had recorded is charged, and dead when it has no attempts left', async () => {
    const [first] = await ids()
    await died(first)
    const relay = t.relay({ retry: { attempts: 2 } })
    await relay.runOnce()
    expect((await rows())[0]).toEqual({ state: 'retrying', attempts: 1 })
    await relay.stop()
    await died(first)
    await t.relay({ retry: { attempts: 2 } }).runOnce()
    expect((await rows())[0]).toEqual({ state: 'dead', attempts: 2 })
  })
})
