import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Message, outboxSource, RetryLater } from '../../src/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const READERS = ['owner', 'lease'] as const
const numbered = (from: number, to: number, key?: string) =>
  Array.from({ length: to - from + 1 }, (_, i) => Placed({ n: from + i }, key === undefined ? {} : { key }))

describe.each(READERS)('%s: a row that cannot be read costs only itself', (reader) => {
  test.each([
    ['attributes are null', `attributes = 'null'`],
    ['attributes are a number', `attributes = '7'`],
    ['attributes are a list', `attributes = '[]'`],
    ['a subject is a number', `attributes = '{"subject": 1}'`],
    ['extensions are a text', `attributes = '{"extensions": "x"}'`],
    ['an extension is null', `attributes = '{"extensions": {"a": null}}'`],
    ['an extension is an object', `attributes = '{"extensions": {"a": {"b": 1}}}'`],
    ['the type is empty', `event_type = ''`],
  ])('%s', async (_, change) => {
    await t.enqueue(numbered(1, 5))
    await t.pool.query(`UPDATE outbox SET ${change} WHERE payload ->> 'n' = '3'`)
    const told = recordTelemetry(['message.dead'])
    await untilEmpty(t.relay({ reader }))
    told.stop()
    expect(t.sink.messages.map(number).sort()).toEqual([1, 2, 4, 5])
    expect(told.of('message.dead')).toMatchObject([{ reason: expect.stringContaining('MALFORMED_ROW') }])
    const { rows } = await t.pool.query(`SELECT state, attempts, last_error FROM outbox WHERE payload ->> 'n' = '3'`)
    expect(rows).toMatchObject([{ state: 'dead', attempts: 1, last_error: expect.stringContaining('MALFORMED_ROW') }])
    const charged = await t.pool.query(`SELECT count(*)::int AS n FROM outbox WHERE attempts > 0`)
    expect(charged.rows[0].n).toBe(1)
  })

  test('there is no payload', async () => {
    await t.enqueue(numbered(1, 3))
    await t.pool.query(
      'ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_payload, DROP CONSTRAINT IF EXISTS outbox_row',
    )
    await t.pool.query(`UPDATE outbox SET payload = NULL WHERE payload ->> 'n' = '2'`)
    await untilEmpty(t.relay({ reader }))
    expect(t.sink.messages.map(number).sort()).toEqual([1, 3])
    expect(await t.states()).toEqual({ dead: 1, published: 2 })
  })
})

test.each(READERS)('%s: a time at which no clock has ever been costs nothing at all', async (reader) => {
  await t.enqueue(numbered(1, 4))
  await t.pool.query(`UPDATE outbox SET created_at = CASE payload ->> 'n' WHEN '2' THEN '-infinity'::timestamptz
    WHEN '3' THEN 'infinity' ELSE created_at END`)
  await untilEmpty(t.relay({ reader }))
  expect(t.sink.messages.map(number).sort()).toEqual([1, 2, 3, 4])
})

test('later events of its key wait behind a row that cannot be read', async () => {
  await t.enqueue([...numbered(1, 3, 'a'), ...numbered(4, 5, 'b')])
  await t.pool.query(`UPDATE outbox SET attributes = 'null' WHERE payload ->> 'n' = '2'`)
  await untilEmpty(t.relay())
  expect(t.arrivals()).toEqual({ a: [1], b: [4, 5] })
  expect(await t.states()).toEqual({ dead: 1, held: 1, published: 3 })
})

