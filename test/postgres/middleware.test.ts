import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { encodeData, event, type Message, RetryLater, type WaybillError } from '../../src/core/index.ts'
import { sqlOf } from '../../src/drivers/sql/database.ts'
import { InboxNames, PostgresInbox } from '../../src/postgres/inbox.ts'
import { sql } from '../../src/postgres/sql.generated.ts'
import { PostgresUnitOfWork } from '../../src/postgres/store.ts'
import { type ConsumeOptions, deadLetter, type Middleware, Router, repeat, timeout } from '../../src/router/index.ts'
import { inbox, outbox, transaction, transactional } from '../../src/store/middleware.ts'
import type { EnqueueOptions } from '../../src/store/store.ts'
import { FakeClock, type ScriptedSource, scriptedSource } from '../../src/testing/index.ts'
import { drivers, type Opened } from '../drivers/drivers.ts'
import { eventually } from '../support/wait.ts'

const OrderPlaced = event<{ order: string }>('order.placed')
const InvoiceSent = event<{ order: string }>('invoice.sent')

/** An outbox as small as can be: it writes through the transaction it is given. */
const tinyOutbox = {
  enqueue: async (tx: unknown, events: readonly Message[], options: EnqueueOptions = {}) => {
    for (const one of events) {
      const { correlationid, causationid } = one.extensions
      const values = [one.id, options.topic ?? null, String(correlationid), String(causationid)]
      await sqlOf(tx).query('INSERT INTO sent VALUES ($1, $2, $3, $4)', values)
    }
    return []
  },
}

