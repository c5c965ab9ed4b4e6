import * as api from '@opentelemetry/api'
import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { event, type RawMessage, Unavailable } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { useOpenTelemetry } from '../../src/observability/index.ts'
import type { OutboxAdmin } from '../../src/outbox/admin.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import { projection, put, write } from '../../src/projection/index.ts'
import { redis } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { SagaAdmin, type SagaDatabase, SagaRunner, saga } from '../../src/saga/index.ts'
import { transactional } from '../../src/store/index.ts'
import { sender, serve, serveReceiver } from '../brokers/http/support.ts'
import { ListLog, type World, world } from '../projection/support.ts'
import { freshTag } from '../redis/support.ts'
import { freshDatabase, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { CARD, data, exporter, NUMBER, Paid, QUOTED, searched, THROWN, traced, watch } from './secrets-support.ts'
import { listSource } from './support.ts'
import { WORLDS } from './worlds.ts'

let seen: ReturnType<typeof watch>
const ends: (() => unknown)[] = []
let untraced: (() => void)[] = []
beforeAll(() => {
  untraced = [traced(), useOpenTelemetry(api)]
})
afterAll(() => {
  for (const end of untraced) end()
})
beforeEach(() => {
  exporter.reset()
  seen = watch()
})
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
  seen.stop()
})

type Payment = ReturnType<typeof data>

async function onPostgres(options: object = {}) {
  const database = await freshDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool, sagas: true, ...options })
  await db.migrate()
  ends.push(
    () => database.drop(),
    () => pool.end(),
  )
  return { db, pool }
}

describe('secrets over HTTP', () => {
  test('no answer of a receiver, whatever its handler throws', async () => {
    const site = await serveReceiver()
    ends.push(() => site[Symbol.asyncDispose]())
    const router = new Router('billing').on(Paid, ({ data: paid }) => {
      throw THROWN[paid.n]!(paid)
    })
    const consumer = router.consume(site.receiver, { retry: { attempts: 1 } })
    ends.push(() => consumer.stop())
    await consumer.start()
    const world = await WORLDS['memory']!()
    await world.enqueue(THROWN.map((_, n) => Paid(data(n))))
    const http = sender(site.url)
    ends.push(() => http.close())
    const relay = new Relay({ from: world.outbox, to: http, retry: { attempts: 1 } })
    await eventually('all were answered', async () => {
      await relay.runOnce()
      const entries = await (world.outbox.admin as OutboxAdmin).list({}, { limit: 100 })
      return entries.every(({ lastError }) => lastError !== undefined)
    })
    const entries = await (world.outbox.admin as OutboxAdmin).list({}, { limit: 100 })
    expect(entries).toHaveLength(THROWN.length)
    await relay.stop()
    searched('last_error', JSON.stringify(entries.map(({ lastError }) => lastError)))
    searched('logs, spans and metrics', await seen.all())
  })

  test('nor what a server says of what it was sent', async () => {
    const bodies: string[] = []
    const site = await serve((request, response) => {
      let body = ''
      request.on('data', (chunk) => (body += chunk))
      request.on('end', () => {
        bodies.push(body)
        response.writeHead(bodies.length % 2 === 0 ? 400 : 503, `refused ${CARD}`, { 'x-why': CARD })
        response.end(`cannot read ${body}`)
      })
    })
    ends.push(() => site[Symbol.asyncDispose]())
    const world = await WORLDS['memory']!()
    await world.enqueue([Paid(data(1)), Paid(data(2)), Paid(data(3))])
    const http = sender(site.url)
    ends.push(() => http.close())
    const relay = new Relay({ from: world.outbox, to: http, retry: { attempts: 1 } })
    await relay.runOnce()
    await relay.runOnce()
    searched('status', JSON.stringify(relay.status()))
    await relay.stop()
    expect(bodies.join()).toContain(CARD)
    const entries = await (world.outbox.admin as OutboxAdmin).list({}, { limit: 100 })
    searched('last_error', JSON.stringify(entries.map(({ lastError }) => lastError)))
    searched('logs, spans and metrics', await seen.all())
  })
})

