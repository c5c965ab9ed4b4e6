/** Samples of the guides by task that take something for granted, such as `db`: each is run here, as it stands. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { Cleaner, event, Reject, Relay, Router, Unavailable } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { OrderPlaced, onPostgres, place, play, playUntil } from './play.ts'
import { read } from './support.ts'

// Samples log to the console.
beforeEach(() => {
  for (const level of ['log', 'info', 'warn', 'error', 'debug'] as const)
    vi.spyOn(console, level).mockImplementation(() => {})
})
afterEach(() => void vi.restoreAllMocks())

const InvoiceSent = event<{ orderId: string }>('invoice.sent')

/** A consumer beside what a sample shows. */
function idle() {
  return new Router('idle').consume(new InProcessBroker().source('idle', { topics: ['nothing'] }))
}

/** An HTTP server that answers each request by its path, `/503` with 503, and keeps bodies. */
async function answering<T>(work: (url: string, got: { type: string; body: string }[]) => Promise<T>): Promise<T> {
  const got: { type: string; body: string }[] = []
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const part of request) body += part
    got.push({ type: request.headers['content-type'] ?? '', body })
    response.writeHead(Number(request.url!.slice(1)) || 200).end()
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  try {
    return await work(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, got)
  } finally {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
}

test('handlers: a middleware that wraps is around the handler', async () => {
  const { timed } = await play('handlers', 2)
  const broker = new InProcessBroker()
  const source = broker.source('billing', { topics: ['order.*'] })
  const consumer = new Router('billing')
    .use(timed)
    .on(OrderPlaced, () => {})
    .consume(source)
  await broker.publish([OrderPlaced({ orderId: 'A-1', total: 30 })])
  expect(await consumer.runOnce()).toMatchObject({ done: 1 })
  expect(vi.mocked(console.log).mock.calls).toEqual([[expect.stringMatching(/^order\.placed took \d+ ms$/)]])
  await consumer.stop()
})

test('errors: a status is judged', async () => {
  const { call } = await play('errors', 2)
  await answering(async (url) => {
    await expect(call(url)).resolves.toBeUndefined()
    for (const status of [429, 502, 503]) await expect(call(`${url}/${status}`)).rejects.toBeInstanceOf(Unavailable)
    for (const status of [400, 404]) await expect(call(`${url}/${status}`)).rejects.toBeInstanceOf(Reject)
    await expect(call(`${url}/500`)).rejects.toThrow('answered 500')
  })
})

test('errors: a classifier of your own decides in a relay and in a consumer', async () => {
  class CardDeclined extends Error {}
  const declined = async () => {
    throw new CardDeclined()
  }
  const db = memory()
  await db.withTransaction((tx) => db.outbox.enqueue(tx, OrderPlaced({ orderId: 'A-1', total: 30 })))
  const broker = new InProcessBroker()
  const queue = broker.source('billing', { topics: ['order.*'] })
  const billing = new Router('billing').on(OrderPlaced, declined)
  const { relay, consumer } = await play('errors', 3, { db, publish: declined, billing, queue, CardDeclined })
  await broker.publish([OrderPlaced({ orderId: 'A-1', total: 30 })])
  expect(await relay.runOnce()).toMatchObject({ dead: 1 })
  expect(await consumer.runOnce()).toMatchObject({ dead: 1 })
  await Promise.all([relay.stop(), consumer.stop()])
})

test('status: what lasts is told', async () => {
  const alert = vi.fn()
  const app = (state: string, ago: number) => ({
    status: () => ({ state, since: new Date(Date.now() - ago), reason: 'no database' }),
  })
  await play('status', 2, { app: app('running', 120_000), alert })
  await play('status', 2, { app: app('failing', 1000), alert })
  expect(alert).not.toHaveBeenCalled()
  await play('status', 2, { app: app('failing', 120_000), alert })
  expect(alert.mock.calls).toEqual([['failing: no database']])
})