describe.each(drivers)('middleware on $name', ({ open, single }) => {
  let opened: Opened
  let unit: PostgresUnitOfWork
  let db: Parameters<typeof transactional<unknown>>[0]
  beforeAll(async () => {
    opened = await open()
    for (const statement of new InboxNames().fill(sql['inbox-create']).split(';')) {
      if (statement.trim() !== '') await opened.sql(statement)
    }
    await opened.sql('CREATE TABLE invoices (number text PRIMARY KEY)')
    await opened.sql('CREATE TABLE sent (id text PRIMARY KEY, topic text, correlation text, causation text)')
    unit = new PostgresUnitOfWork(opened.db)
    db = {
      withTransaction: (fn) => unit.withTransaction(fn),
      inbox: new PostgresInbox(opened.db),
      outbox: tinyOutbox,
    }
  })
  afterEach(() => opened.sql('TRUNCATE processed_messages, invoices, sent'))
  afterAll(() => opened?.close())

  const state = async () => {
    const [row] = await opened.sql(`SELECT
      (SELECT count(*)::int FROM processed_messages) AS inbox,
      (SELECT count(*)::int FROM invoices) AS invoices,
      (SELECT count(*)::int FROM sent) AS sent`)
    return row
  }
  const NOTHING = { inbox: 0, invoices: 0, sent: 0 }
  const invoice = (tx: unknown, number: string) => sqlOf(tx).query('INSERT INTO invoices VALUES ($1)', [number])
  const placed = (order: string, id = order) => encodeData(OrderPlaced({ order }, { id, source: '/shop' }))

  /** Runs the router on these messages and answers how each was settled, in the order they were. */
  async function consume(
    router: Router,
    messages: readonly ReturnType<typeof placed>[],
    options: ConsumeOptions = {},
    during?: (source: ScriptedSource) => Promise<void>,
  ) {
    const source = scriptedSource([messages], { features: { redelivers: true } })
    const consumer = await router.consume(source, options).start()
    await during?.(source)
    const settled = await source.settled(messages.length, 20_000)
    await consumer.stop()
    return settled.map(({ settlement }) => settlement)
  }

  const billing = (handler: (tx: unknown, message: Message<{ order: string }>) => Promise<unknown>) =>
    new Router('billing').use(transactional(db, { topic: 'invoices' })).on(OrderPlaced, async (message, { tx }) => {
      await handler(tx, message)
      return [InvoiceSent({ order: message.data.order }), InvoiceSent({ order: message.data.order })]
    })

  test('business write, inbox and outputs are one: all of it with the commit, before the ack', async () => {
    const router = billing((tx, { data }) => invoice(tx, data.order))
    expect(await consume(router, [placed('1')])).toEqual([{ kind: 'done' }])
    expect(await state()).toEqual({ inbox: 1, invoices: 1, sent: 2 })
    const sent = await opened.sql('SELECT DISTINCT topic, correlation, causation FROM sent')
    expect(sent).toEqual([{ topic: 'invoices', correlation: '1', causation: '1' }])
    const [row] = await opened.sql('SELECT subscriber, source, message_id FROM processed_messages')
    expect(row).toEqual({ subscriber: 'billing', source: '/shop', message_id: '1' })
  })

  test('nothing of it when the handler throws', async () => {
    const router = billing(async (tx, { data }) => {
      await invoice(tx, data.order)
      throw new Error('no')
    })
    expect(await consume(router, [placed('1')])).toMatchObject([{ kind: 'retry', charged: true }])
    expect(await state()).toEqual(NOTHING)
  })

  test('nothing of it when the outbox fails', async () => {
    const router = new Router('billing')
      .use(transaction(db))
      .use(inbox(db.inbox))
      .use(outbox({ enqueue: () => Promise.reject(new Error('full')) }))
      .on(OrderPlaced, async ({ data }, { tx }) => {
        await invoice(tx, data.order)
        return InvoiceSent({ order: data.order })
      })
    expect(await consume(router, [placed('1')])).toMatchObject([{ kind: 'retry' }])
    expect(await state()).toEqual(NOTHING)
  })

  test('duplicates, at once and later: the effect happens once, all of them are acked', async () => {
    let calls = 0
    const router = billing(async (tx, { data }) => {
      calls++
      await sleep(2)
      await invoice(tx, data.order)
    })
    const messages = Array.from({ length: 60 }, (_, i) => placed(String(i % 6)))
    const settled = await consume(router, messages, { concurrency: 10 })
    expect(settled).toEqual(messages.map(() => ({ kind: 'done' })))
    expect(calls).toBe(6)
    expect(await state()).toEqual({ inbox: 6, invoices: 6, sent: 12 })
  })

  test('a failure and its redelivery: once in effect', async () => {
    let calls = 0
    const router = new Router('billing')
      .use(repeat({ attempts: 2, backoff: { min: '1ms', max: '1ms', jitter: '0ms' } }))
      .use(transactional(db))
      .on(OrderPlaced, async ({ data }, { tx }) => {
        await invoice(tx, data.order)
        if (++calls === 1) throw new Error('at first')
      })
    expect(await consume(router, [placed('1')])).toEqual([{ kind: 'done' }])
    expect(calls).toBe(2)
    expect(await state()).toEqual({ inbox: 1, invoices: 1, sent: 0 })
  })

  test('COMMIT answered with ROLLBACK: not acked', async () => {
    await opened.sql(`INSERT INTO invoices VALUES ('1')`)
    const router = billing(async (tx, { data }) => {
      await invoice(tx, data.order).catch(() => {})
    })
    // The write of the outputs would tell, so there are none.
    const quiet = new Router('billing').use(transactional(db)).on(OrderPlaced, async ({ data }, { tx }) => {
      await invoice(tx, data.order).catch(() => {})
    })
    const [settled] = await consume(quiet, [placed('1')])
    // As if the error had not been caught: this one no second try can mend.
    expect(settled).toMatchObject({ kind: 'dead', error: { code: 'ROLLED_BACK', cause: { code: '23505' } } })
    expect((await consume(router, [placed('1')]))[0]!.kind).not.toBe('done')
    expect(await state()).toEqual({ ...NOTHING, invoices: 1 })
  })

  test('a handler that was given up does not commit afterwards', async () => {
    let begun = false
    let finished = 0
    const clock = new FakeClock()
    const router = new Router('billing')
      .use(timeout('500ms', clock))
      .use(transactional(db))
      .on(OrderPlaced, async ({ data }, { tx, signal }) => {
        await invoice(tx, data.order)
        const aborted = new Promise((resolve) => signal.addEventListener('abort', resolve))
        begun = true
        await aborted
        await sleep(20)
        finished++
      })
    const [settled] = await consume(router, [placed('1')], {}, async () => {
      await until(() => begun)
      await clock.advance(500)
    })
    expect(settled).toMatchObject({ kind: 'retry', error: { code: 'TIMEOUT' } })
    await until(() => finished === 1)
    await unit.withTransaction(async () => {})
    expect(await state()).toEqual(NOTHING)
  })

  test('a signal that comes with the commit does not cut it short', async () => {
    const controller = new AbortController()
    const aborting = {
      ...db,
      withTransaction: <T>(fn: (tx: unknown) => Promise<T>) =>
        unit.withTransaction(async (tx) => {
          const value = await fn(tx)
          controller.abort(new Error('too late'))
          return value
        }),
    }
    const router = new Router('billing').use(transactional(aborting)).on(OrderPlaced, async ({ data }, { tx }) => {
      await invoice(tx, data.order)
    })
    await router.handle(placed('1'), contextOf(controller.signal))
    expect(await state()).toEqual({ inbox: 1, invoices: 1, sent: 0 })
    await expect(router.handle(placed('2'), contextOf(controller.signal))).rejects.toThrow('too late')
    expect(await state()).toEqual({ inbox: 1, invoices: 1, sent: 0 })
  })

  test('an ack by hand waits for the commit', async () => {
    let acked: unknown
    const router = new Router('billing').use(transaction(db)).on(OrderPlaced, async ({ data }, { tx, ack }) => {
      await invoice(tx, data.order)
      ack()
    })
    const context = {
      ...contextOf(new AbortController().signal),
      ack: () => {
        acked = state()
        return true
      },
    }
    await router.handle(placed('1'), context)
    expect(await acked).toMatchObject({ invoices: 1 })
    acked = undefined
    const failing = router.handle(placed('1'), context)
    await expect(failing).rejects.toMatchObject({ code: '23505' })
    expect(acked).toBeUndefined()
  })

  test.skipIf(single)('a connection killed in the middle: tried again, once in effect', async () => {
    let calls = 0
    const router = new Router('billing')
      .use(repeat({ attempts: 3, backoff: { min: '1ms', max: '1ms', jitter: '0ms' } }))
      .use(transactional(db))
      .on(OrderPlaced, async ({ data }, { tx }) => {
        await invoice(tx, data.order)
        if (++calls > 1) return
        const { rows } = await sqlOf(tx).query('SELECT pg_backend_pid() AS pid')
        await opened.sql('SELECT pg_terminate_backend($1)', [rows[0]!['pid']])
        await sqlOf(tx).query('SELECT 1')
      })
    expect(await consume(router, [placed('1')])).toEqual([{ kind: 'done' }])
    expect(await state()).toEqual({ inbox: 1, invoices: 1, sent: 0 })
  })

  test('one that another is handling comes again later', async () => {
    const busy = { receive: async () => 'busy' as const }
    const router = new Router('billing')
      .use(transaction(db))
      .use(inbox(busy))
      .on(OrderPlaced, () => expect.unreachable('handled'))
    const [settled] = await consume(router, [placed('1')])
    expect(settled).toMatchObject({ kind: 'retry', after: 1000, charged: false, error: expect.any(RetryLater) })
  })

  test('subscriber and topic are chosen, and outputs stay in their order', async () => {
    const runs: string[] = []
    const watched = {
      enqueue: async (_tx: unknown, events: readonly Message[], options: EnqueueOptions = {}) => {
        runs.push(`${options.topic}: ${events.map(({ id }) => id).join(' ')}`)
        return []
      },
    }
    const topic = ({ id }: Message) => (id.startsWith('x') ? 'letters' : undefined)
    const router = new Router('billing')
      .use(transactional({ ...db, outbox: watched }, { subscriber: 'accounts', topic }))
      .on(OrderPlaced, () => ['x1', 'x2', 'y1', 'x3'].map((id) => InvoiceSent({ order: id }, { id })))
    await consume(router, [placed('1')])
    expect(runs).toEqual(['letters: x1 x2', 'undefined: y1', 'letters: x3'])
    expect(await opened.sql('SELECT subscriber FROM processed_messages')).toEqual([{ subscriber: 'accounts' }])
  })
})

