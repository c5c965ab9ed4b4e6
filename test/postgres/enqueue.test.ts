import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { classify } from '../../src/adapter.ts'
import { Message, type WaybillError } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { eventually } from '../support/wait.ts'
import { outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox

beforeAll(async () => {
  t = await outboxOn()
})
afterAll(() => t.end())

async function inTransaction<T>(fn: (client: pg.PoolClient) => Promise<T>, begin = 'BEGIN'): Promise<T> {
  const client = await t.pool.connect()
  try {
    await client.query(begin)
    const value = await fn(client)
    await client.query('COMMIT')
    return value
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

async function codeOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => undefined,
    (thrown: WaybillError) => thrown,
  )
  return error?.code ?? 'no error'
}

const count = async () => (await t.pool.query('SELECT count(*)::int AS n FROM outbox')).rows[0].n

describe('enqueue in PostgreSQL', () => {
  test('answers the sequence of one, and of many in order', async () => {
    const one = await inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1 })))
    const many = await inTransaction((tx) => t.outbox.enqueue(tx, [Placed({ n: 2 }), Placed({ n: 3 })]))
    expect(many.map(BigInt)).toEqual([BigInt(one) + 1n, BigInt(one) + 2n])
    expect(await inTransaction((tx) => t.outbox.enqueue(tx, []))).toEqual([])
  })

  test('the same event again answers its first sequence and changes nothing, alone, in a batch, twice in one', async () => {
    const event = Placed({ n: 4 }, { key: 'first' })
    const before = await count()
    const first = await inTransaction((tx) => t.outbox.enqueue(tx, event))
    expect(await inTransaction((tx) => t.outbox.enqueue(tx, event, { key: 'second' }))).toBe(first)
    const again = Placed({ n: 5 })
    const [a, b, c] = await inTransaction((tx) => t.outbox.enqueue(tx, [event, again, again]))
    expect([a, b]).toEqual([first, c])
    expect(await count()).toBe(before + 2)
    const { rows } = await t.pool.query('SELECT key FROM outbox WHERE event_id = $1', [event.id])
    expect(rows).toEqual([{ key: 'first' }])
  })

  test('a duplicate waits for the transaction that has the id, and stands in when that rolls back', async () => {
    const event = Placed({ n: 6 })
    const first = await t.pool.connect()
    await first.query('BEGIN')
    await t.outbox.enqueue(first, event)
    const second = inTransaction((tx) => t.outbox.enqueue(tx, event))
    const waiting = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
    await eventually('it waits', async () => (await t.pool.query(waiting)).rowCount === 1)
    await first.query('ROLLBACK')
    first.release()
    const sequence = await second
    const { rows } = await t.pool.query('SELECT sequence::text FROM outbox WHERE event_id = $1', [event.id])
    expect(rows).toEqual([{ sequence }])
  })

  test('under REPEATABLE READ a duplicate that cannot be seen is a clear error that says to run it again', async () => {
    const event = Placed({ n: 7 })
    const tx = await t.pool.connect()
    await tx.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await tx.query('SELECT 1 FROM outbox LIMIT 1')
    await inTransaction((other) => t.outbox.enqueue(other, event))
    await expect(t.outbox.enqueue(tx, event)).rejects.toMatchObject({ code: 'CONFLICT' })
    await tx.query('ROLLBACK')
    tx.release()
  })

  test('withTransaction gives the transaction by itself; outside there is none', async () => {
    const event = Placed({ n: 8 })
    await t.db.withTransaction(async () => {
      await t.outbox.enqueue(event)
    })
    expect((await t.pool.query('SELECT 1 FROM outbox WHERE event_id = $1', [event.id])).rowCount).toBe(1)
    expect(await codeOf(t.outbox.enqueue(Placed({ n: 9 })))).toBe('NO_TRANSACTION')
  })

  test('a pool is refused, and a client that has not begun; by name a pool is allowed', async () => {
    expect(await codeOf(t.outbox.enqueue(t.pool as never, Placed({ n: 10 })))).toBe('NOT_A_TRANSACTION')
    const client = await t.pool.connect()
    expect(await codeOf(t.outbox.enqueue(client, Placed({ n: 10 })))).toBe('NOT_A_TRANSACTION')
    client.release()
    const loose = postgres({ pool: t.pool, outbox: { allowPool: true } })
    expect(await loose.outbox.enqueue(t.pool as never, Placed({ n: 11 }))).toMatch(/^\d+$/)
  })

  test('columns hold what the row says: topic, tenant, aggregate, version, times', async () => {
    const event = Placed({ n: 12 }, { tenant: 'acme', subject: 's' })
    const at = new Date(Date.now() + 60_000)
    const options = { key: 'k', topic: 'orders', availableAt: at, aggregate: { type: 'Order', id: '7' } }
    await inTransaction((tx) => t.outbox.enqueue(tx, event, options))
    const { rows } = await t.pool.query('SELECT * FROM outbox WHERE event_id = $1', [event.id])
    expect(rows).toMatchObject([
      {
        state: 'scheduled',
        tenant_id: 'acme',
        topic: 'orders',
        key: 'k',
        source: '/order',
        event_type: 'order.placed',
        event_version: 1,
        aggregate_type: 'Order',
        aggregate_id: '7',
        payload: { n: 12 },
        payload_bytes: null,
        available_at: at,
        published_at: null,
        attempts: 0,
      },
    ])
  })

  test('serialize: numbers of one key are in commit order, whoever began first', async () => {
    const slow = await t.pool.connect()
    await slow.query('BEGIN')
    const first = await t.outbox.enqueue(slow, Placed({ n: 13 }), { key: 'same', serialize: true })
    let done = false
    const second = inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 14 }), { key: 'same', serialize: true }))
    second.then(() => {
      done = true
    })
    await inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 15 }), { key: 'another', serialize: true }))
    expect(done).toBe(false)
    await slow.query('COMMIT')
    slow.release()
    expect(BigInt(await second)).toBeGreaterThan(BigInt(first))
  })

  test('20,000 serialized keys in one transaction do not run out of locks', async () => {
    const events = Array.from({ length: 20_000 }, (_, n) => Placed({ n }, { key: `k${n}` }))
    await expect(
      t.db.withTransaction(async (tx) => {
        await t.outbox.enqueue(tx, events, { serialize: true })
        throw new Error('enough')
      }),
    ).rejects.toThrow('enough')
  })

  test('with a table of ids, events are removed once published and their ids are still known', async () => {
    const db = postgres({ pool: t.pool, outbox: { table: 'small_outbox', dedup: true } })
    await db.migrate()
    const event = Placed({ n: 1 }, { key: 'k' })
    const sequence = await db.withTransaction((tx) => db.outbox.enqueue(tx, event))
    await untilEmpty(t.relay({ from: db.outbox, deleteOnPublish: true }))
    expect((await t.pool.query('SELECT 1 FROM small_outbox')).rowCount).toBe(0)
    const again = await db.withTransaction((tx) => db.outbox.enqueue(tx, [event, event, Placed({ n: 2 })]))
    expect(again.slice(0, 2)).toEqual([sequence, sequence])
    expect((await t.pool.query('SELECT 1 FROM small_outbox')).rowCount).toBe(1)
  })

  test('in time partitions enqueue, relay and idempotence are the same', async () => {
    const db = postgres({ pool: t.pool, outbox: { table: 'parted_outbox', partition: 'day' } })
    await db.migrate()
    const events = [Placed({ n: 1 }, { key: 'k' }), Placed({ n: 2 }, { key: 'k' })]
    const sequences = await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
    expect(await db.withTransaction((tx) => db.outbox.enqueue(tx, events))).toEqual(sequences)
    expect(await untilEmpty(t.relay({ from: db.outbox }))).toBe(2)
  })
})

