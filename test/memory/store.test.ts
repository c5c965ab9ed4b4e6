import { afterEach, describe, expect, test } from 'vitest'
import { event, Relay, telemetry } from '../../src/index.ts'
import { type MemoryTransaction, memory } from '../../src/memory/index.ts'
import { collector, FakeClock } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'

const Placed = event<{ n: number }>('order.placed')

const relays: Relay[] = []
afterEach(async () => {
  await Promise.all(relays.splice(0).map((relay) => relay.stop()))
})

describe('a transaction in memory', () => {
  test('undoes what was changed at once, the last change first', async () => {
    const db = memory()
    const undone: number[] = []
    await db.withTransaction(async (tx) => tx.onRollback(() => undone.push(0)))
    expect(undone).toEqual([])
    const failing = db.withTransaction(async (tx) => {
      for (const n of [1, 2, 3]) tx.onRollback(() => undone.push(n))
      throw new Error('no')
    })
    await expect(failing).rejects.toThrow('no')
    expect(undone).toEqual([3, 2, 1])
  })

  test('keeps the error when undoing fails too, and tells of it', async () => {
    const db = memory()
    const told: string[] = []
    const stop = telemetry.warning.subscribe(({ message }) => told.push(message))
    const id = 'a'
    const failing = db.withTransaction(async (tx) => {
      await db.inbox.receive(tx, { subscriber: 's', source: '/s', id })
      tx.onRollback(() => {
        throw new Error('undo')
      })
      throw new Error('first')
    })
    await expect(failing).rejects.toThrow('first')
    stop()
    expect(told).toEqual(['ROLLBACK failed: Error: undo'])
    const again = db.withTransaction((tx) => db.inbox.receive(tx, { subscriber: 's', source: '/s', id }))
    expect(await again).toBe('new')
  })

  test('cannot be used after its end', async () => {
    const db = memory()
    let leaked: MemoryTransaction | undefined
    await db.withTransaction(async (tx) => {
      leaked = tx
    })
    expect(() => leaked!.onRollback(() => {})).toThrow('has ended')
    await expect(db.outbox.enqueue(leaked!, Placed({ n: 1 }))).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
  })

  test('two that wait for each other: one is told to run again, the other goes on', async () => {
    const db = memory()
    const [a, b] = [Placed({ n: 1 }), Placed({ n: 2 })]
    const both = async (first: typeof a, second: typeof a) =>
      db.withTransaction(async (tx) => {
        await db.outbox.enqueue(tx, first)
        await new Promise((resolve) => setImmediate(resolve))
        await db.outbox.enqueue(tx, second)
      })
    const results = await Promise.allSettled([both(a, b), both(b, a)])
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
    const failed = results.find(({ status }) => status === 'rejected') as PromiseRejectedResult
    expect(failed.reason.code).toBe('CONFLICT')
    expect(await db.outbox.admin.list()).toHaveLength(2)
  })

  test('with serialize, writers of one key wait for each other: its numbers are in commit order', async () => {
    const db = memory()
    const ended: string[] = []
    const write = (name: string, turns: number) =>
      db.withTransaction(async (tx) => {
        await db.outbox.enqueue(tx, Placed({ n: 1 }), { key: 'a', topic: name, serialize: true })
        for (let i = 0; i < turns; i++) await new Promise((resolve) => setImmediate(resolve))
        ended.push(name)
      })
    await Promise.all([write('slow', 5), write('quick', 0)])
    expect(ended).toEqual(['slow', 'quick'])
    expect((await db.outbox.admin.list()).map(({ topic }) => topic)).toEqual(['slow', 'quick'])
  })

  test('is found by enqueue without one, and missed', async () => {
    const db = memory()
    await db.withTransaction(async () => {
      await db.outbox.enqueue(Placed({ n: 1 }))
      await db.outbox.enqueue([Placed({ n: 2 }), Placed({ n: 3 })], { topic: 'x' })
    })
    expect(await db.outbox.admin.list()).toHaveLength(3)
    await expect(db.outbox.enqueue(Placed({ n: 4 }))).rejects.toMatchObject({ code: 'NO_TRANSACTION' })
  })
})

