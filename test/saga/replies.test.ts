import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Message, Reject, Relay } from '../../src/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { type AnySaga, SagaAdmin, SagaRunner, type SagaRunnerOptions, saga, sagaReplies } from '../../src/saga/index.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { answer, Cancelled, context, type Order, Ship, Shipped, shipping } from './shipping.ts'

describeWith(['postgres'], 'requests and replies in PostgreSQL', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  let db: Postgres<pg.PoolClient>
  const runners: SagaRunner<pg.PoolClient>[] = []
  const texts: string[] = []

  beforeAll(async () => {
    database = await freshDatabase('postgres')
    pool = new pg.Pool({ connectionString: database.url, max: 20 })
    pool.on('error', () => {})
    pool.on('connect', (client) => {
      const send = client.query.bind(client) as (...args: unknown[]) => Promise<pg.QueryResult>
      client.query = ((...args: unknown[]) => {
        const [given] = args
        const text = typeof given === 'string' ? given : ((given as { text?: string })?.text ?? '')
        texts.push(text)
        return send(...args)
      }) as typeof client.query
    })
    db = postgres({ pool, sagas: true })
    await db.migrate()
  })
  afterEach(async () => {
    await Promise.all(runners.splice(0).map((runner) => runner.stop()))
  })
  beforeEach(async () => {
    await pool.query('TRUNCATE outbox, saga_executions, saga_steps, processed_messages')
    texts.length = 0
  })
  afterAll(async () => {
    await pool.end()
    await database.drop()
  })

  function runnerOf(sagas: readonly AnySaga[], options: Partial<SagaRunnerOptions<pg.PoolClient>> = {}) {
    const runner = new SagaRunner<pg.PoolClient>({ store: db, sagas, ...options })
    runners.push(runner)
    return runner
  }
  const start = (one: AnySaga) =>
    db.withTransaction((tx) => runnerOf([one]).client(one).start(tx, { id: 'A' })) as Promise<string>
  const load = async (id: string) => (await db.sagas.load(undefined, id))!
  /** What is in the outbox, in order. */
  async function sent(): Promise<Message[]> {
    const { rows } = await pool.query('SELECT event_id FROM outbox ORDER BY sequence')
    const shown = await Promise.all(rows.map(({ event_id }) => db.outbox.admin.show(event_id)))
    return shown.map((one) => one!.message)
  }
  /** Looks of a runner until it has ended. */
  async function ended(one: AnySaga, id: string) {
    const runner = runnerOf([one])
    await eventually('it has ended', async () => {
      await runner.runOnce()
      return (await load(id)).endedAt !== undefined
    })
    await runner.stop()
    return load(id)
  }

  test('inbox, lock, decision, write and the next request are one commit', async () => {
    const two = saga<Order>('two', { version: 1 })
      .request('ship', { send: (c) => Ship({ order: c.input.id }), reply: Shipped })
      .request('again', { send: (c) => Ship({ order: c.input.id }), reply: Shipped })
    const id = await start(two)
    const [request] = await sent()
    const reply = await answer(request!, Shipped({ parcel: 1 }))
    texts.length = 0
    await sagaReplies({ store: db, sagas: [two] }).handle(reply, context)
    expect(texts.filter((text) => text === 'COMMIT')).toHaveLength(1)
    expect(texts).toHaveLength(7) // BEGIN, inbox, lock, load, write, enqueue, COMMIT
    expect(await load(id)).toMatchObject({ currentStep: 'again', runner: undefined })
    expect((await sent()).map(({ extensions }) => extensions['sagastep'])).toEqual(['ship', 'again'])
  })

  test('a start is one transaction with its first request, and tells no runner before the deadline is near', async () => {
    const one = saga<Order>('one', { version: 1 }).request('ship', {
      send: (c) => Ship({ order: c.input.id }),
      reply: Shipped,
    })
    const id = await start(one)
    const { wakeAt, createdAt } = await load(id)
    expect(wakeAt!.getTime() - createdAt.getTime()).toBeGreaterThan(290_000)
    await expect(
      db.withTransaction(async (tx) => {
        await runnerOf([one])
          .client(one as AnySaga)
          .start(tx, { id: 'B' })
        throw new Error('no')
      }),
    ).rejects.toThrow('no')
    expect(await sent()).toHaveLength(1)
  })

  test('a reply whose transaction fails changes nothing, and is handled when it comes again', async () => {
    const one = shipping()
    const id = await start(one)
    await runnerOf([one]).runOnce()
    const reply = await answer((await sent())[0]!, Shipped({ parcel: 1 }))
    const failing = { ...context, signal: AbortSignal.abort(new Error('stopped')) }
    await expect(sagaReplies({ store: db, sagas: [one] }).handle(reply, failing)).rejects.toThrow('stopped')
    expect((await load(id)).steps).toHaveLength(2)
    await sagaReplies({ store: db, sagas: [one] }).handle(reply, context)
    expect((await ended(one, id)).status).toBe('completed')
  })

  test('time-out, check negative, undo, the run lands late: a success after compensated, twice', async () => {
    let asked = 0
    const one = shipping({
      within: '1ms',
      check: () => {
        asked++
        return undefined
      },
    })
    const id = await start(one)
    const before = await ended(one, id)
    expect(before).toMatchObject({ status: 'compensated' })
    expect(asked).toBe(1)
    const request = (await sent())[0]!
    const replies = sagaReplies({ store: db, sagas: [one] })
    await replies.handle(await answer(request, Shipped({ parcel: 1 })), context)
    await replies.handle(await answer(request, Shipped({ parcel: 1 })), context)
    const after = await ended(one, id)
    expect(after.steps[1]).toMatchObject({ status: 'compensated', undos: 2, sends: 3, executed: true })
    const messages = await sent()
    expect(messages.map(({ type }) => type)).toEqual(['ship.wanted', 'ship.cancel', 'ship.cancel'])
    expect(messages.map(({ extensions }) => extensions['sagaundo'])).toEqual([undefined, 1, 2])
    expect(new Set(messages.map(({ key }) => key)).size).toBe(1)
  })

  test('a saga is kept for 30 days after its end; then a reply to it is SAGA_GONE', async () => {
    const one = shipping({ within: '1ms' })
    const id = await start(one)
    await ended(one, id)
    const reply = await answer((await sent())[0]!, Shipped({ parcel: 1 }))
    const endedDaysAgo = (days: number) =>
      pool.query(
        `UPDATE saga_executions SET updated_at = now() - $1 * interval '1 day',
        ended_at = now() - $1 * interval '1 day'`,
        [days],
      )
    await endedDaysAgo(29)
    expect(await db.sagas.clean()).toBe(0)
    await endedDaysAgo(31)
    expect(await db.sagas.clean()).toBe(1)
    const late = sagaReplies({ store: db, sagas: [one] }).handle(reply, context)
    await expect(late).rejects.toMatchObject({ code: 'SAGA_GONE' })
  })

  test('a request that is dead in the outbox blocks its undo: the reason says so and names the event', async () => {
    const one = shipping({ within: '1ms', undone: Cancelled, undoBudget: '1ms' })
    const id = await start(one)
    await runnerOf([one]).runOnce()
    const relay = new Relay({
      from: db.outbox,
      to: async () => {
        throw new Reject('the broker refuses it')
      },
    })
    await relay.runOnce()
    const request = (await sent())[0]!
    const end = await ended(one, id)
    expect(end).toMatchObject({ status: 'failed' })
    expect(end.error).toContain(`event ${request.id} is dead in the outbox`)
    expect(end.steps[1]!.error).toContain(request.id)
    await relay.runOnce()
    await relay.stop()
    const { rows } = await pool.query('SELECT state FROM outbox ORDER BY sequence')
    expect(rows[0].state).toBe('dead')
    expect(rows.slice(1).some(({ state }) => state === 'published')).toBe(false)
  })

  test('so does one whose undo nobody confirms, whoever has it undone', async () => {
    const one = shipping()
    const id = await start(one)
    await runnerOf([one]).runOnce()
    const relay = new Relay({ from: db.outbox, to: () => Promise.reject(new Reject('the broker refuses it')) })
    await relay.runOnce()
    await relay.stop()
    const request = (await sent())[0]!
    const admin = new SagaAdmin<pg.PoolClient>({ store: db, sagas: [one as AnySaga] })
    await admin.compensate(id, { by: 'ann', note: 'no longer wanted' })
    const end = await ended(one, id)
    expect(end).toMatchObject({ status: 'compensated', steps: [{}, { undos: 1, sends: 2 }] })
    expect(end.error).toMatch(`no longer wanted; ship: event ${request.id} is dead in the outbox`)
  })

  test('an undo that is dead in the outbox is named when a late success needs another one behind it', async () => {
    const one = shipping({ within: '1ms' })
    const id = await start(one)
    expect(await ended(one, id)).toMatchObject({ status: 'compensated' })
    const [request, cancel] = await sent()
    const relay = new Relay({
      from: db.outbox,
      to: async (message) => {
        if (message.type === 'ship.cancel') throw new Reject('the broker refuses it')
      },
    })
    await eventually('the undo is dead', async () => {
      await relay.runOnce()
      return (await db.outbox.admin.show(cancel!.id))?.entry.state === 'dead'
    })
    await relay.stop()
    await sagaReplies({ store: db, sagas: [one] }).handle(await answer(request!, Shipped({ parcel: 1 })), context)
    const end = await ended(one, id)
    expect(end).toMatchObject({ status: 'compensated', steps: [{}, { undos: 2, sends: 3 }] })
    expect(end.error).toContain(`event ${cancel!.id} is dead in the outbox`)
  })

  test('a request that is dead is named however often it was sent again behind it', async () => {
    const one = shipping({ within: '1ms', unknown: 'retry' })
    const id = await start(one)
    const runner = runnerOf([one])
    await runner.runOnce()
    const relay = new Relay({ from: db.outbox, to: () => Promise.reject(new Reject('the broker refuses it')) })
    await relay.runOnce()
    await relay.stop()
    const request = (await sent())[0]!
    await eventually('it was sent again and again', async () => {
      await runner.runOnce()
      return (await load(id)).steps[1]!.sends > 12
    })
    expect((await load(id)).steps[1]!.error).toContain(`event ${request.id} is dead in the outbox`)
  })

  test('with a pool of one connection the undo of a transaction is followed by that of a request', async () => {
    const narrow = new pg.Pool({ connectionString: database.url, max: 1 })
    narrow.on('error', () => {})
    const store = postgres({ pool: narrow, sagas: true })
    const one = shipping().step('fails', () => Promise.reject(new Reject('no')))
    const id = await start(one)
    const runner = new SagaRunner<pg.PoolClient>({ store, sagas: [one as AnySaga] })
    runners.push(runner)
    await runner.runOnce()
    await sagaReplies({ store, sagas: [one] }).handle(await answer((await sent())[0]!, Shipped({ parcel: 1 })), context)
    await runner.runOnce()
    await runner.stop()
    await narrow.end()
    const end = await load(id)
    expect(end).toMatchObject({ status: 'compensated', steps: [{}, {}, { status: 'compensated', attempts: 0 }, {}] })
    expect((await sent()).map(({ type }) => type)).toEqual(['ship.wanted', 'ship.cancel'])
  })

  test('a definition upgraded while sagas run: each ends on the version it began with', async () => {
    const old = shipping()
    const now = shipping({}, 2).step('thank', () => 'thanks')
    const id = await start(old)
    await runnerOf([old]).runOnce()
    const reply = await answer((await sent())[0]!, Shipped({ parcel: 1 }))
    // Deployed without the old version: it is not guessed at, and the reply comes again later.
    const early = sagaReplies({ store: db, sagas: [now] }).handle(reply, context)
    await expect(early).rejects.toMatchObject({ code: 'RETRY_LATER' })
    const both = sagaReplies({ store: db, sagas: [old, now] })
    await both.handle(reply, context)
    const next = await start(now)
    const runner = runnerOf([old, now])
    await eventually('both wait or have ended', async () => {
      await runner.runOnce()
      return (await load(id)).endedAt !== undefined && (await load(next)).currentStep === 'ship'
    })
    const last = (await sent()).find(({ extensions }) => extensions['sagaid'] === next)!
    await both.handle(await answer(last, Shipped({ parcel: 2 })), context)
    await eventually('the new one has ended', async () => {
      await runner.runOnce()
      return (await load(next)).endedAt !== undefined
    })
    expect((await load(id)).steps.map(({ name }) => name)).toEqual(['reserve', 'ship', 'bill'])
    expect((await load(next)).steps.map(({ name }) => name)).toEqual(['reserve', 'ship', 'bill', 'thank'])
  })
})
