import { beforeAll, expect, test } from 'vitest'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { Leases } from '../../src/redis/inbox-leases.ts'
import { FakeClock, faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { type RedisNode, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn, READER } from './outbox-support.ts'
import { freshTag, ioredis, reader, storeOf, until } from './support.ts'

const NEVER = new AbortController().signal

/** Who was killed is waited for; who lives takes what is its own back as soon as Redis answers. */
describeWith(['redis'], 'Redis goes away with unsettled work, and the process lives', () => {
  let server: RedisNode
  beforeAll(async () => {
    server = await standalone({ appendonly: 'yes', appendfsync: 'always' })
  })

  test('what a session of the outbox could not give back, the next one has at once, uncharged', async () => {
    const { outbox } = outboxOn(ioredis(server.url), {}, { timeout: 2000 })
    const events = samples(6)
    await outbox.enqueueAlone(events)
    const [source] = await outbox.reader({ ...READER, lease: 60_000 }).assignment()
    const session = await source!.open(NEVER)
    expect(await session!.take({ count: 10, bytes: 1e6 }, NEVER)).toHaveLength(6)
    await server.stop('kill')
    await session!.close()
    await server.start()
    const next = await source!.open(NEVER)
    const taken = await next!.take({ count: 10, bytes: 1e6 }, NEVER)
    expect(taken.map(({ attempts }) => attempts)).toEqual([0, 0, 0, 0, 0, 0])
    await next!.close()
  })

  test('a relay whose claims are cut off again and again: every event arrives soon, and none is charged', async () => {
    const { port, host } = server
    await using proxy = await faultProxy({ host, port })
    const tag = freshTag()
    const { outbox } = outboxOn(ioredis(proxy.url(server.url)), {}, { tag, timeout: 2000 })
    const { outbox: direct } = outboxOn(ioredis(server.url), {}, { tag })
    await direct.enqueueAlone(
      samples(200, { key: 'a' }).map((event, n) => event.with({ extensions: { partitionkey: `${n % 7}` } })),
    )
    const seen = new Set<string>()
    const to = async ({ id }: { id: string }) => void seen.add(id)
    const quick = { poll: 10, maxPoll: 20, batch: 10, maxBatch: 10, outage: { min: 5, max: 20 } } as const
    const relay = new Relay({ from: outbox as OutboxReader, to, lease: '60s', ...quick })
    await relay.start()
    for (let n = 0; n < 4; n++) {
      const had = seen.size
      await proxy.cutAfter(1 + n * 40, 'downstream')
      await until('it goes on', () => seen.size > had || seen.size === 200)
    }
    await until('all have arrived', () => seen.size === 200)
    await until('all are settled', async () => (await direct.admin.stats()).states.published.count === 200)
    await relay.stop()
    const entries = await direct.admin.list({}, { limit: 1000 })
    expect(entries.filter(({ attempts }) => attempts > 0)).toEqual([])
  })

  test('marks that could not be given up: handled again at once here, soon elsewhere, told once', async () => {
    const db = storeOf(ioredis(server.url), { timeout: 2000 })
    const other = storeOf(ioredis(server.url), { tag: db.tag })
    const keys = ['a', 'b', 'c', 'd'].map((id) => ({ subscriber: 's', source: '/s', id }))
    const told = recordTelemetry(['warning'])
    let here = 0
    const handling = keys.map((key) =>
      db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, key)).toBe('new')
        here++
        await until('Redis is gone', () => here > keys.length)
        throw new Error('it failed')
      }),
    )
    await until('all are being handled', () => here === keys.length)
    await server.stop('kill')
    here++
    const failures = await Promise.allSettled(handling)
    expect(failures.map(({ status }) => status)).toEqual(Array(4).fill('rejected'))
    await server.start()
    const answer = async (store: typeof db, key: (typeof keys)[number]) => {
      let found: string | undefined
      await store.withTransaction(async (tx) => {
        found = await store.inbox.receive(tx, key)
      })
      return found
    }
    await until('Redis answers', async () => (await answer(db, { ...keys[0]!, id: 'new' }).catch(() => 0)) !== 0)
    expect(await answer(db, keys[0]!)).toBe('new')
    // Long before the lease of 30 s has run out.
    await until('another process has one', async () => (await answer(other, keys[1]!)) === 'new', 10_000)
    told.stop()
    expect(told.of('warning').filter(({ message }) => /could not be given up/.test(message))).toHaveLength(1)
  })

  test('a mark whose answer was lost: the message is handled at once when it comes again', async () => {
    const { host, port } = server
    await using proxy = await faultProxy({ host, port })
    const db = storeOf(ioredis(proxy.url(server.url)), { timeout: 2000 })
    const key = { subscriber: 's', source: '/s', id: 'a' }
    const receive = () => db.withTransaction(async (tx) => db.inbox.receive(tx, key))
    // So that the scripts are known.
    await db.withTransaction(async (tx) => db.inbox.receive(tx, { ...key, id: 'first' }))
    const cut = proxy.cutAfter(1, 'downstream')
    await expect(receive()).rejects.toMatchObject({ name: 'Unavailable' })
    expect(await cut).toBe(true)
    expect(await receive()).toBe('new')
  })

  test('two answers lost for one mark: the claim is given up, whichever of the two the server has', async () => {
    const db = storeOf(ioredis(server.url), { timeout: 2000 })
    const clock = new FakeClock()
    const leases = new Leases({ redis: db.connection, lease: 30_000, clock })
    const look = reader(server.url)
    const mark = db.key('mark')
    await look.set(mark, 'processing first')
    leases.abandon(mark, 'processing first')
    leases.abandon(mark, 'processing second')
    expect(leases.isAbandoned(mark, 'processing first')).toBe(true)
    await until('it is given up', async () => {
      await clock.advance(1000)
      return (await look.exists(mark)) === 0
    })
    await leases.close()
  })
})