const Charged = event<{ ok: boolean }>('card.charged')

const QUICK = { budget: '50ms', backoff: { min: 1, max: 5, jitter: 0 } } as const

/**
 * Every place of a saga in which users' code runs, and throws what its input says. A definition for each: all that fail at one
 * step are waited for together.
 */
function sagasThrowing(n: number) {
  const fails = (c: { input: unknown }): never => {
    throw THROWN[n]!(c.input as Payment)
  }
  const later = async (c: { input: unknown }) => fails(c)
  return [
    saga(`runs${n}`, { version: 1 })
      .step('before', (c) => (c.input as Payment).card, { undo: later, ...QUICK })
      .step('charge', later, { unknown: 'undo', ...QUICK }),
    // What an earlier step has returned is no part of what it was started with.
    saga(`earlier${n}`, { version: 1 })
      .step('asks', () => 'sesame-open')
      .step('charge', (c) => Promise.reject(new Error(`no money for ${c.results.asks}`)), {
        unknown: 'undo',
        ...QUICK,
      }),
    saga(`ends${n}`, { version: 1 })
      .step('fine', () => 1)
      .onEnd(fails),
    saga(`sends${n}`, { version: 1 })
      .step('fine', () => 1)
      .request('charge', { send: fails, reply: Charged, within: '1h' } as never),
    saga(`waits${n}`, { version: 1 }).step('charge', (c) => {
      const { card } = c.input as Payment
      throw new Unavailable(`nobody charges ${card} now`, { cause: THROWN[n]!(c.input as Payment) })
    }),
  ]
}

describe.each(['memory', 'postgres'])('secrets in sagas on %s', (kind) => {
  test('no error of a step, an undo, a request or an end: not in rows, reasons, logs, spans, metrics', async () => {
    const store = (kind === 'memory' ? memory() : (await onPostgres()).db) as never as SagaDatabase<never>
    const all = THROWN.flatMap((_, n) => sagasThrowing(n).map((one) => ({ n, one: one as never })))
    const sagas = all.map(({ one }) => one)
    const runner = new SagaRunner({ store, sagas, concurrency: 64 })
    ends.push(() => runner.stop())
    await runner.start()
    const ids: string[] = []
    for (const { n, one } of all) {
      const client = runner.client(one) as never as { start(tx: unknown, input: unknown): Promise<string> }
      ids.push(await store.withTransaction((tx) => client.start(tx, data(n))))
    }
    const admin = new SagaAdmin({ store, sagas })
    await eventually(
      'each has failed once',
      async () => {
        const views = await Promise.all(ids.map((id) => admin.show(id)))
        return views.every(
          ({ error, held, steps }) => error ?? held ?? steps.find((step) => step.error !== undefined)?.error,
        )
      },
      { limit: 60_000 },
    )
    searched('status', JSON.stringify(runner.status()))
    await runner.stop()
    const views = await Promise.all(ids.map((id) => admin.show(id)))
    searched('what people see of them', JSON.stringify(views))
    const text = await seen.all()
    expect(text).toContain('saga.step')
    for (const n of THROWN.keys()) expect(text).toContain(`waybill_saga_step_paused{step="waits${n}.charge"}`)
    searched('logs, spans and metrics', text)
  })
})

