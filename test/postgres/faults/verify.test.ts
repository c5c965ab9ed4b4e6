import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { DONE, OK, type OutboxReader, type Session } from '../../../src/adapter.ts'
import type { Publisher, Source } from '../../../src/index.ts'
import { PostgresLeadership } from '../../../src/postgres/leadership.ts'
import { Placed, record } from './business.ts'
import { journalPublisher } from './journal.ts'
import { type World, world } from './support.ts'

/** A verifier that finds nothing in a broken product proves nothing: each fault here must be found, and by name. */
let t: World

beforeEach(async () => {
  t = await world()
})
afterEach(() => t.end())

type Change = (session: Session) => Partial<Session>

/** The outbox, with sessions that do something else in places. */
function broken(change: Change): OutboxReader {
  const { outbox } = t.db
  const wrap = (source: Source): Source => ({
    name: source.name,
    features: source.features,
    async open(signal) {
      const session = await source.open(signal)
      if (session === undefined) return undefined
      const changes = change(session)
      return new Proxy(session, {
        get(target, property) {
          if (property in changes) return changes[property as keyof Session]
          const value: unknown = Reflect.get(target, property)
          return typeof value === 'function' ? value.bind(target) : value
        },
      })
    },
  })
  return {
    name: outbox.name,
    reader(options) {
      const reader = outbox.reader(options)
      const wrapped = new Map<Source, Source>()
      return {
        async assignment() {
          return (await reader.assignment()).map((source) => {
            if (!wrapped.has(source)) wrapped.set(source, wrap(source))
            return wrapped.get(source)!
          })
        },
        close: () => reader.close(),
      }
    },
  }
}

/** One that commits late, keys that fail now and then, and all of it read by rounds. */
async function scenario(options: Parameters<World['relay']>[0]): Promise<string[]> {
  const relay = t.relay({ ...options, retry: { backoff: { min: 0, jitter: 0 } } })
  const late = await t.pool.connect()
  await late.query('BEGIN')
  const event = Placed({ n: 0 }, { key: 'late' })
  await t.db.outbox.enqueue(late, event)
  await record(late, [event])
  await t.fill(30, 5)
  await relay.runOnce()
  await late.query('COMMIT')
  late.release()
  await t.fill(5)
  for (let round = 0; round < 20; round++) await relay.runOnce()
  await relay.stop()
  return t.problems({ charged: true })
}

const moody = (): Publisher => {
  let calls = 0
  return {
    name: 'moody',
    features: {},
    publish: async (messages) =>
      messages.map(() => (++calls % 11 === 0 ? { kind: 'failed', error: new Error('moody') } : OK)),
  }
}

describe('the verifiers', () => {
  test('find nothing wrong with what is right', async () => {
    expect(await scenario({ inner: moody() })).toEqual([])
  })

  test('skip a gap: what commits late is never read', async () => {
    let highest = 0n
    const from = broken((session) => ({
      async take(...demand) {
        const taken = (await session.take(...demand)) as readonly (Awaited<ReturnType<Session['take']>>[number] & {
          sequence: string
        })[]
        const fresh = taken.filter(({ sequence }) => BigInt(sequence) > highest)
        for (const { sequence } of fresh) if (BigInt(sequence) > highest) highest = BigInt(sequence)
        return fresh
      },
    }))
    const found = await scenario({ from })
    expect(found).toContainEqual(expect.stringMatching(/^lost: .*late 0/))
    expect(found).toContainEqual(expect.stringMatching(/^unsettled: .*late 0.* is ready/))
  })

  test('drop the fence: two own the table at once', async () => {
    const { names } = t.db.outbox
    const fill = names.fill.bind(names)
    names.fill = (sql, options) =>
      fill(sql, options).replace(/epoch = (\$\d::text::bigint) AND expires_at > clock_timestamp\(\)/g, '$1 > 0')
    const kept = { ...Object.getOwnPropertyDescriptors(PostgresLeadership.prototype) }
    Object.assign(PostgresLeadership.prototype, {
      terms: async () => [],
      acquire: async (_: string, shard: number) => ({ shard, epoch: '1', abandoned: false, probe: undefined }),
      renew: async () => true,
    })
    await t.fill(40, 5)
    // Long enough that the second has begun before the first ends, on a busy machine too.
    const slow = { delay: 400, batch: 10, maxBatch: 10 }
    const relays = [t.relay(slow), t.relay(slow)]
    try {
      await Promise.all(relays.map((relay) => relay.runOnce()))
      await Promise.all(relays.map((relay) => relay.stop()))
    } finally {
      Object.defineProperties(PostgresLeadership.prototype, kept)
    }
    const found = await t.problems()
    expect(found).toContainEqual(expect.stringMatching(/^in flight twice/))
    expect(found).toContainEqual(expect.stringMatching(/^key in flight twice/))
    expect(found).toContainEqual(expect.stringMatching(/^repeated/))
  })

  test('ack early: settled before it has arrived', async () => {
    const from = broken((session) => ({
      async take(...demand) {
        const taken = await session.take(...demand)
        await session.settle(taken.map((delivery) => [delivery, DONE]))
        return taken
      },
    }))
    expect(await scenario({ from, delay: 20 })).toContainEqual(
      expect.stringMatching(/^acked early: .* before it arrived/),
    )
  })

  test('ack early, and then crash', async () => {
    await t.fill(3)
    await t.pool.query(`UPDATE outbox SET state = 'published', published_at = now()`)
    const found = await t.problems()
    expect(found).toContainEqual(expect.stringMatching(/^acked early: .* never arrived/))
    expect(found).toContainEqual(expect.stringMatching(/^lost/))
  })

  test('reorder a key: later events do not wait for an earlier one', async () => {
    const from = broken((session) => ({
      async take(...demand) {
        const taken = await session.take(...demand)
        return taken.map((delivery) => ({ ...delivery, key: undefined })).reverse()
      },
    }))
    const found = await scenario({ from, delay: 5, batch: 10, maxBatch: 10 })
    expect(found).toContainEqual(expect.stringMatching(/^out of order/))
    expect(found).toContainEqual(expect.stringMatching(/^key in flight twice/))
  })

  test('swallow an error: what failed is called published', async () => {
    const journal = journalPublisher(t.journal, { relay: 'careless', inner: moody() })
    const to: Publisher = {
      ...journal,
      async publish(messages, signal) {
        await journal.publish(messages, signal)
        return messages.map(() => OK)
      },
    }
    const found = await scenario({ to })
    expect(found).toContainEqual(expect.stringMatching(/^acked early: .* never arrived/))
    expect(found).toContainEqual(expect.stringMatching(/^lost/))
  })

  test('a rolled-back event that goes out, and attempts that nobody should have spent', async () => {
    const client = await t.pool.connect()
    await client.query('BEGIN')
    await t.db.outbox.enqueue(client, Placed({ n: 1 }))
    await client.query('COMMIT')
    client.release()
    await t.pool.query('UPDATE outbox SET attempts = 1')
    await t.relay().runOnce()
    const found = await t.problems()
    expect(found).toContainEqual(expect.stringMatching(/^invented/))
    expect(found).toContainEqual(expect.stringMatching(/^charged/))
  })
})
