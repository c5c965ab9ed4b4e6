import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { classify, Message, type WaybillError } from '../../src/core/index.ts'
import { databaseOf, sqlOf } from '../../src/drivers/sql/database.ts'
import { InboxNames, PostgresInbox } from '../../src/postgres/inbox.ts'
import { sql } from '../../src/postgres/sql.generated.ts'
import { drivers, type Opened } from '../drivers/drivers.ts'
import { eventually } from '../support/wait.ts'

const fails = (work: Promise<unknown>): Promise<WaybillError> =>
  work.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )

describe.each(drivers)('inbox on $name', ({ open, single }) => {
  let opened: Opened
  let inbox: PostgresInbox
  beforeAll(async () => {
    opened = await open()
    await opened.sql('CREATE SCHEMA billing')
    for (const table of ['processed_messages', 'billing.seen']) {
      for (const statement of new InboxNames(table).fill(sql['inbox-create']).split(';')) {
        if (statement.trim() !== '') await opened.sql(statement)
      }
    }
    inbox = new PostgresInbox(opened.db)
  })
  afterEach(() => opened.sql('TRUNCATE processed_messages'))
  afterAll(() => opened?.close())

  const key = (id: string, source = '/shop', subscriber = 'billing') => ({ subscriber, source, id })
  const receive = (id: string, source?: string, subscriber?: string) =>
    opened.db.transaction((tx) => inbox.receive(tx, key(id, source, subscriber)))
  const count = async () => Number((await opened.sql('SELECT count(*) FROM processed_messages'))[0]!['count'])

  test('is new once for each subscriber, source and id', async () => {
    expect(await receive('1')).toBe('new')
    expect(await receive('1')).toBe('done')
    expect(await receive('2')).toBe('new')
    expect(await receive('1', '/other')).toBe('new')
    expect(await receive('1', '/shop', 'shipping')).toBe('new')
    expect(await receive('1')).toBe('done')
    expect(await count()).toBe(4)
  })

  test('a duplicate leaves the transaction usable', async () => {
    await receive('1')
    await opened.db.transaction(async (tx) => {
      expect(await inbox.receive(tx, key('1'))).toBe('done')
      expect((await sqlOf(tx).query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }])
    })
  })

  test('a rollback forgets', async () => {
    const work = opened.db.transaction(async (tx) => {
      await inbox.receive(tx, key('1'))
      throw new Error('no')
    })
    await fails(work)
    expect(await receive('1')).toBe('new')
  })

  test.skipIf(single).each([
    ['commits', 'done'],
    ['rolls back', 'new'],
  ])('a second at the same time waits until the first %s, and is %s', async (ending, answer) => {
    const order: string[] = []
    let second: Promise<unknown> | undefined
    const first = opened.db.transaction(async (tx) => {
      await inbox.receive(tx, key('1'))
      second = receive('1').then((answer) => {
        order.push('second')
        return answer
      })
      await waiting(opened)
      order.push('first')
      if (ending === 'rolls back') throw new Error('no')
    })
    await first.catch(() => {})
    expect(await second).toBe(answer)
    expect(order).toEqual(['first', 'second'])
  })

  test('ids of any length and content', async () => {
    const long = Array.from({ length: 1250 }, (_, i) => ((i * 2654435761) >>> 0).toString(16).padStart(8, '0')).join('')
    expect(long).toHaveLength(10_000)
    const ids = [long, `${long}x`, 'a\0b', 'a\0c', '\ud800', '\ud801', '€'.repeat(255), `'; DROP TABLE x; --`, '日本']
    for (const id of ids) expect(await receive(id, '€'.repeat(255), '€'.repeat(255))).toBe('new')
    for (const id of ids) expect(await receive(id, '€'.repeat(255), '€'.repeat(255))).toBe('done')
    expect(await receive('1', long)).toBe('new')
    expect(await receive('1', long)).toBe('done')
    const [row] = await opened.sql(`SELECT max(length(message_id)) AS longest FROM processed_messages`)
    expect(Number(row!['longest'])).toBe(255)
  })

  test('without id, source or subscriber it is an error that no retry mends', async () => {
    for (const wrong of [key(''), key('1', ''), key(undefined as unknown as string)]) {
      const error = await fails(opened.db.transaction((tx) => inbox.receive(tx, wrong)))
      expect(error.code).toBe('MALFORMED_MESSAGE')
      expect(classify(error)).toBe('permanent')
    }
    for (const subscriber of ['', 'x'.repeat(256)]) {
      expect((await fails(receive('1', '/shop', subscriber))).code).toBe('INVALID_OPTION')
    }
  })

  test('is refused outside of a transaction', async () => {
    expect((await fails(inbox.receive(opened.client, key('1')))).code).toBe('NOT_A_TRANSACTION')
    expect(await count()).toBe(0)
  })

  test('once() runs the work once, whoever calls it', async () => {
    const message = new Message({ id: '7', source: '/shop', type: 'order.placed' }, {})
    let ran = 0
    const once = () => opened.db.transaction((tx) => inbox.once(tx, 'job', message, async () => ++ran))
    expect(await once()).toEqual({ skipped: false, value: 1 })
    expect(await once()).toEqual({ skipped: true })
    expect(ran).toBe(1)
    const failing = opened.db.transaction((tx) =>
      inbox.once(tx, 'job', { source: '/shop', id: '8' }, () => {
        throw new Error('no')
      }),
    )
    await fails(failing)
    const again = opened.db.transaction((tx) => inbox.once(tx, 'job', { source: '/shop', id: '8' }, () => 'now'))
    expect(await again).toEqual({ skipped: false, value: 'now' })
  })

  test('cleaning takes the old only, so many at a time', async () => {
    await opened.sql(`INSERT INTO processed_messages
      SELECT 'billing', '/shop', 'old' || i, now() - interval '31 days' FROM generate_series(1, 5) i`)
    await opened.sql(`INSERT INTO processed_messages
      SELECT 'billing', '/shop', 'young' || i, now() - interval '29 days' FROM generate_series(1, 3) i`)
    expect(await inbox.clean({ limit: 2 })).toBe(2)
    expect(await inbox.clean()).toBe(3)
    expect(await inbox.clean()).toBe(0)
    expect(await count()).toBe(3)
    expect(await inbox.clean({ retention: 28 * 86_400_000, limit: 10 })).toBe(3)
    expect((await fails(inbox.clean({ limit: 0 }))).code).toBe('INVALID_OPTION')
  })

  test('another table, and one that is missing', async () => {
    const other = new PostgresInbox(opened.db, { table: 'billing.seen' })
    expect(await opened.db.transaction((tx) => other.receive(tx, key('1')))).toBe('new')
    expect(await receive('1')).toBe('new')
    const missing = new PostgresInbox(opened.db, { table: 'nowhere' })
    const error = await fails(opened.db.transaction((tx) => missing.receive(tx, key('1'))))
    expect(error.message).toContain('nowhere')
    // Not the messages' fault: a consumer waits until somebody has migrated.
    expect(classify(error)).toBe('down')
    expect(() => new PostgresInbox(opened.db, { table: 'a"b' })).toThrow(
      expect.objectContaining({ code: 'INVALID_NAME' }),
    )
    expect(() => new PostgresInbox(opened.db, { tabel: 'x' } as object)).toThrow('did you mean "table"')
  })

  test.skipIf(single)('under REPEATABLE READ a duplicate from meanwhile is a retryable error', async () => {
    const work = opened.db.transaction(async (tx) => {
      await sqlOf(tx).query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')
      await sqlOf(tx).query('SELECT 1')
      await receive('1')
      return inbox.receive(tx, key('1'))
    })
    expect(classify(await fails(work))).toBe('transient')
  })

  test('any transaction that runs SQL will do', async () => {
    await opened.db.transaction(async (tx) => {
      const own = sqlOf(tx)
      const rowsOnly = async (text: string, values: readonly never[]) => (await own.query(text, values)).rows
      const wrapped = new PostgresInbox(databaseOf(opened.client))
      expect(await wrapped.receive(rowsOnly, key('1'))).toBe('new')
      expect(await wrapped.receive({ query: rowsOnly }, key('1'))).toBe('done')
    })
  })
})

/** Until somebody waits for a transaction of another. */
async function waiting(opened: Opened): Promise<void> {
  await eventually('somebody waits', async () => {
    const found = await opened.sql(
      `SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND pid IN (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database())`,
    )
    return found.length > 0
  })
}
