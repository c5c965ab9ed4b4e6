import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Clock, systemClock } from '../../src/core/index.ts'
import { recordTelemetry, type TelemetryRecorder } from '../../src/testing/index.ts'
import { WAIT_LIMIT } from '../support/limits.ts'
import { until } from './faults/support.ts'
import { outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox
let telemetry: TelemetryRecorder

beforeEach(async () => {
  t = await outboxOn()
  telemetry = recordTelemetry(['relay.waiting', 'leases.expired', 'message.dead', 'message.suspected'])
})
afterEach(async () => {
  telemetry.stop()
  await t.end()
})

/** A relay that was killed leaves its term and its membership as they are. */
async function killed(seconds: number): Promise<void> {
  await t.pool.query(
    `INSERT INTO outbox_terms (shard, epoch, holder, expires_at)
     VALUES (0, 7, 'host:1:dead', clock_timestamp() + $1 * interval '1 second')
     ON CONFLICT (shard) DO UPDATE SET epoch = 7, holder = 'host:1:dead', expires_at = excluded.expires_at`,
    [seconds],
  )
}

describe('a relay that waits', () => {
  test('says at once for whom and until when, once, and again when the other is overdue', async () => {
    await killed(60)
    let asked = 0
    const clock: Clock = {
      ...systemClock,
      sleep: (ms, signal) => {
        if (ms === 20) asked++
        return systemClock.sleep(ms, signal)
      },
    }
    const relay = t.relay({ poll: '20ms', maxPoll: '20ms', clock })
    await relay.start()
    const waiting = await telemetry.next('relay.waiting', undefined, WAIT_LIMIT)
    expect(waiting).toMatchObject({ table: 'outbox', shard: 0, holder: 'host:1:dead', overdue: false })
    const left = new Date(waiting.until).getTime() - Date.now()
    expect(left).toBeGreaterThan(50_000)
    expect(left).toBeLessThanOrEqual(60_500)
    await until(
      () => asked > 5,
      WAIT_LIMIT,
      () => `the relay has asked ${asked} times`,
    )
    await killed(20)
    expect(await telemetry.next('relay.waiting', ({ overdue }) => overdue, WAIT_LIMIT)).toMatchObject({
      holder: 'host:1:dead',
    })
    expect(telemetry.of('relay.waiting')).toHaveLength(2)
    await killed(0)
    await t.enqueue(Placed({ n: 1 }))
    await t.sink.arrived(1)
    expect(telemetry.of('relay.waiting')).toHaveLength(2)
  })

  test('says so too when the other was faster', async () => {
    await killed(0)
    const other = await t.pool.connect()
    await other.query('BEGIN')
    await other.query(
      `UPDATE outbox_terms SET holder = 'host:2:fast', expires_at = clock_timestamp() + interval '1 minute' WHERE shard = 0`,
    )
    // Of those who look at the terms nobody sees that before the commit; and it asks once only.
    const relay = await t.relay({ poll: '10m', maxPoll: '10m' }).start()
    const behind = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
    await until(async () => (await t.pool.query(behind)).rowCount === 1)
    await other.query('COMMIT')
    other.release()
    await until(() => relay.status().state === 'waiting')
    expect(relay.status().reason).toMatch(
      /^outbox: another relay owns it: host:2:fast, until \S+ unless it is renewed$/,
    )
  })

  test('keeps no connection while it waits', async () => {
    await killed(60)
    await t.relay({ poll: '20ms', maxPoll: '20ms' }).start()
    await telemetry.next('relay.waiting', undefined, WAIT_LIMIT)
    const kept = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'waybill%'`
    await until(async () => (await t.pool.query(kept)).rowCount === 0)
  })
})

describe.each(['owner', 'lease'] as const)('leases that ran out, taken over by a relay that reads as %s', (reader) => {
  /** Claimed by a relay that was killed. */
  async function claimed(count: number, attempts: number): Promise<void> {
    const events = Array.from({ length: count }, (_, n) => Placed({ n }, { tenant: 'acme' }))
    await t.enqueue(events)
    await t.pool.query(
      `UPDATE outbox SET state = 'leased', lease = gen_random_uuid(), attempts = $1,
         available_at = clock_timestamp() - interval '1 second'`,
      [attempts],
    )
  }

  test('are told with their number', async () => {
    await claimed(3, 0)
    await untilEmpty(t.relay({ reader }))
    const told = telemetry.of('leases.expired')
    expect(told.reduce((sum, { count }) => sum + count, 0)).toBe(3)
    expect(told[0]).toMatchObject({ table: 'outbox' })
    expect(await t.states()).toEqual({ published: 3 })
  })

  test('and their dead with their tenant', async () => {
    // The owner tries it once more.
    t.sink.fail()
    await claimed(1, reader === 'owner' ? 23 : 24)
    await untilEmpty(t.relay({ reader }))
    expect(telemetry.of('message.dead')).toMatchObject([{ tenant: 'acme', attempt: 25, type: 'order.placed' }])
    expect(await t.states()).toEqual({ dead: 1 })
  })
})

test('an event that was alone in flight too often when relays died is told as dead, with type and tenant', async () => {
  await t.enqueue(Placed({ n: 1 }, { tenant: 'acme' }))
  await killed(0)
  await t.pool.query(`UPDATE outbox_terms SET note = (SELECT event_id FROM outbox) WHERE shard = 0`)
  await t.relay({ retry: { attempts: 1 } }).runOnce()
  await until(async () => (await t.states())['dead'] === 1)
  expect(telemetry.of('message.suspected')).toMatchObject([{ type: 'order.placed', tenant: 'acme', attempt: 1 }])
  expect(telemetry.of('message.dead')).toMatchObject([{ type: 'order.placed', tenant: 'acme', attempt: 1 }])
})
