import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { faultProxy } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const SOON = { poll: '20ms', maxPoll: '50ms' } as const

function until(relay: Relay, state: string) {
  return eventually(`the relay is ${state}`, () => relay.status().state === state, { seen: () => relay.status() })
}

describe('a relay says how it is', () => {
  test('waiting for the lease of another: whose, and until when; and running once it has it', async () => {
    const first = t.relay(SOON)
    await first.start()
    await until(first, 'running')
    const second = t.relay(SOON)
    await second.start()
    await until(second, 'waiting')
    const { rows } = await t.pool.query('SELECT holder, expires_at FROM outbox_terms WHERE shard = 0')
    const { reason, retryAt } = second.status()
    const [, holder, end] = /^outbox: another relay owns it: (.+), until (\S+) unless it is renewed$/.exec(reason!)!
    expect(holder).toBe(rows[0].holder)
    // Read at two moments, by two clocks.
    expect(Math.abs(new Date(end!).getTime() - rows[0].expires_at.getTime())).toBeLessThan(21_000)
    expect(retryAt).toBeInstanceOf(Date)
    await first.stop()
    expect(first.status()).toMatchObject({ state: 'stopped' })
    await until(second, 'running')
  })

  test('failing while its database is away, with the reason and the next try; and running afterwards', async () => {
    const { hostname, port } = new URL(t.database.url)
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const pool = new pg.Pool({ connectionString: proxy.url(t.database.url), max: 4 })
    pool.on('error', () => {})
    const outage = { min: 50, max: 200 }
    const relay = new Relay({ from: postgres({ pool }).outbox, to: t.sink, lease: '3s', outage, ...SOON })
    try {
      await relay.start()
      await t.enqueue(Placed({ n: 1 }))
      await t.sink.arrived(1)
      await until(relay, 'running')
      const lastSuccess = await eventually('it is settled', () => relay.status().lastSuccess)
      expect(Math.abs(Date.now() - lastSuccess.getTime())).toBeLessThan(10_000)
      await proxy.refuse()
      const away = await eventually(
        'it tells why, and who',
        () => {
          const status = relay.status()
          const reader = status.children!.find(({ name }) => name === 'outbox')
          return /ECONNREFUSED/.test(status.reason ?? '') && reader?.state === 'failing' ? status : undefined
        },
        { seen: () => relay.status() },
      )
      expect(away).toMatchObject({ state: 'failing', retryAt: expect.any(Date) })
      await proxy.restore()
      await until(relay, 'running')
      await t.enqueue(Placed({ n: 2 }))
      await t.sink.arrived(2)
      expect(relay.status().reason).toBeUndefined()
    } finally {
      await relay.stop()
      await pool.end()
    }
  })

  test('failing at start while its database is away, and running once it is there', async () => {
    const { hostname, port } = new URL(t.database.url)
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    await proxy.refuse()
    const pool = new pg.Pool({ connectionString: proxy.url(t.database.url), max: 4 })
    pool.on('error', () => {})
    const relay = new Relay({ from: postgres({ pool }).outbox, to: t.sink, lease: '3s', ...SOON })
    try {
      await relay.start()
      await until(relay, 'failing')
      expect(relay.status().reason).toMatch(/^relay outbox: shares: .*ECONNREFUSED/)
      await proxy.restore()
      await until(relay, 'running')
    } finally {
      await relay.stop()
      await pool.end()
    }
  })
})