test('what is returned can be read by any library: no column of type void', async () => {
  const VOID = 2278
  const client = await t.pool.connect()
  const types: number[] = []
  const run = async (text: string, values: readonly unknown[]) => {
    const result = await client.query(text, values as unknown[])
    types.push(...result.fields.map(({ dataTypeID }) => dataTypeID))
    return result.rows
  }
  await client.query('BEGIN')
  await t.outbox.enqueue(run as never, Placed({ n: 1 }))
  await t.outbox.enqueue(run as never, [Placed({ n: 2 })])
  await client.query('ROLLBACK')
  client.release()
  expect(types.length).toBeGreaterThan(3)
  expect(types).not.toContain(VOID)
})

test('a role that lacks something is told what: the table of ids, or the sequence', async () => {
  const role = `writer_${process.pid}_${Date.now()}`
  const db = postgres({ pool: t.pool, outbox: { table: 'granted', dedup: true } })
  await db.migrate()
  await t.pool.query(`CREATE ROLE ${role}; GRANT SELECT, INSERT ON granted TO ${role}`)
  const enqueue = () =>
    db.withTransaction(async (tx) => {
      await tx.query(`SET LOCAL ROLE ${role}`)
      await db.outbox.enqueue(tx, Placed({ n: 1 }))
    })
  const error = async () => enqueue().catch((caught: Error) => caught)
  expect(await error()).toMatchObject({ code: 'NO_PERMISSION', message: expect.stringContaining('table granted_ids;') })
  await t.pool.query(`GRANT SELECT, INSERT ON granted_ids TO ${role}`)
  const lacking = await error()
  expect(lacking).toMatchObject({
    code: 'NO_PERMISSION',
    message: expect.stringContaining('sequence granted_sequence_seq; grant it USAGE'),
  })
  // Nobody's message is to blame, so that a handler that enqueues waits for the grant.
  expect(classify(lacking)).toBe('down')
  await t.pool.query(`GRANT USAGE ON SEQUENCE granted_sequence_seq TO ${role}`)
  await enqueue()
  await t.pool.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
})

