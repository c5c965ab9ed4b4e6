import { afterEach, beforeEach, expect, test } from 'vitest'
import { Flow } from '../../src/adapter.ts'
import { outboxSource, Router } from '../../src/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

test('an outbox is a source for a router: an ack publishes the row, a nack leaves it for a later try', async () => {
  await t.enqueue([Placed({ n: 1 }), Placed({ n: 2 }), Placed({ n: 3 })])
  const seen: number[] = []
  const router = new Router('direct').on(Placed, ({ data }) => {
    seen.push(data.n)
    if (data.n === 2 && seen.filter((n) => n === 2).length === 1) throw new Error('not yet')
  })
  const consumer = router.consume(outboxSource(t.outbox), { retry: { backoff: { min: 0, jitter: 0 } } })
  expect(await consumer.runOnce()).toMatchObject({ taken: 3, done: 2, retry: 1 })
  expect(await t.states()).toEqual({ published: 2, retrying: 1 })
  expect(await consumer.runOnce()).toMatchObject({ taken: 1, done: 1 })
  expect(await t.states()).toEqual({ published: 3 })
  expect(seen).toEqual([1, 2, 3, 2])
  await consumer.stop()
})

test.each(['owner', 'lease'] as const)('%s: a row in flight is not given again by the next take', async (reader) => {
  await t.enqueue([Placed({ n: 1 })])
  const session = await outboxSource(t.outbox, { reader }).open(new AbortController().signal)
  const demand = { count: 10, bytes: 1e6 }
  const [delivery] = await session!.take(demand, session!.lost)
  expect(await session!.take(demand, session!.lost)).toEqual([])
  expect(await session!.settle([[delivery!, { kind: 'done' }]])).toBe(0)
  expect(await session!.take(demand, session!.lost)).toEqual([])
  await session!.close()
})

test('a row that is given back is found again, though scans begin behind it by now', async () => {
  await t.enqueue(Array.from({ length: 2500 }, (_, i) => Placed({ n: i })))
  const clock = new FakeClock()
  const source = outboxSource(t.outbox, { reader: 'owner', wake: false, lease: '1h', clock })
  const session = (await source.open(new AbortController().signal))!
  const take = (count: number) => session.take({ count, bytes: 1e9 }, session.lost)
  const numbers = (taken: Awaited<ReturnType<typeof take>>) => taken.map(({ message }) => number(message))
  // Twice it asks who writes; the scan after that raises the floor. A scan from the very left is not due meanwhile.
  const first = await take(1000)
  await clock.advance(100)
  for (const count of [1000, 100, 100, 100]) await take(count)
  await session.settle([[first[7]!, { kind: 'release' }]])
  expect(numbers(await take(1))).toEqual([7])
  // The same while a scan is under way, which takes it for unsettled.
  const scanning = take(1)
  await session.settle([[first[8]!, { kind: 'release' }]])
  expect(numbers(await scanning)).toEqual([2300])
  expect(numbers(await take(2))).toEqual([8, 2301])
  await session.close()
})

test('what is given back behind one that failed is held with it; the rest is ready as it was', async () => {
  const event = (n: number, key: string) => Placed({ n }, { key })
  await t.enqueue([event(1, 'a'), event(2, 'a'), event(1, 'b'), event(2, 'b'), event(1, 'c')])
  const session = (await outboxSource(t.outbox, { reader: 'owner' }).open(new AbortController().signal))!
  const [a1, a2, b1, b2, c1] = await session.take({ count: 10, bytes: 1e9 }, session.lost)
  const error = new Error('no')
  const stale = await session.settle([
    [a1!, { kind: 'retry', after: 3_600_000, charged: true, error }],
    [a2!, { kind: 'release' }],
    [b1!, { kind: 'dead', reason: 'never', error }],
    [b2!, { kind: 'release' }],
    [c1!, { kind: 'release' }],
  ])
  expect(stale).toBe(0)
  const { rows } = await t.pool.query(`SELECT key || ' ' || (payload ->> 'n') AS event, state FROM outbox ORDER BY 1`)
  expect(Object.fromEntries(rows.map(({ event, state }) => [event, state]))).toEqual({
    'a 1': 'retrying',
    'a 2': 'held',
    'b 1': 'dead',
    'b 2': 'held',
    'c 1': 'ready',
  })
  await session.close()
})

test('what lies before, between and behind unsettled runs comes in order', async () => {
  await t.enqueue(Array.from({ length: 12 }, (_, i) => Placed({ n: i })))
  const session = (await outboxSource(t.outbox, { reader: 'owner' }).open(new AbortController().signal))!
  const take = async (count: number) => await session.take({ count, bytes: 1e9 }, session.lost)
  const first = await take(10)
  await session.settle([0, 2, 7].map((i) => [first[i]!, { kind: 'release' }]))
  expect((await take(4)).map(({ message }) => number(message))).toEqual([0, 2, 7, 10])
  expect((await take(4)).map(({ message }) => number(message))).toEqual([11])
  await session.close()
})

test('a take that fails half-way has taken nothing: the next one finds all of it', async () => {
  const source = outboxSource(t.outbox, { reader: 'owner', wake: false, lease: '1h' })
  const session = (await source.open(new AbortController().signal))!
  const take = () => session.take({ count: 10, bytes: 1e6 }, session.lost)
  await t.enqueue([Placed({ n: 1 }, { key: 'blocked' })])
  await session.settle((await take()).map((delivery) => [delivery, { kind: 'dead', reason: 'no', error: undefined }]))
  await t.enqueue([Placed({ n: 2 }, { key: 'blocked' }), Placed({ n: 3 })])
  await t.pool.query(
    `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now' USING ERRCODE = '55P03'; END $$`,
  )
  await t.pool.query(
    `CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.state = 'held') EXECUTE FUNCTION refuse()`,
  )
  await expect(take()).rejects.toThrow('not now')
  await t.pool.query('DROP TRIGGER refuse ON outbox')
  expect((await take()).map(({ message }) => number(message))).toEqual([3])
  expect(await t.states()).toEqual({ dead: 1, held: 1, ready: 1 })
  await session.close()
})

test('a handler that takes longer than the lease keeps its row', async () => {
  await t.enqueue([Placed({ n: 1 })])
  const lease = '1500ms'
  const telemetry = recordTelemetry(['task.ran'])
  const renewals = () => telemetry.of('task.ran').filter(({ task }) => task === 'slow: extend').length
  let calls = 0
  const slow = new Flow({
    name: 'slow',
    from: outboxSource(t.outbox, { reader: 'lease', lease }),
    poll: '50ms',
    maxPoll: '50ms',
    step: {
      each: async () => {
        calls++
        // Every third of a lease.
        await eventually('two leases have passed', () => renewals() >= 6)
      },
    },
  })
  const other = t.relay({ reader: 'lease', lease, poll: '50ms', maxPoll: '50ms' })
  await slow.start()
  await eventually('it is handled', () => calls === 1)
  await other.start()
  await eventually('it is published', async () => (await t.states())['published'] === 1)
  await slow.stop()
  telemetry.stop()
  expect(calls).toBe(1)
  expect(t.sink.messages).toHaveLength(0)
})