describe('secrets in projections', () => {
  test('no error of a handler, of enrich or of a write: not in what is parked, logs, spans, metrics', async () => {
    const at: World = await world()
    ends.push(() => at.end())
    const log = new ListLog()
    const common = {
      version: 1,
      key: 'id',
      create: (table: string) => `CREATE TABLE ${table} (id text PRIMARY KEY, n int)`,
    }
    const handles = projection('handles', { ...common, table: 'handles' }).on(Paid, ({ data: paid }) => {
      throw THROWN[paid.n]!(paid)
    })
    const asks = projection('asks', { ...common, table: 'asks' }).on(
      Paid,
      { enrich: ({ data: paid }) => Promise.reject(THROWN[paid.n]!(paid)) },
      ({ data: paid }) => put(String(paid.n), { n: paid.n }),
    )
    // Values that the table has no place for: the server quotes them.
    const writes = projection('writes', { ...common, table: 'writes' }).on(Paid, ({ data: paid }) =>
      put(String(paid.n), { n: paid.card as never }),
    )
    const own = projection('own', { ...common, table: 'own' }).on(Paid, ({ data: paid }) =>
      write(async () => {
        throw THROWN[paid.n]!(paid)
      }),
    )
    const projector = at.projector(log, [handles, asks, writes, own], { poll: '20ms', enrich: { giveUp: '1ms' } })
    await projector.start()
    log.append(...THROWN.map((_, n) => Paid(data(n), { key: `k${n}` })))
    const parked = async () => at.db.projections.parked({ failed: true }, { limit: 1000 })
    await eventually(
      'each is parked, or tried again',
      async () => {
        const names = (await parked()).map(({ name }) => name)
        return ['handles', 'writes', 'own'].every(
          (one) => names.filter((name) => name === one).length === THROWN.length,
        )
      },
      { limit: 60_000 },
    )
    await eventually('enrich has failed', () =>
      projector.projections().some(({ projection: name, state }) => name === 'asks/1' && state !== 'running'),
    )
    searched(
      'status',
      JSON.stringify(projector.status(), (_, value) => (typeof value === 'bigint' ? String(value) : value)),
    )
    const { rows } = await at.pool.query('SELECT problem FROM projections')
    searched('problems', JSON.stringify(rows))
    searched('what is parked', (await parked()).map(({ error }) => error).join('\n'))
    searched('logs, spans and metrics', await seen.all())
  })
})