describe('an outbox in memory', () => {
  test('is relayed as any other, and wakes an idle relay', async () => {
    const db = memory({ outbox: { name: 'orders', topic: 'shop' } })
    await db.migrate()
    const sink = collector()
    const relay = new Relay({ from: db.outbox, to: sink, poll: '1h', maxPoll: '1h' })
    relays.push(relay)
    await relay.start()
    for (let n = 0; n < 3; n++) {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n }, { key: 'a' })))
      await sink.arrived(n + 1)
    }
    expect(sink.messages.map((message) => JSON.parse(message.data as string).n)).toEqual([0, 1, 2])
    await relay.stop()
    expect((await db.outbox.admin.stats()).states.published.count).toBe(3)
  })

  test('times are those of the clock it was given', async () => {
    const clock = new FakeClock('2030-01-01T00:00:00Z')
    const db = memory({ clock })
    const later = new Date('2030-01-02T00:00:00Z')
    await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 }), { availableAt: later }))
    const sink = collector()
    const relay = new Relay({ from: db.outbox, to: sink, clock })
    relays.push(relay)
    expect((await relay.runOnce()).taken).toBe(0)
    await clock.advance(86_400_000)
    expect((await relay.runOnce()).done).toBe(1)
    const [entry] = await db.outbox.admin.list()
    expect(entry).toMatchObject({ createdAt: new Date('2030-01-01T00:00:00Z'), publishedAt: later })
  })

  test('unknown options are refused with a suggestion', () => {
    expect(() => memory({ clok: 1 } as object)).toThrow('did you mean "clock"?')
    expect(() => memory({ outbox: { nmae: 'x' } as object })).toThrow('did you mean "name"?')
  })

  test('a relay that cannot work is one clear error, before anything moves', () => {
    const from = memory().outbox
    const to = async () => {}
    const refused: [object | undefined, string][] = [
      [undefined, 'Relay: from: undefined is not allowed; it must be an outbox, such as postgres({ pool }).outbox'],
      [{ from: memory(), to }, 'Relay: from: an object is not allowed; it must be an outbox'],
      [{ from }, 'Relay: to: undefined is not allowed; a publisher is an object with publish(), or an async function'],
      [{ from, to: {} }, 'Relay: to: an object is not allowed; a publisher is'],
      [{ from, to: 'amqp://me:hunter2@broker' }, 'Relay: to: text is not allowed; a publisher is'],
      [
        { from, to, batch: 20_000 },
        'Relay: batch: 20000 is not allowed; give a whole number of at least 1 and at most 10000',
      ],
      [{ from, to, batch: '5' }, 'Relay: batch: "5" is not allowed'],
      [{ from, to, maxBatch: 0 }, 'Relay: maxBatch: 0 is not allowed'],
      [{ from, to, retry: { backoff: 5 } }, 'retry.backoff: options must be an object, got 5'],
      [{ from, to, retry: { backoff: { mn: 1 } } }, 'retry.backoff: unknown option "mn"; did you mean "min"?'],
      [{ from, to, outage: '1s' }, 'outage: options must be an object, got "1s"'],
      [{ from, to, outage: { max: -1 } }, 'outage.max: -1 is not a duration'],
    ]
    for (const [options, text] of refused) expect(() => new Relay(options as never), text).toThrow(text)
  })

  test('a first batch larger than the usual limit raises it', async () => {
    const db = memory()
    await db.withTransaction((tx) =>
      db.outbox.enqueue(
        tx,
        Array.from({ length: 1500 }, (_, n) => Placed({ n })),
      ),
    )
    expect(await new Relay({ from: db.outbox, to: async () => {}, batch: 5000 }).runOnce()).toMatchObject({
      done: 1500,
    })
  })

  test('what cannot be enqueued is one clear error, and nothing is written', async () => {
    const db = memory()
    const event = Placed({ n: 1 })
    await db.withTransaction(async (tx) => {
      const refused: [unknown[], string][] = [
        [[tx, { type: 'order.placed', data: {} }], 'an object is not an event, it has no id, no source; make one with'],
        [
          [tx, { data: {} }],
          'it has no id, no source, no type; make one with a definition, such as OrderPlaced({ … })',
        ],
        [[tx, Placed], 'enqueue: a function is not an event; make one with a definition'],
        [[tx], 'enqueue: undefined is not an event; make one'],
        [[event, tx], 'enqueue: the transaction comes first; give enqueue(tx, event, options)'],
        [[[event], tx, { key: 'a' }], 'the transaction comes first'],
        [[event, { query: async () => {} }], 'the transaction comes first'],
        [[event, async () => {}], 'the transaction comes first'],
        [[{ type: 'order.placed', data: {} }, tx], 'the transaction comes first'],
        [[tx, event, { key: 42 }], 'enqueue: key: 42 is not allowed; give text that is not empty, or leave it out'],
        [[tx, event, { key: '' }], 'enqueue: key: "" is not allowed; give text'],
        [[tx, event, { topic: 42 }], 'enqueue: topic: 42 is not allowed; give text'],
        [[event, { topic: '' }], 'enqueue: topic: "" is not allowed; give text'],
        [[tx, event, { tenant: 42 }], 'enqueue: tenant: 42 is not allowed; give text'],
      ]
      for (const [given, text] of refused) {
        await expect(
          (db.outbox.enqueue as (...all: unknown[]) => Promise<unknown>).apply(db.outbox, given),
        ).rejects.toThrow(text)
      }
    })
    await expect(db.outbox.enqueue(event, { query: () => {} } as never)).rejects.toThrow('the transaction comes first')
    expect(await db.outbox.admin.list()).toEqual([])
    await db.withTransaction((tx) => db.outbox.enqueue(tx, event, { tenant: '' }))
    expect(await db.outbox.admin.list()).toMatchObject([{ tenant: '' }])
  })

  test('many rows that cannot be taken are in nobody’s way', async () => {
    const count = scale({ test: 20_000, full: 1_000_000, torture: 1_000_000 })
    const db = memory()
    const batch = (key: (n: number) => string | undefined, options = {}) =>
      db.withTransaction((tx) =>
        db.outbox.enqueue(
          tx,
          Array.from({ length: count }, (_, n) => {
            const k = key(n)
            return Placed({ n }, k === undefined ? {} : { key: k })
          }),
          options,
        ),
      )
    await batch(() => undefined, { availableAt: new Date('2100-01-01') })
    await batch((n) => (n % 2 === 0 ? 'blocked' : `key ${n % 1000}`))
    const sink = collector()
    sink.reject({ where: (message) => message.key === 'blocked', times: 1 })
    const relay = new Relay({ from: db.outbox, to: sink, maxBatch: 10_000, batch: 10_000 })
    relays.push(relay)
    let done = 0
    for (let tally = await relay.runOnce(); tally.taken > 0; tally = await relay.runOnce()) done += tally.done
    expect(done).toBe(count / 2)
    const { states } = await db.outbox.admin.stats()
    expect([states.dead.count, states.held.count, states.scheduled.count]).toEqual([1, count / 2 - 1, count])
  })
})
