import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { WAIT_LIMIT } from '../../support/limits.ts'
import { describeWith, service } from '../../support/services.ts'
import { Placed } from './business.ts'
import { BROKER_TABLE, sqlBroker, sqlBrokerSource } from './sql-broker.ts'
import { until, type World, world } from './support.ts'

let t: World

afterEach(() => t.end())

describe('another reader on a live table', { timeout: 120_000 }, () => {
  beforeEach(async () => {
    t = await world()
  })

  test('owner, lease, owner: nothing is published again', async () => {
    const written = t.writing(10)
    for (const reader of ['owner', 'lease', 'owner'] as const) {
      const relay = t.relay({ reader, lease: 10_000 })
      await relay.start()
      const before = t.journal.arrived()
      await until(() => t.journal.arrived() > before + 50)
      await relay.stop()
    }
    await written()
    const relay = t.relay()
    await relay.start()
    await t.settled()
    await relay.stop()
    expect(await t.problems({ ordered: false })).toEqual([])
  })

  test('both at once: the second waits, says so, and takes over when the first is gone', async () => {
    const telemetry = recordTelemetry(['relay.waiting'])
    const written = t.writing(10)
    const first = t.relay({ reader: 'owner', lease: 5000 })
    await first.start()
    await until(() => t.journal.arrived() > 20)
    const second = t.relay({ reader: 'lease', lease: 5000, name: 'second' })
    await second.start()
    const waiting = await telemetry.next('relay.waiting', undefined, WAIT_LIMIT)
    expect(waiting).toMatchObject({ shard: undefined, reason: expect.stringContaining('owner/1') })
    expect(new Date(waiting.until).getTime()).toBeGreaterThan(Date.now() - 1000)
    expect(t.journal.count('ok', 'second')).toBe(0)
    await first.stop()
    await until(() => t.journal.count('ok', 'second') > 20)
    await written()
    await t.settled()
    await second.stop()
    telemetry.stop()
    expect(await t.problems({ ordered: false })).toEqual([])
  })

  test('an owner that can no longer say that it lives still keeps others out while its term lasts', async () => {
    const owner = t.relay({ reader: 'owner', lease: 60_000 })
    await t.fill(5)
    await owner.start()
    await t.settled()
    await t.pool.query(`UPDATE outbox_members SET expires_at = now() - interval '1 second'`)
    const other = t.relay({ reader: 'lease' })
    const telemetry = recordTelemetry(['relay.waiting'])
    expect(await other.runOnce()).toMatchObject({ taken: 0 })
    expect(telemetry.of('relay.waiting')).toHaveLength(1)
    telemetry.stop()
    await owner.stop()
    await t.fill(5)
    expect(await other.runOnce()).toMatchObject({ done: 5 })
    expect(await t.problems({ ordered: false })).toEqual([])
  })
})

describeWith(['pgbouncer'], 'behind a pooler in transaction mode', () => {
  test.each(['owner', 'lease'] as const)('reading as %s it polls, and an owner says what is lost', async (reader) => {
    t = await world(service('postgres'))
    const pool = new pg.Pool({ connectionString: t.database.through!('pgbouncer'), max: 5 })
    const telemetry = recordTelemetry(['warning'])
    const relay = t.relay({ from: postgres({ pool }).outbox, reader, lease: 2000 })
    await relay.start()
    await t.fill(300, 10)
    await t.settled()
    if (reader === 'owner') {
      await telemetry.next('warning', ({ message }) => message.includes('it polls'), WAIT_LIMIT)
    }
    await relay.stop()
    telemetry.stop()
    await pool.end()
    expect(await t.problems({ ordered: reader === 'owner' })).toEqual([])
  })
})

const DEADLOCK = `DO $$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '40P01'; END $$`

describe('a handler that swallows an SQL error', () => {
  test('COMMIT is answered with ROLLBACK: the message is not acked, and comes again', async () => {
    t = await world()
    await t.pool.query(BROKER_TABLE)
    await t.fill(2)
    await t.relay({ inner: sqlBroker(t.database.url) }).runOnce()
    const telemetry = recordTelemetry(['message.handled'])
    let careless = true
    const router = new Router('billing').use(transactional(t.db)).on(Placed, async ({ id, data }, { tx }) => {
      await tx.query('INSERT INTO effects VALUES ($1)', [id])
      if (data.n === 1 && careless) await tx.query(DEADLOCK).catch(() => {})
    })
    const source = sqlBrokerSource(t.pool)
    const consumer = router.consume(source, { retry: { backoff: { min: 20, jitter: 0 } } })
    await consumer.start()
    const failed = await telemetry.next('message.handled', ({ result }) => result === 'retry', WAIT_LIMIT)
    expect(failed.error).toMatchObject({ code: 'ROLLED_BACK' })
    const { rows } = await t.pool.query('SELECT count(*)::int AS n FROM broker')
    expect(rows[0].n).toBeGreaterThanOrEqual(1)
    careless = false
    await until(async () => (await t.pool.query('SELECT 1 FROM broker')).rows.length === 0)
    await consumer.stop()
    telemetry.stop()
    const effects = await t.pool.query(
      'SELECT count(*)::int AS n, count(DISTINCT event_id)::int AS different FROM effects',
    )
    expect(effects.rows).toEqual([{ n: 2, different: 2 }])
  })
})