describe('bad input', () => {
  const cases: [name: string, code: string, input: () => Promise<unknown>][] = [
    [
      'a key of 10 kB',
      'TOO_LARGE',
      () => inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1 }, { key: 'k'.repeat(10_000) }))),
    ],
    [
      'a payload of 65 MB',
      'TOO_LARGE',
      () =>
        inTransaction((tx) =>
          t.outbox.enqueue(tx, new Message({ id: 'x', source: '/s', type: 't' }, new Uint8Array(65 * 1024 * 1024))),
        ),
    ],
    [
      'a topic with NUL',
      'INVALID_OPTION',
      () => inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1 }), { topic: 'a\0b' })),
    ],
    [
      'an unknown option',
      'UNKNOWN_OPTION',
      () => inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1 }), { tenantid: 'x' } as never)),
    ],
    [
      'something that is no event',
      'INVALID_OPTION',
      () => inTransaction((tx) => t.outbox.enqueue(tx, { type: 'x' } as never)),
    ],
    [
      'the event before the transaction',
      'INVALID_OPTION',
      () => inTransaction((tx) => t.outbox.enqueue(Placed({ n: 1 }), tx as never)),
    ],
    [
      'data that is no JSON',
      'NOT_SERIALISABLE',
      () => inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1n } as never))),
    ],
    ['a missing table', 'NOT_MIGRATED', () => postgresWith('nowhere_outbox')],
  ]

  const postgresWith = (table: string) => {
    const db = postgres({ pool: t.pool, outbox: { table } })
    return db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 })))
  }

  test.each(cases)('%s', async (_name, code, input) => {
    const before = await count()
    expect(await codeOf(input())).toBe(code)
    expect(await count()).toBe(before)
  })

  test('a time that is none', async () => {
    const late = { availableAt: 'tomorrow' } as never
    expect(await codeOf(inTransaction((tx) => t.outbox.enqueue(tx, Placed({ n: 1 }), late)))).toBe('INVALID_OPTION')
  })

  test('what is given in place of a pool is never shown: a URL holds a password', () => {
    expect(() => postgres({ pool: 'postgres://me:hunter2@db/x' } as never)).toThrow('give a pg Pool')
    expect(() => postgres({ pool: 'postgres://me:hunter2@db/x' } as never)).not.toThrow('hunter2')
    expect(() => postgres({ pool: undefined } as never)).toThrow('undefined is not a database; give a pg Pool')
    for (const itself of [t.pool, undefined, {}]) {
      expect(() => postgres(itself as never)).toThrow('give the pool by its name: postgres({ pool })')
    }
    expect(() => postgres({ pol: t.pool } as never)).toThrow(
      'postgres: unknown option "pol"; did you mean "pool"? Allowed: pool, outbox, inbox',
    )
  })

  test('a relay does not start on a table that is missing', async () => {
    const db = postgres({ pool: t.pool, outbox: { table: 'nowhere_outbox' } })
    expect(await codeOf(t.relay({ from: db.outbox }).start())).toBe('NOT_MIGRATED')
  })

  test.each([
    ['a database', (url: URL) => (url.pathname = '/nowhere'), 'INVALID_OPTION', 'no database "nowhere"; create it'],
    ['a role', (url: URL) => (url.username = 'nobody_at_all'), 'NO_PERMISSION', 'refuses this role'],
  ])('nor with %s that the server does not have', async (_what, change, code, text) => {
    const url = new URL(t.database.url)
    change(url)
    const pool = new pg.Pool({ connectionString: url.href, max: 2 })
    try {
      const starting = t.relay({ from: postgres({ pool }).outbox }).start()
      await expect(starting).rejects.toMatchObject({ code, message: expect.stringContaining(text) })
    } finally {
      await pool.end()
    }
  })

  test('a role that may not write, and a read-only connection, are told what to do', async () => {
    await t.pool.query(`DROP ROLE IF EXISTS waybill_reader; CREATE ROLE waybill_reader LOGIN`)
    const asReader = new URL(t.database.url)
    asReader.username = 'waybill_reader'
    const reader = new pg.Pool({ connectionString: asReader.href, max: 2 })
    const readOnly = new pg.Pool({
      connectionString: t.database.url,
      max: 2,
      options: '-c default_transaction_read_only=on',
    })
    try {
      const weak = postgres({ pool: reader })
      expect(await codeOf(weak.withTransaction((tx) => weak.outbox.enqueue(tx, Placed({ n: 1 }))))).toBe(
        'NO_PERMISSION',
      )
      const still = postgres({ pool: readOnly })
      expect(await codeOf(still.withTransaction((tx) => still.outbox.enqueue(tx, Placed({ n: 1 }))))).toBe('READ_ONLY')
    } finally {
      await Promise.all([reader.end(), readOnly.end()])
      await t.pool.query('DROP ROLE waybill_reader')
    }
  })
})
