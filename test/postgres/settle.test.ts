import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Session } from '../../src/flow/index.ts'
import { outboxSource } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox
const sessions: Session[] = []

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(async () => {
  await Promise.all(sessions.splice(0).map((session) => session.close()))
  await t.end()
})

const PLENTY = { count: 100, bytes: 1e9 }
const DONE = { kind: 'done' } as const
const events = (...numbers: number[]) => numbers.map((n) => Placed({ n }))
async function open(reader: 'owner' | 'lease', options = {}, outbox = t.outbox): Promise<Session> {
  const session = await outboxSource(outbox, { reader, wake: false, ...options }).open(new AbortController().signal)
  sessions.push(session!)
  return session!
}
const take = (session: Session, count = 100) => session.take({ ...PLENTY, count }, session.lost)
const stateOf = async (n: number) =>
  (await t.pool.query(`SELECT state FROM outbox WHERE payload ->> 'n' = $1`, [String(n)])).rows[0]?.state

describe('numbers that repeat', () => {
  test.each([[false], [true]])(
    'an event is settled, and not another of its number (removed: %s)',
    async (deleteOnPublish) => {
      await t.enqueue(events(1))
      const session = await open('owner', { deleteOnPublish })
      const taken = await take(session)
      await t.enqueue(events(2))
      // As after a restore, setval or TRUNCATE … RESTART IDENTITY.
      await t.pool.query('UPDATE outbox SET sequence = 1')
      expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
      expect(await stateOf(2)).toBe('ready')
      expect((await take(session)).map(({ message }) => number(message))).toEqual([2])
    },
  )

  test.each([
    [0, 1],
    [1, 0],
  ])('of two with one number each is unsettled until it is settled itself: %s, then %s', async (first, then) => {
    await t.enqueue(events(1, 2))
    await t.pool.query('UPDATE outbox SET sequence = 7')
    const session = await open('owner')
    const taken = await take(session)
    expect(taken).toHaveLength(2)
    await session.settle([[taken[first]!, DONE]])
    expect(await take(session)).toEqual([])
    await session.settle([[taken[then]!, DONE]])
    expect(await t.states()).toEqual({ published: 2 })
  })
})