describe('order', () => {
  const unit = { withTransaction: <T>(fn: (tx: { mine: true }) => Promise<T>) => fn({ mine: true }) }
  const receiving = { receive: async () => 'new' as const }
  const enqueueing = { enqueue: async () => [] }
  const all = { ...unit, inbox: receiving, outbox: enqueueing }
  const started = (...middlewares: Middleware[]) => {
    const router = new Router('billing')
    for (const middleware of middlewares) router.use(middleware)
    return router.consume(scriptedSource()).start()
  }
  const fault = (...middlewares: Middleware[]): Promise<WaybillError> =>
    started(...middlewares).then(
      () => expect.unreachable('it started'),
      (error) => error,
    )

  test('what is missing or in the wrong order fails at the start', async () => {
    const wrong: Middleware[][] = [
      [inbox(receiving)],
      [outbox(enqueueing)],
      [inbox(receiving), transaction(unit)],
      [outbox(enqueueing), transaction(unit)],
      [transaction(unit), repeat()],
      [transaction(unit), timeout('1s')],
      [transaction(unit), deadLetter({ to: async () => {} })],
      [transaction(unit), transaction(unit)],
      [transactional(all), repeat()],
      [transactional(all), transaction(unit)],
      [transactional(all), inbox(receiving)],
      [transactional(all), outbox(enqueueing)],
    ]
    for (const middlewares of wrong) {
      expect(await fault(...middlewares), middlewares.map(({ name }) => name).join(' ')).toMatchObject({
        code: 'MIDDLEWARE_ORDER',
      })
    }
  })

  test('what is no store is refused where it is given', () => {
    const pool = { query: async () => {} }
    const refused: [() => unknown, string][] = [
      [() => transaction(pool as never), 'transaction: an object has no withTransaction(); give a store'],
      [() => transactional(pool as never), 'transactional: an object has no withTransaction(); give a store'],
      [() => transactional(undefined as never), 'transactional: undefined has no withTransaction()'],
      [() => transactional(unit as never), 'inbox: undefined has no receive(); give the inbox of a store'],
      [() => inbox(all as never), 'inbox: an object has no receive(); give the inbox of a store: inbox(db.inbox)'],
      [() => outbox(all as never), 'outbox: an object has no enqueue(); give the outbox of a store: outbox(db.outbox)'],
    ]
    for (const [make, text] of refused) expect(make, text).toThrow(text)
  })

  test('what is right starts', async () => {
    for (const middlewares of [
      [transaction(unit)],
      [repeat(), transaction(unit), inbox(receiving)],
      [timeout('1s'), repeat(), transaction(unit), outbox(enqueueing), inbox(receiving)],
      [repeat(), transactional(all)],
    ]) {
      await (await started(...middlewares)).stop()
    }
  })

  test('options that do not exist are refused', () => {
    expect(() => inbox(receiving, { subscribr: 'x' } as object)).toThrow('did you mean "subscriber"')
    expect(() => outbox(enqueueing, { topics: 'x' } as object)).toThrow('did you mean "topic"')
    expect(() => transactional(all, { topic: 5 } as object)).toThrow('topic is a name')
  })

  test("the handler's transaction has the driver's own type", () => {
    new Router('billing').use(transactional(all)).on(OrderPlaced, (_message, { tx }) => {
      expectTypeOf(tx).toEqualTypeOf<{ mine: true }>()
    })
  })
})

function contextOf(signal: AbortSignal) {
  return { signal, attempt: 1, router: 'billing', ack: () => true, nack: () => true }
}

async function until(holds: () => boolean): Promise<void> {
  await eventually(holds.toString(), holds)
}