describe.each(READERS)('%s: what is written is something the table takes', (reader) => {
  const failing = (error: unknown) => async (message: Message) => {
    if (number(message) === 2) throw error
  }

  test('an error text with NUL and half a character', async () => {
    await t.enqueue(numbered(1, 3))
    await t.relay({ reader, to: failing(new Error('a\0b\ud800c')) }).runOnce()
    const { rows } = await t.pool.query(`SELECT last_error FROM outbox WHERE state = 'retrying'`)
    expect(rows).toEqual([{ last_error: expect.stringContaining('a b\ufffdc') }])
    expect(await t.states()).toEqual({ published: 2, retrying: 1 })
  })

  test('a reason with NUL', async () => {
    await t.enqueue(numbered(1, 3))
    await t.relay({ reader, retry: { attempts: 1 }, to: failing(new Error('a\0b')) }).runOnce()
    expect(await t.states()).toEqual({ dead: 1, published: 2 })
  })

  test('a delay longer than there are times', async () => {
    await t.enqueue(numbered(1, 3))
    await t.relay({ reader, to: failing(new RetryLater(1e18)) }).runOnce()
    expect(await t.states()).toEqual({ published: 2, retrying: 1 })
    const [event] = await t.outbox.admin.list({ states: ['retrying'] })
    const days = (event!.availableAt!.getTime() - Date.now()) / 86_400_000
    expect([Math.ceil(days), Math.floor(days)]).toEqual([365, 364])
  })
})

/** A flow makes its texts and delays storable itself; whoever else settles need not. */
test.each(READERS)('%s: a reason with NUL and a delay without end are written, whoever settles', async (reader) => {
  await t.enqueue(numbered(1, 2))
  const session = await outboxSource(t.outbox, { reader, wake: false }).open(new AbortController().signal)
  try {
    const [first, second] = await session!.take({ count: 2, bytes: 1e9 }, session!.lost)
    const error = new Error('no')
    await session!.settle([
      [first!, { kind: 'dead', reason: 'a\0b\ud800c', error }],
      [second!, { kind: 'retry', after: 1e18, charged: true, error }],
    ])
  } finally {
    await session!.close()
  }
  expect(await t.states()).toEqual({ dead: 1, retrying: 1 })
  const { rows } = await t.pool.query(`SELECT last_error FROM outbox WHERE state = 'dead'`)
  expect(rows).toEqual([{ last_error: 'ab\ufffdc' }])
})

test.each(READERS)('%s: what is published keeps no error of an earlier try', async (reader) => {
  await t.enqueue(numbered(1, 2))
  await t.pool.query(`UPDATE outbox SET last_error = 'an earlier try', locked_at = now(), lease = gen_random_uuid()`)
  await untilEmpty(t.relay({ reader }))
  const { rows } = await t.pool.query('SELECT DISTINCT state, last_error, locked_at, lease FROM outbox')
  expect(rows).toEqual([{ state: 'published', last_error: null, locked_at: null, lease: null }])
})

test.each(READERS)('%s: a row with a negative number is read', async (reader) => {
  await t.enqueue(numbered(1, 2))
  await t.pool.query('UPDATE outbox SET sequence = sequence - 2')
  await untilEmpty(t.relay({ reader }))
  expect(await t.states()).toEqual({ published: 2 })
})

describe('a key may be empty, though enqueue makes none:', () => {
  const empty = () => t.pool.query(`UPDATE outbox SET key = '' WHERE key = 'a'`)

  test('what was held behind a dead event goes on when that is discarded', async () => {
    await t.enqueue(numbered(1, 3, 'a'))
    await empty()
    t.sink.reject({ where: (message) => number(message) === 1 })
    await untilEmpty(t.relay())
    expect(await t.states()).toEqual({ dead: 1, held: 2 })
    await t.outbox.admin.discardDead({}, { by: 'test', note: 'test' })
    await untilEmpty(t.relay())
    expect(t.sink.messages.map(number)).toEqual([2, 3])
  })

  test('what has no key waits for none of its events', async () => {
    await t.enqueue([...numbered(1, 2, 'a'), ...numbered(3, 4)])
    await empty()
    await t.pool.query(`UPDATE outbox SET attributes = 'null' WHERE payload ->> 'n' = '1'`)
    await untilEmpty(t.relay())
    expect(await t.states()).toEqual({ dead: 1, held: 1, published: 2 })
  })
})
