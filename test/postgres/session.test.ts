import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Message } from '../../src/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { until } from './faults/support.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const READERS = ['owner', 'lease'] as const
const at = (n: number) => Placed({ n })

/** A lease so short that two of them pass in a test, and yet long enough for a busy machine. */
const LEASE = 2000
const IDLE = { poll: '1h', maxPoll: '1h' } as const

/** Sessions that hold the idle flag, or wait for it. */
const FLAGS = `SELECT pid, granted FROM pg_locks
  WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

function flagIsUp(granted = true): Promise<void> {
  return until(
    async () => (await t.pool.query(FLAGS)).rows.some((row) => row.granted === granted),
    60_000,
    () => `the idle flag is ${granted ? 'held' : 'waited for'}`,
  )
}

/** Resolves when a relay has renewed its right so often, from now on. */
async function renewed(times: number): Promise<void> {
  const telemetry = recordTelemetry(['task.ran'])
  const extended = () => telemetry.of('task.ran').filter(({ task }) => task.endsWith(': extend')).length
  try {
    await until(
      () => extended() >= times,
      60_000,
      () => `${extended()} of ${times} renewals`,
    )
  } finally {
    telemetry.stop()
  }
}

describe.each(READERS)('a session of a relay that reads as %s', (reader) => {
  test('is kept while one publish lasts longer than leases do', async () => {
    const telemetry = recordTelemetry(['flow.opened', 'flow.lost', 'warning'])
    const out: string[] = []
    const to = async ({ id }: Message) => {
      if (out.push(id) === 1) await renewed(6)
    }
    // One at a time, and more than it takes ahead: it has no room, so it does not go idle meanwhile.
    const one = { batch: 1, maxBatch: 1, concurrency: 1 }
    const relay = t.relay({ reader, lease: LEASE, ...IDLE, ...one, to })
    await relay.start()
    await flagIsUp()
    await t.enqueue(Array.from({ length: 30 }, (_, n) => at(n)))
    await until(
      async () => (await t.states())['published'] === 30,
      30_000,
      () => `${out.length} were published`,
    )
    await relay.stop()
    telemetry.stop()
    expect(telemetry.of('flow.lost')).toEqual([])
    expect(telemetry.of('warning')).toEqual([])
    expect([telemetry.of('flow.opened').length, out.length, new Set(out).size]).toEqual([1, 30, 30])
  })

  test('is kept while there is nothing to do, and is woken after that', async () => {
    const telemetry = recordTelemetry(['flow.lost', 'warning'])
    const relay = t.relay({ reader, lease: LEASE, ...IDLE })
    await relay.start()
    await flagIsUp()
    await renewed(6)
    await t.enqueue(at(1))
    await t.sink.arrived(1)
    await relay.stop()
    telemetry.stop()
    expect([telemetry.of('flow.lost'), telemetry.of('warning')]).toEqual([[], []])
  })

  test('outlives the connection of its idle flag: that is told, and the flag goes up again', async () => {
    const telemetry = recordTelemetry(['flow.lost', 'warning'])
    const relay = t.relay({ reader, ...IDLE })
    await relay.start()
    await flagIsUp()
    await t.pool.query(`SELECT pg_terminate_backend(pid) FROM (${FLAGS}) AS flags`)
    const warning = await telemetry.next('warning', ({ message }) => message.includes('idle flag'), 30_000)
    expect(warning.message).toContain('found by polling')
    await flagIsUp()
    await t.enqueue(at(1))
    await t.sink.arrived(1)
    await relay.stop()
    telemetry.stop()
    expect(telemetry.of('flow.lost')).toEqual([])
    expect(telemetry.of('warning')).toHaveLength(1)
  })

  test('is lost within its lease when its connections are cut off without a word, and the flag is not left up', async () => {
    const { hostname, port } = new URL(t.database.url)
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const pool = new pg.Pool({ connectionString: proxy.url(t.database.url), max: 4 })
    pool.on('error', () => {})
    const relay = new Relay({ from: postgres({ pool }).outbox, to: t.sink, reader, lease: LEASE, grace: '1s', ...IDLE })
    const telemetry = recordTelemetry(['flow.lost'])
    await relay.start()
    await flagIsUp()
    const began = Date.now()
    proxy.blackHole()
    await telemetry.next('flow.lost', undefined, 30_000)
    // A renewal is sent within a third of the lease, and waited for at least a second; the rest is for a busy machine.
    expect(Date.now() - began).toBeLessThan(LEASE + 6000)
    await until(
      async () => (await t.pool.query(FLAGS)).rows.length === 0,
      60_000,
      () => 'nobody holds the idle flag',
    )
    await relay.stop()
    telemetry.stop()
    await proxy.close()
    await pool.end()
  })
})
