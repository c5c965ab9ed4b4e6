import pg from 'pg'
import { expect, type TestContext, test } from 'vitest'
import { outboxSource, Reject } from '../../src/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, untilEmpty } from './support.ts'

/** Somebody has locked a row of the outbox and does not end: a person at a prompt, say. All others go on. */

/** An outbox, and somebody who locks a row of it. Each test has its own: they wait for locks, side by side. */
async function world({ onTestFinished }: TestContext) {
  const t = await outboxOn()
  onTestFinished(() => t.end())
  const other = new pg.Client({ connectionString: t.database.url })
  await other.connect()
  onTestFinished(() => other.end())
  const lock = async (n: number) => {
    await other.query('BEGIN')
    const { rowCount } = await other.query(`SELECT 1 FROM outbox WHERE payload->>'n' = '${n}' FOR UPDATE`)
    expect(rowCount).toBe(1)
  }
  return { t, lock, unlock: () => other.query('ROLLBACK') }
}

/** Short, and with it all that a statement may wait. */
const lease = '3s'

test.concurrent.for(['owner', 'lease'] as const)(
  '%s: one that was published is settled when it is free, the others are settled before',
  async (reader, context) => {
    const { t, lock, unlock } = await world(context)
    await t.enqueue(Array.from({ length: 8 }, (_, n) => Placed({ n })))
    let locked = false
    const to = {
      name: 'sink',
      features: {},
      publish: async (...given: Parameters<typeof t.sink.publish>) => {
        if (!locked) await lock(3)
        locked = true
        return t.sink.publish(...given)
      },
    }
    const relay = t.relay({ reader, lease, to, poll: '50ms', outage: { min: 1, max: 5, jitter: 0 } })
    await relay.start()
    const published = (count: number) =>
      eventually(`${count} to be published`, async () => (await t.states())['published'] === count)
    await published(7)
    await t.enqueue(Placed({ n: 8 }))
    await published(8)
    await unlock()
    await published(9)
    // Under leases its own has run out meanwhile: it is published once more.
    if (reader === 'owner') expect(t.sink.messages.filter((message) => number(message) === 3)).toHaveLength(1)
  },
)

test.concurrent.for(['owner', 'lease'] as const)(
  '%s: a settlement waits for the lock, not for the limit of a statement',
  async (reader, context) => {
    const { t, lock } = await world(context)
    await t.enqueue(Placed({ n: 1 }))
    const session = (await outboxSource(t.outbox, { reader, wake: false }).open(new AbortController().signal))!
    try {
      const taken = await session.take({ count: 1, bytes: 1e9 }, session.lost)
      await lock(1)
      const settled = session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
      await expect(settled).rejects.toMatchObject({ code: '55P03' })
    } finally {
      await session.close()
    }
  },
)

test.concurrent('owner: one that is to wait behind a dead one of its key keeps nobody waiting', async (context) => {
  const { t, lock } = await world(context)
  t.sink.fail({ where: (message) => number(message) === 1, error: new Reject('no') })
  await t.enqueue(Placed({ n: 1 }, { key: 'a' }))
  await untilEmpty(t.relay())
  await t.enqueue([Placed({ n: 2 }, { key: 'a' }), Placed({ n: 3 }), Placed({ n: 4 }, { key: 'b' })])
  await lock(2)
  const session = (await outboxSource(t.outbox, { reader: 'owner', wake: false, lease }).open(
    new AbortController().signal,
  ))!
  try {
    const taken = await session.take({ count: 100, bytes: 1e9 }, session.lost)
    expect(taken.map(({ message }) => number(message))).toEqual([3, 4])
  } finally {
    await session.close()
  }
})

test.concurrent('lease: the leases of all others are renewed', async (context) => {
  const { t, lock } = await world(context)
  await t.enqueue([1, 2, 3].map((n) => Placed({ n })))
  const session = (await outboxSource(t.outbox, { reader: 'lease', wake: false, lease }).open(
    new AbortController().signal,
  ))!
  try {
    const taken = await session.take({ count: 100, bytes: 1e9 }, session.lost)
    const until = `SELECT payload->>'n' AS n, available_at::text AS until FROM outbox ORDER BY sequence`
    const before = (await t.pool.query(until)).rows
    await lock(2)
    await session.extend!(taken)
    const after = (await t.pool.query(until)).rows
    expect(after.filter((row, i) => row.until > before[i].until).map(({ n }) => n)).toEqual(['1', '3'])
  } finally {
    await session.close()
  }
})
