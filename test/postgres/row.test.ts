import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Settlement } from '../../src/adapter.ts'
import { Message, outboxSource, RetryLater } from '../../src/index.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

/** What stands in the row of an event, column by column, and what the table itself refuses. */

let t: TestOutbox

beforeAll(async () => {
  t = await outboxOn()
})
afterAll(() => t.end())
beforeEach(() => t.pool.query('TRUNCATE outbox'))

// biome-ignore lint/suspicious/noExplicitAny: a row of any column.
async function row(): Promise<any> {
  const { rows } = await t.pool.query('SELECT *, sequence::text AS sequence FROM outbox')
  expect(rows).toHaveLength(1)
  return rows[0]
}

describe('a fresh row', () => {
  test('has a column for everything the event and its options say', async () => {
    const id = '0190b5a0-0000-7000-8000-00000000abcd'
    const time = '2025-01-01T00:00:00Z'
    const extensions = { eventversion: 3, tenantid: 'acme', color: 'red' }
    const message = new Message(
      { id, source: '/users', type: 'user.renamed', subject: 's', time, extensions },
      { n: 12 },
    )
    const at = new Date(Date.now() + 3_600_000)
    const options = { key: 'k', topic: 'users', availableAt: at, aggregate: { type: 'User', id: '7' } }
    const before = new Date()
    const sequence = await t.db.withTransaction((tx) => t.outbox.enqueue(tx, message, options))
    const { created_at, attributes, ...columns } = await row()
    expect(columns).toMatchObject({
      event_id: id,
      sequence,
      state: 'scheduled',
      tenant_id: 'acme',
      topic: 'users',
      key: 'k',
      source: '/users',
      event_type: 'user.renamed',
      event_version: 3,
      aggregate_type: 'User',
      aggregate_id: '7',
      foreign_id: null,
      payload: { n: 12 },
      payload_bytes: null,
      available_at: at,
      published_at: null,
      attempts: 0,
      locked_at: null,
      lease: null,
      last_error: null,
    })
    expect(attributes).toMatchObject({ subject: 's', time, extensions: { color: 'red' } })
    // Of the server's clock, which is this machine's.
    expect(Math.abs(created_at - before.getTime())).toBeLessThan(60_000)
  })

  test('is ready, of no tenant, of version 1 and of the topic of its type when nothing else is said', async () => {
    await t.enqueue(Placed({ n: 1 }))
    expect(await row()).toMatchObject({
      state: 'ready',
      tenant_id: '',
      topic: 'order.placed',
      key: null,
      event_version: 1,
      aggregate_type: null,
      aggregate_id: null,
      available_at: null,
      attempts: 0,
    })
  })

  test('an event that passes through keeps its bytes, and an id that is no UUID', async () => {
    const bytes = Buffer.from('{"b": 1,  "a": 1, "a": 2}')
    await t.enqueue(new Message({ id: 'order-1', source: '/shop', type: 'x' }, bytes))
    const { event_id, foreign_id, payload, payload_bytes } = await row()
    // uuid.uuid5(uuid.UUID('6f1f8a04-6b0e-5c3a-9f0e-3a9d7f6c2b51'), '/shop\0order-1'), as Python has it.
    expect([event_id, foreign_id]).toEqual(['b32476fd-aaf9-55fa-ae7c-eeb08e1cc129', 'order-1'])
    expect([payload, payload_bytes]).toEqual([null, bytes])
  })
})