describe('secrets in errors of stores', () => {
  test('what PostgreSQL says of values it refuses: in a handler, its outputs, its inbox', async () => {
    const { db, pool } = await onPostgres()
    await pool.query('CREATE TABLE cards (card text PRIMARY KEY, amount int CHECK (amount < 5), holder jsonb)')
    const statements = [
      ['INSERT INTO cards (card, amount) VALUES ($1, $2)', [CARD, NUMBER]],
      [`INSERT INTO cards (card, holder) VALUES ('x', $1)`, [QUOTED]],
      [`INSERT INTO cards (card) VALUES ($1), ($1)`, [CARD]],
      [`SELECT $1::int`, [CARD]],
      [`SELECT '${CARD}'::date`, []],
      [`SELECT ${CARD.replaceAll('-', '_')} FROM cards`, []],
      [`DO $$ BEGIN RAISE EXCEPTION 'card % is refused', '${CARD}'; END $$`, []],
    ] as const
    const router = new Router('billing').use(transactional(db as never)).on(Paid, async ({ data: paid }, context) => {
      const [text, values] = statements[paid.n]!
      await (context as never as { tx: pg.PoolClient }).tx.query(text, [...values])
    })
    const source = listSource(statements.map((_, n) => Paid(data(n))))
    const consumer = router.consume(source, { retry: { attempts: 1 } })
    await consumer.runOnce()
    await consumer.stop()
    expect(source.settled).toHaveLength(statements.length)
    searched('logs, spans and metrics', await seen.all())
  })

  test.each(['owner', 'lease'] as const)(
    'what a trigger of an outbox says of a row it refuses to change (%s)',
    async (reader) => {
      const { db, pool } = await onPostgres()
      await db.withTransaction((tx) => db.outbox.enqueue(tx, [Paid(data(1)), Paid(data(2)), Paid(data(3))]))
      await pool.query(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.payload->>'n' <> '1' AND NEW.state <> 'leased' THEN
          RAISE EXCEPTION 'card % is settled', OLD.payload->>'card' USING ERRCODE = '23514'; END IF; RETURN NEW; END $$;
      CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
      const to = async (message: RawMessage) => {
        if ((JSON.parse(String(message.data)) as Payment).n === 2) throw new Error('not now')
      }
      const relay = new Relay({ from: db.outbox, to, reader, outage: { min: 1, max: 5 }, grace: '100ms' })
      ends.push(() => relay.stop())
      await relay.start()
      const refused = () => seen.lines.filter((line) => line.includes('"waybill:settlement.refused"'))
      await eventually('two are refused', () => refused().length >= 2)
      searched('status', JSON.stringify(relay.status()))
      await relay.stop()
      expect(refused()[0]).toContain('"topic":"card.paid"')
      expect(await seen.all()).toContain('waybill:flow.settle_failed')
      searched('logs, spans and metrics', await seen.all())
    },
  )

  test.each([
    ['a claim', 'lease', `NEW.state = 'leased'`, 'release'],
    ['that it waits', 'owner', `NEW.state = 'held'`, 'release'],
    ['that nobody can read it', 'lease', `NEW.state = 'dead'`, 'dead'],
    ['that nobody can read it', 'owner', `NEW.state = 'dead'`, 'dead'],
  ] as const)(
    'what a trigger of an outbox says of a row that is not handed out: it refuses %s (%s)',
    async (_what, reader, refuses, settlement) => {
      const { db, pool } = await onPostgres()
      const write = (n: number) => db.withTransaction((tx) => db.outbox.enqueue(tx, [Paid(data(n))], { key: 'k' }))
      await write(1)
      await write(2)
      if (settlement === 'dead') await pool.query(`UPDATE outbox SET attributes = '[]'`)
      await pool.query(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF ${refuses} THEN RAISE EXCEPTION 'card % is settled', OLD.payload->>'card'; END IF; RETURN NEW; END $$;
      CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
      const to = async () => {
        throw new Error('not now')
      }
      const relay = new Relay({
        from: db.outbox,
        to,
        reader,
        retry: { backoff: { min: '1h', max: '1h' } },
        grace: '100ms',
      })
      ends.push(() => relay.stop())
      await relay.start()
      const refused = () => seen.lines.filter((line) => line.includes('"waybill:settlement.refused"'))
      await eventually('one is refused', () => refused().length >= 1)
      expect(refused()[0]).toContain(`"settlement":"${settlement}"`)
      searched('status', JSON.stringify(relay.status()))
      await relay.stop()
      searched('logs, spans and metrics', await seen.all())
    },
  )

  test('what Redis says of commands it refuses, in a handler', async () => {
    const client = new IoRedis(service('redis').url)
    const db = redis({ client, tag: freshTag() })
    ends.push(
      () => client.disconnect(),
      () => db.stop(),
    )
    const commands = [
      () => client.call('CHARGE', CARD, QUOTED, String(NUMBER)),
      () => client.call('SET', CARD),
      () => client.call('EVAL', 'return redis.error_reply(ARGV[1])', '0', `no money on ${CARD} of ${QUOTED}`),
      () => client.call('EVAL', `error('${CARD} is refused')`, '0'),
    ]
    const failed: string[] = []
    const router = new Router('billing').use(transactional(db as never)).on(Paid, async ({ data: paid }) => {
      await commands[paid.n]!().catch((error: Error) => {
        failed.push(error.message)
        throw error
      })
    })
    const source = listSource(commands.map((_, n) => Paid(data(n))))
    const consumer = router.consume(source, { retry: { attempts: 1 } })
    await consumer.runOnce()
    await consumer.stop()
    expect(failed.filter((text) => text.includes(CARD))).toHaveLength(3)
    expect(source.settled).toHaveLength(commands.length)
    searched('logs, spans and metrics', await seen.all())
  })

  test('a database that goes away in the middle, with a password in its address', async () => {
    const { db } = await onPostgres()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [Paid(data(1))]))
    const to = async (_message: RawMessage) => {
      throw new Unavailable(`postgres://app:hunter2@db:5432/shop is away, with ${CARD}`)
    }
    const relay = new Relay({ from: db.outbox, to: to as never })
    await relay.runOnce()
    searched('status', JSON.stringify(relay.status()))
    await relay.stop()
    searched('logs, spans and metrics', await seen.all())
  })
})
