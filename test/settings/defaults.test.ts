import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Clock, systemClock } from '../../src/core/index.ts'
import { Cleaner } from '../../src/index.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import { settingsFrom } from '../../src/settings/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { outboxOn, Placed, type TestOutbox } from '../postgres/support.ts'
import { eventually } from '../support/wait.ts'

let t: TestOutbox
beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

/** As a service starts whose environment says nothing. */
const relay = (more: Partial<RelayOptions> = {}) => t.relay({ ...settingsFrom({}).relay, ...more })
const events = (count: number) => Array.from({ length: count }, (_, n) => Placed({ n }))

describe('without any variable, as it works on PostgreSQL', () => {
  test('OUTBOX_RELAY_ENABLED true: it publishes', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await relay().start()
    await t.sink.arrived(1)
  })

  test('OUTBOX_RELAY_POLL_INTERVAL 1s: an idle relay waits a second before it looks again', async () => {
    const waits = new Set<number>()
    const sleep: Clock['sleep'] = (ms, signal) => {
      waits.add(ms)
      return systemClock.sleep(ms, signal)
    }
    await relay({ clock: { ...systemClock, sleep } }).start()
    await eventually('it waits', () => waits.has(1000))
    expect([...waits].filter((ms) => ms < 1000 && ms > 100)).toEqual([])
  })

  test('OUTBOX_RELAY_BATCH_SIZE 100: so many are taken at first', async () => {
    await t.enqueue(events(150))
    const told = recordTelemetry(['flow.taken'])
    try {
      await relay().start()
      expect(await told.next('flow.taken')).toMatchObject({ count: 100 })
    } finally {
      told.stop()
    }
  })

  test('OUTBOX_RELAY_LOCK_TTL 60s: the right to settle ends a minute after it was renewed', async () => {
    await relay().start()
    const left = async () => {
      const { rows } = await t.pool.query(
        'SELECT max(EXTRACT(EPOCH FROM expires_at - clock_timestamp()))::float AS seconds FROM outbox_terms',
      )
      return rows[0].seconds as number | null
    }
    await eventually('it leads', async () => ((await left()) ?? 0) > 50)
    expect(await left()).toBeLessThanOrEqual(60)
  })

  test('OUTBOX_RELAY_MAX_ATTEMPTS 25: the 25th failure is the last', async () => {
    await t.enqueue(events(2))
    await t.pool.query('UPDATE outbox SET attempts = 22 + sequence')
    t.sink.fail()
    await relay({ retry: { backoff: { min: '1h' } } }).runOnce()
    const { rows } = await t.pool.query('SELECT state, attempts::int AS attempts FROM outbox ORDER BY sequence')
    expect(rows).toEqual([
      { state: 'retrying', attempts: 24 },
      { state: 'dead', attempts: 25 },
    ])
  })

  test('OUTBOX_CLEANER_ENABLED true, OUTBOX_CLEANER_RETENTION 168h: what was published a week ago is removed', async () => {
    await t.enqueue(events(4))
    await t.pool.query(`UPDATE outbox SET state = CASE WHEN sequence < 4 THEN 'published' ELSE 'dead' END,
      published_at = CASE WHEN sequence < 4 THEN clock_timestamp() - (166 + sequence) * interval '1 hour' - interval '1 minute' END`)
    const cleaner = new Cleaner({ of: t.outbox.admin, ...settingsFrom({}).cleaner })
    await cleaner.start()
    await eventually('it has cleaned', async () => (await t.states())['published'] === 1)
    await cleaner.stop()
    const { rows } = await t.pool.query('SELECT sequence::int AS n FROM outbox ORDER BY 1')
    expect(rows).toEqual([{ n: 1 }, { n: 4 }])
  })
})