describe('the table refuses', () => {
  const insert = (columns: string, values: string) =>
    t.pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, ${columns})
      VALUES (gen_random_uuid(), 't', '/s', 'x', ${values})`)

  test.each([
    ['an event without a payload', 'payload, payload_bytes', 'NULL, NULL', 'outbox_row'],
    ['an event with two payloads', 'payload, payload_bytes', `'{}', '\\x00'`, 'outbox_row'],
    ['a state nobody knows', 'payload, state', `'{}', 'sent'`, 'outbox_row'],
  ])('%s', async (_, columns, values, constraint) => {
    const refused = { code: '23514', constraint: expect.stringMatching(`^${constraint}`) }
    await expect(insert(columns, values)).rejects.toMatchObject(refused)
    expect((await t.pool.query('SELECT 1 FROM outbox')).rowCount).toBe(0)
  })

  test('a row that is changed to such a one', async () => {
    await t.enqueue(Placed({ n: 1 }))
    const refused = { code: '23514' }
    await expect(t.pool.query(`UPDATE outbox SET state = 'sent'`)).rejects.toMatchObject(refused)
    await expect(t.pool.query('UPDATE outbox SET payload = NULL')).rejects.toMatchObject(refused)
    expect((await row()).state).toBe('ready')
  })

  test('a second row of one event', async () => {
    await t.enqueue(Placed({ n: 1 }))
    const again = `INSERT INTO outbox (event_id, topic, source, event_type, payload)
      SELECT event_id, topic, source, event_type, payload FROM outbox`
    await expect(t.pool.query(again)).rejects.toMatchObject({ code: '23505' })
  })
})

const RETRY: Settlement = { kind: 'retry', after: 0, charged: true, error: new Error('not yet') }
const KEPT: Settlement = { kind: 'retry', after: 0, charged: false, error: new RetryLater(0) }
const DEAD: Settlement = { kind: 'dead', reason: 'never', error: new Error('never') }

/** Takes all there is and settles it as told; meanwhile looks at the row. */
async function settle(reader: 'owner' | 'lease', settlement: Settlement) {
  const source = outboxSource(t.outbox, { reader, lease: '30s' })
  const session = (await source.open(new AbortController().signal))!
  try {
    const taken = await session.take({ count: 10, bytes: 1e6 }, session.lost)
    expect(taken).toHaveLength(1)
    const during = await row()
    expect(await session.settle([[taken[0]!, settlement]])).toBe(0)
    return during
  } finally {
    await session.close()
  }
}

const FREE = { lease: null, locked_at: null }

describe('while a relay works on an event', () => {
  test('under a lease the row says since when, until when and under which token', async () => {
    await t.enqueue(Placed({ n: 1 }))
    const { rows } = await t.pool.query('SELECT clock_timestamp() AS now')
    const during = await settle('lease', { kind: 'done' })
    expect(during).toMatchObject({ state: 'leased', lease: expect.stringMatching(/^[0-9a-f-]{36}$/) })
    const since = during.locked_at - rows[0].now
    expect(since).toBeGreaterThanOrEqual(0)
    expect(since).toBeLessThan(10_000)
    expect(during.available_at - during.locked_at).toBeGreaterThanOrEqual(30_000)
    expect(during.available_at - during.locked_at).toBeLessThan(30_100)
  })

  test('an owner writes nothing', async () => {
    await t.enqueue(Placed({ n: 1 }))
    const { rows } = await t.pool.query('SELECT * FROM outbox')
    const { sequence, ...during } = await settle('owner', { kind: 'done' })
    expect(during).toEqual({ ...rows[0], sequence: undefined })
  })
})

describe.each(['owner', 'lease'] as const)('settled under %s', (reader) => {
  test('an ack: published, with the time, nobody’s any more', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, { kind: 'done' })
    const { published_at, ...rest } = await row()
    expect(rest).toMatchObject({ state: 'published', attempts: 0, available_at: null, last_error: null, ...FREE })
    expect(published_at).toBeInstanceOf(Date)
  })

  test('a retry: with the time, the reason and the attempt, nobody’s any more', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, { ...RETRY, after: 3_600_000 })
    const { available_at, ...rest } = await row()
    expect(rest).toMatchObject({
      state: 'retrying',
      attempts: 1,
      last_error: 'Error: not yet',
      published_at: null,
      ...FREE,
    })
    expect(Math.abs(available_at - Date.now() - 3_600_000)).toBeLessThan(60_000)
  })

  test('a retry that is not charged spends no attempt', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, KEPT)
    expect(await row()).toMatchObject({ state: 'retrying', attempts: 0, ...FREE })
  })

  test('dead: with the reason, nobody’s any more', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, DEAD)
    const dead = { state: 'dead', attempts: 1, last_error: 'never', available_at: null, published_at: null, ...FREE }
    expect(await row()).toMatchObject(dead)
  })

  test('given back: as it was, nobody’s any more', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, { kind: 'release' })
    const ready = { state: 'ready', attempts: 0, last_error: null, available_at: null, published_at: null, ...FREE }
    expect(await row()).toMatchObject(ready)
  })

  test('an ack after a retry clears the error, and keeps the attempt', async () => {
    await t.enqueue(Placed({ n: 1 }))
    await settle(reader, RETRY)
    await settle(reader, { kind: 'done' })
    expect(await row()).toMatchObject({
      state: 'published',
      attempts: 1,
      last_error: null,
      available_at: null,
      ...FREE,
    })
  })
})

/** Whoever writes the ack, and whatever the event went through before: a published row has no error and no lock. */
describe.each(['owner', 'lease'] as const)('an ack of %s clears the error', (reader) => {
  const ways: [name: string, before: () => Promise<unknown>][] = [
    [
      'of an event that failed under a lease, and was given back',
      async () => {
        await settle('lease', RETRY)
        await settle('lease', { kind: 'release' })
      },
    ],
    [
      'of an event whose lease ran out, and that was given back',
      async () => {
        await settle('lease', RETRY)
        await t.pool.query(`UPDATE outbox SET state = 'leased', lease = gen_random_uuid(), locked_at = now()`)
        await settle('lease', { kind: 'release' })
      },
    ],
    [
      'of an event that was dead and re-armed',
      async () => {
        await settle(reader, DEAD)
        await t.outbox.admin.rearm({ states: ['dead'] })
      },
    ],
    [
      'of an event that was replayed',
      async () => {
        await settle(reader, RETRY)
        await settle(reader, { kind: 'done' })
        await t.outbox.admin.replay({ states: ['published'] }, { by: 'test', note: 'again' })
      },
    ],
  ]

  test.each(ways)('%s', async (_, before) => {
    await t.enqueue(Placed({ n: 1 }))
    await before()
    await settle(reader, { kind: 'done' })
    const { state, last_error, lease, locked_at, available_at } = await row()
    expect({ state, last_error, lease, locked_at, available_at }).toEqual({
      state: 'published',
      last_error: null,
      lease: null,
      locked_at: null,
      available_at: null,
    })
  })
})

describe('the row of an inbox', () => {
  test('has subscriber, source and id as they are, and of what is too long or no text its hash', async () => {
    // hashlib.sha256(id.encode('utf-16-le')).hexdigest() in Python. Another hash would handle everything once more.
    const ids = {
      'order-1': 'order-1',
      [`${'x'.repeat(256)}`]: 'sha256:2fb07a8ca0613d2936869ab0871403b73145845360a040ff78e9153c17f82bea',
      ['€'.repeat(256)]: 'sha256:81792585243afadeb76fbc2553f0d2eabdfc7f5fa1e812d0d0aa92a8a38541b1',
      'a\0b': 'sha256:d06c13d806836ab3011b178376b23276469c411c1c199ec8fbfd3a4a5b2b95e3',
    }
    // Another connection than the one that made the table.
    const other = new pg.Client({ connectionString: t.database.url })
    await other.connect()
    for (const [id, kept] of Object.entries(ids)) {
      const received = t.db.withTransaction((tx) =>
        t.db.inbox.receive(tx, { subscriber: 'billing', source: '/shop', id }),
      )
      expect(await received).toBe('new')
      const { rows } = await other.query('SELECT subscriber, source, message_id FROM processed_messages')
      expect(rows).toEqual([{ subscriber: 'billing', source: '/shop', message_id: kept }])
      await t.pool.query('TRUNCATE processed_messages')
    }
    await other.end()
  })
})