describe.each(['owner', 'lease'] as const)('%s: a settlement that changes no row', (reader) => {
  const ignore = async (where: string) => {
    await t.pool.query(`CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
    await t.pool.query(
      `CREATE TRIGGER ignore BEFORE UPDATE ON outbox FOR EACH ROW WHEN (${where}) EXECUTE FUNCTION ignore()`,
    )
  }

  test('is an error, and the event is not given again; the others are settled', async () => {
    await t.enqueue(events(1, 2, 3))
    await ignore(`NEW.state = 'published' AND NEW.payload ->> 'n' = '2'`)
    const session = await open(reader)
    const taken = await take(session)
    const settling = session.settle(taken.map((delivery) => [delivery, DONE]))
    await expect(settling).rejects.toMatchObject({ code: 'NOT_SETTLED', message: expect.stringContaining('1 events') })
    expect(await t.states()).toMatchObject({ published: 2 })
    expect(await take(session)).toEqual([])
    // The flow asks again, without those that are settled.
    expect(await session.settle(taken.filter((_, i) => i !== 1).map((delivery) => [delivery, DONE]))).toBe(2)
    expect(await take(session)).toEqual([])
    await t.pool.query('DROP TRIGGER ignore ON outbox')
    expect(await session.settle([[taken[1]!, DONE]])).toBe(0)
    expect(await t.states()).toEqual({ published: 3 })
  })

  test('also one that failed', async () => {
    await t.enqueue(events(1))
    await ignore(`NEW.state IN ('retrying', 'dead')`)
    const session = await open(reader)
    const [delivery] = await take(session)
    const error = new Error('no')
    await expect(session.settle([[delivery!, { kind: 'retry', after: 0, charged: true, error }]])).rejects.toThrow(
      'did not change',
    )
    await expect(session.settle([[delivery!, { kind: 'dead', reason: 'no', error }]])).rejects.toThrow('did not change')
  })

  test('what a person removed meanwhile is stale, and no error', async () => {
    await t.enqueue(events(1, 2))
    const session = await open(reader)
    const taken = await take(session)
    await t.pool.query(`DELETE FROM outbox WHERE payload ->> 'n' = '1'`)
    expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(1)
  })
})

const IGNORED = `BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.state = 'published') EXECUTE FUNCTION ignore()`

test('an owner with many published events whose rows do not change takes no more', async () => {
  await t.enqueue(events(...Array.from({ length: 120 }, (_, n) => n)))
  await t.pool.query(`CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
  await t.pool.query(`CREATE TRIGGER ignore ${IGNORED}`)
  const session = await open('owner')
  const taken = await take(session)
  const settle = () => session.settle(taken.map((delivery) => [delivery, DONE]))
  await expect(settle()).rejects.toMatchObject({ code: 'NOT_SETTLED' })
  await expect(take(session)).rejects.toMatchObject({ code: 'NOT_SETTLED' })
  await t.pool.query('DROP TRIGGER ignore ON outbox')
  expect(await settle()).toBe(0)
  expect(await take(session)).toHaveLength(20)
})

test('a relay publishes an event once whose row does not change', async () => {
  await t.enqueue(events(1, 2, 3))
  await t.pool.query(`CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
  await t.pool.query(`CREATE TRIGGER ignore ${IGNORED}`)
  const told = recordTelemetry(['flow.settle_failed'])
  const relay = t.relay({ outage: { min: 5, max: 5, jitter: 0 }, poll: '5ms', maxPoll: '5ms', grace: '10ms' })
  await relay.start()
  const { error } = await told.next('flow.settle_failed', undefined, 30_000)
  await told.next('flow.settle_failed', undefined, 30_000)
  await relay.stop()
  told.stop()
  expect(error).toMatchObject({ code: 'NOT_SETTLED' })
  expect(t.sink.messages.map(number)).toEqual([1, 2, 3])
})

describe('row-level security', () => {
  /** An outbox as a role sees it that neither owns the table nor bypasses its policies. */
  async function withRole<T>(policy: string, body: (outbox: TestOutbox['outbox']) => Promise<T>): Promise<T> {
    const role = `relay_${process.pid}_${Date.now()}`
    await t.pool.query(`CREATE ROLE ${role} NOLOGIN`)
    await t.pool.query(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ${role}`)
    await t.pool.query('ALTER TABLE outbox ENABLE ROW LEVEL SECURITY')
    await t.pool.query(`CREATE POLICY ${policy}`)
    const pool = new pg.Pool({ connectionString: t.database.url, max: 10, options: `-c role=${role}` })
    pool.on('error', () => {})
    try {
      return await body(postgres({ pool }).outbox as never)
    } finally {
      await pool.end()
      await t.pool.query(`DROP OWNED BY ${role}`)
      await t.pool.query(`DROP ROLE ${role}`)
    }
  }

  test.each(['owner', 'lease'] as const)(
    '%s: a role that may see rows and not change them is refused',
    async (reader) => {
      await t.enqueue(events(1))
      await withRole('look ON outbox FOR SELECT USING (true)', async (outbox) => {
        await expect(open(reader, {}, outbox)).rejects.toMatchObject({
          code: 'ROW_SECURITY',
          message: expect.stringContaining('no policy gives it UPDATE'),
        })
      })
    },
  )

  test('where policies may hide events the relay says so, and works', async () => {
    await t.enqueue(events(1, 2))
    const told = recordTelemetry(['warning'])
    await withRole(`certain ON outbox USING (payload ->> 'n' = '1')`, async (outbox) => {
      const session = await open('owner', {}, outbox)
      expect((await take(session)).map(({ message }) => number(message))).toEqual([1])
      await sessions.pop()!.close()
    })
    told.stop()
    expect(told.of('warning')).toMatchObject([{ message: expect.stringContaining('row-level security applies') }])
  })

  test('one that owns the table is not troubled', async () => {
    await t.enqueue(events(1))
    await t.pool.query('ALTER TABLE outbox ENABLE ROW LEVEL SECURITY')
    expect(await untilEmpty(t.relay())).toBe(1)
  })
})
