import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { encodeData, event } from '../../src/core/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/middleware.ts'
import { scriptedSource } from '../../src/testing/index.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

const Sent = event<{ n: number }>('invoice.sent')

let t: TestOutbox

beforeAll(async () => {
  t = await outboxOn()
  await t.pool.query(`
    CREATE TABLE customers (id int PRIMARY KEY);
    CREATE TYPE colour AS ENUM ('red');
    CREATE TABLE invoices (id int UNIQUE, amount int CHECK (amount > 0), paid bool NOT NULL DEFAULT false,
      customer int REFERENCES customers, colour colour);
    INSERT INTO invoices VALUES (1, 1);
    CREATE TABLE parts (day date) PARTITION BY RANGE (day);
    CREATE FUNCTION deeper(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN deeper($1 + 1); END $$`)
})
afterAll(() => t.end())

const raise = (code: string) => `DO $$ BEGIN RAISE EXCEPTION SQLSTATE '${code}'; END $$`

/** What a deploy in the wrong order and an outage look like to a handler: nobody is charged, the flow waits. */
const DOWN: readonly (readonly [string, string])[] = [
  ['a missing table (42P01)', 'SELECT * FROM nowhere'],
  ['a missing column (42703)', 'SELECT vat FROM invoices'],
  ['a missing function (42883)', 'SELECT vat_of(1)'],
  ['a missing grant (42501)', 'SET LOCAL ROLE pg_monitor; SELECT * FROM invoices'],
  ['a missing schema (3F000)', 'CREATE TABLE nowhere.t ()'],
  ['a missing partition (23514)', "INSERT INTO parts VALUES ('2020-01-01')"],
  [
    'a cached plan after a migration (0A000)',
    'PREPARE p AS SELECT * FROM invoices; ALTER TABLE invoices ADD COLUMN vat int; EXECUTE p',
  ],
  ['a server that became read-only (25006)', 'SET TRANSACTION READ ONLY; DELETE FROM invoices'],
  ['a limit of the role for transactions (25P04)', "SET LOCAL transaction_timeout = '20ms'; SELECT pg_sleep(5)"],
  ['a killed connection (57P01)', 'SELECT pg_terminate_backend(pg_backend_pid())'],
  ['a transaction that the server ended (25P04)', "SET LOCAL transaction_timeout = '20ms'; SELECT pg_sleep(5)"],
  ['a full disk (53100)', raise('53100')],
  ['a disk that cannot be read (58030)', raise('58030')],
  ['an internal error (XX000)', raise('XX000')],
]

/** What may be the message's or the moment's: charged, and tried again. */
const CHARGED: readonly (readonly [string, string])[] = [
  ['a parent that may come later (23503)', 'INSERT INTO invoices (customer) VALUES (7)'],
  ['a column that must not be null (23502)', 'INSERT INTO invoices (paid) VALUES (null)'],
  ['a value an enum does not have yet (22P02)', "INSERT INTO invoices (colour) VALUES ('blue')"],
  ['a statement that took too long (57014)', "SET LOCAL statement_timeout = '20ms'; SELECT pg_sleep(5)"],
  [
    'an object in use (55006)',
    'DECLARE c CURSOR FOR SELECT * FROM invoices; FETCH c; ALTER TABLE invoices ADD COLUMN y int',
  ],
  ['a statement too complex (54001)', 'SELECT deeper(1)'],
  ['an exception of a trigger (P0001)', "DO $$ BEGIN RAISE EXCEPTION 'not enough stock'; END $$"],
]

/** The message's own data. */
const DEAD: readonly (readonly [string, string])[] = [
  ['what is no number (22P02)', "SELECT 'x'::int"],
  ['a number out of range (22003)', 'SELECT 99999999999::int'],
  ['a second of its kind (23505)', 'INSERT INTO invoices (id) VALUES (1)'],
  ['what a check refuses (23514)', 'INSERT INTO invoices (amount) VALUES (-1)'],
]

describe('a handler in a transaction meets', () => {
  test.each(DOWN)('%s: nobody is charged', async (_, statement) => {
    expect(await settled(statement)).toMatchObject([{ kind: 'release' }, { kind: 'release' }])
  })

  test.each(CHARGED)('%s: an attempt is spent', async (_, statement) => {
    expect(await settled(statement)).toMatchObject([
      { kind: 'retry', charged: true },
      { kind: 'retry', charged: true },
    ])
  })

  test.each(DEAD)('%s: it is dead', async (_, statement) => {
    expect(await settled(statement)).toMatchObject([{ kind: 'dead' }, { kind: 'dead' }])
  })

  test('a forbidden outbox: nobody is charged', async () => {
    expect(await settled('SET LOCAL ROLE pg_monitor')).toMatchObject([{ kind: 'release' }, { kind: 'release' }])
  })

  test('a missing outbox: nobody is charged, and once it is there all are handled', async () => {
    await t.pool.query('ALTER TABLE outbox RENAME TO outbox_later')
    try {
      expect(await settled('SELECT 1')).toMatchObject([{ kind: 'release' }, { kind: 'release' }])
    } finally {
      await t.pool.query('ALTER TABLE outbox_later RENAME TO outbox')
    }
    expect(await settled('SELECT 1')).toMatchObject([{ kind: 'done' }, { kind: 'done' }])
  })
})

/** How two messages were settled whose handlers ran `statement` and returned an event for the outbox. */
async function settled(statement: string) {
  const router = new Router('billing').use(transactional(t.db)).on(Placed, async ({ data }, { tx }) => {
    await (tx as pg.PoolClient).query(statement)
    return Sent({ n: data.n })
  })
  const messages = [encodeData(Placed({ n: 1 })), encodeData(Placed({ n: 2 }))]
  const source = scriptedSource([messages], { features: { redelivers: true } })
  const consumer = router.consume(source)
  await consumer.runOnce()
  await consumer.stop()
  return messages.map(({ id }) => source.settlementOf(id))
}