test('status: one status for a process', async () => {
  const db = memory()
  const broker = new InProcessBroker()
  const paths = new Map<string, () => unknown>()
  const given = {
    relay: new Relay({ from: db.outbox, to: broker }),
    billing: new Router('billing').on(OrderPlaced, () => {}),
    queue: broker.source('billing', { topics: ['order.*'] }),
    cleaner: new Cleaner({ of: db.outbox.admin }),
    server: { get: (path: string, answer: () => unknown) => paths.set(path, answer) },
    broker: { phase: 'connections', stop: async () => {} },
  }
  const status = () => JSON.parse(JSON.stringify(paths.get('/status')?.() ?? {}))
  await playUntil('status', 3, given, () => eventually('it runs', () => status().state === 'running'))
  expect(status()).toMatchObject({ name: 'shop', state: 'stopped' })
  expect(status().children).toHaveLength(3)
})

describeWith(['postgres'], 'samples of guides on PostgreSQL', () => {
  test('service: a publisher that is a function', () =>
    onPostgres(({ db }) =>
      answering(async (url, got) => {
        await place({ db }, 'A-1')
        const sent = () => eventually('it is posted', () => got.length > 0)
        await playUntil('service', 2, { db, url, consumer: idle() }, sent)
        expect(got).toEqual([{ type: 'application/cloudevents+json', body: expect.stringContaining('"A-1"') }])
      }),
    ))

  test('service: a cleaner beside the others', () =>
    onPostgres(async ({ db, pool }) => {
      await place({ db }, 'A-1')
      await pool.query(`UPDATE outbox SET state = 'published', published_at = now() - interval '8 days'`)
      await place({ db }, 'B-2')
      const relay = new Relay({ from: db.outbox, to: collector() })
      const counts = async () => (await db.outbox.admin.stats()).states
      const cleaned = () =>
        eventually('A-1 is gone, B-2 is published', async () => {
          const { rows } = await pool.query('SELECT key, state FROM outbox')
          return rows.length === 1 && rows[0].key === 'B-2' && rows[0].state === 'published'
        })
      await playUntil('service', 3, { db, relay, consumer: idle() }, cleaned)
      expect((await counts()).published.count).toBe(1)
    }))

  test('outbox: the event is in the transaction of the order, or neither', () =>
    onPostgres(async ({ url, pool, db }) => {
      await pool.query('CREATE TABLE orders (id text PRIMARY KEY, total int)')
      vi.stubEnv('DATABASE_URL', url)
      const { placeOrder, pool: its } = await play('outbox', 1)
      await placeOrder('A-1', 30)
      await expect(placeOrder('A-1', 30)).rejects.toThrow('duplicate key')
      await its.end()
      vi.unstubAllEnvs()
      expect((await db.outbox.admin.list()).map(({ key }) => key)).toEqual(['A-1'])
    }))

  test('outbox: a relay sends it', () =>
    onPostgres(async ({ db }) => {
      await place({ db }, 'A-1')
      const broker = collector()
      await playUntil('outbox', 2, { db, broker }, () => eventually('it is sent', () => broker.messages.length === 1))
    }))

  test('dead-letters: looked at, sent again, dropped, sent anew', () =>
    onPostgres(async ({ db, pool }) => {
      const until = new Date(Date.now() + 60_000)
      const since = new Date(until.getTime() - 3_600_000)
      await place({ db }, 'A-1', 'B-2', 'C-3')
      const relay = new Relay({ from: db.outbox, to: collector(), retry: { attempts: 1 } })
      await relay.runOnce()
      await relay.stop()
      await pool.query(`UPDATE outbox SET state = 'dead', published_at = NULL WHERE key <> 'C-3'`)
      await pool.query(`UPDATE outbox SET event_type = 'order.test' WHERE key = 'B-2'`)
      const { rows } = await pool.query(`SELECT event_id FROM outbox WHERE key = 'B-2'`)
      await play('dead-letters', 1, { db, id: rows[0].event_id, since, until })
      const left = await db.outbox.admin.list()
      expect(left.map(({ key, state }) => [key, state]).sort()).toEqual([
        ['A-1', 'retrying'], // due at once, in its old place
        ['C-3', 'ready'],
      ])
      expect((await db.outbox.admin.audits()).map(({ action }) => action).sort()).toEqual([
        'discard-dead',
        'rearm',
        'replay',
      ])
    }))

  test('routing: each event to the destinations of its topic', () =>
    onPostgres(async ({ pool }) => {
      const [rabbit, nats] = [collector(), collector()]
      const secrets = [`whsec_${Buffer.alloc(32, 7).toString('base64')}`]
      const given = { pool, rabbit, nats, url: 'https://partner.invalid/hooks', secrets, OrderPlaced, InvoiceSent }
      const db = postgres({ pool, outbox: { branches: ['warehouse', 'audit', 'partner'] } })
      await db.migrate()
      await place({ db }, 'A-1')
      await db.withTransaction((tx) => db.outbox.enqueue(tx, InvoiceSent({ orderId: 'A-1' })))
      await playUntil('routing', 1, given, () =>
        eventually('all have arrived', () => nats.messages.length === 2 && rabbit.messages.length === 1),
      )
      expect(rabbit.messages.map(({ type }) => type)).toEqual(['order.placed'])
      expect((await db.outbox.branch('partner').admin.list()).map(({ type }) => type)).toEqual(['invoice.sent'])
    }))

  test('status: what a relay says that waits for another', () =>
    onPostgres(async ({ db }) => {
      const owner = collector()
      const first = new Relay({ from: db.outbox, to: owner })
      const relay = new Relay({ from: db.outbox, to: collector() })
      await place({ db }, 'A-1')
      await first.start()
      try {
        await eventually('the first one owns it', () => owner.messages.length === 1)
        await relay.start()
        await eventually('it waits, and knows for whom', () => relay.status().reason?.includes('owns it'))
        await play('status', 1, { relay })
        const shown = /\n\/\/ \{\n(.*?)\n\/\/ \}/s.exec(read('docs/guides/status.md'))![1]!
        const [, name, , reason] = /name: '(.*?)',.*state: '(.*?)',.*reason: '(.*?)'/s.exec(shown)!
        const status = relay.status()
        expect(status).toMatchObject({ name, state: 'waiting' })
        const alike = (text: string) => text.replaceAll(/\d{4}-\S+Z|\S+:\d+:\w+/g, '…')
        expect(alike(status.reason!)).toBe(alike(reason!))
        const fields = [...shown.matchAll(/^\/\/ {3}(\w+):/gm)].map(([, field]) => field)
        for (const field of fields) expect(status).toHaveProperty(field!)
      } finally {
        await relay.stop()
        await first.stop()
      }
    }))

  test('upgrading: migrate() says what it did', () =>
    onPostgres(async ({ pool }) => {
      await play('upgrading', 1, { db: postgres({ pool, outbox: { table: 'other' } }) })
      const [done] = vi.mocked(console.log).mock.calls
      expect(done![0]).toContainEqual({ table: 'other', from: 0, to: expect.any(Number) })
    }))

  test('stuck: its statements say what is dead', () =>
    onPostgres(async ({ db, pool }) => {
      await place({ db }, 'A-1', 'B-2')
      await pool.query(`UPDATE outbox SET state = 'dead' WHERE key = 'A-1'`)
      const [, sql] = /```sql\n(.*?)```/s.exec(read('docs/guides/stuck.md'))!
      const results = []
      for (const one of sql!.split(';\n').filter(Boolean)) results.push((await pool.query(one)).rows)
      expect(results[0]).toHaveLength(2)
      expect(results[1]).toMatchObject([{ key: 'A-1' }])
    }))
})
