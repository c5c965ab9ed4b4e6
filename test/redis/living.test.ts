import { beforeAll, expect, test } from 'vitest'
import { type Clock, systemClock } from '../../src/core/index.ts'
import { type Delivery, DONE, RELEASE } from '../../src/flow/index.ts'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { Leases } from '../../src/redis/inbox-leases.ts'
import { FakeClock, faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { type RedisNode, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn, READER } from './outbox-support.ts'
import { freshTag, ioredis, keysOf, reader, storeOf, until } from './support.ts'

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

  test('away for longer than the lease: what was published is not charged by the relay that has published it', async () => {
    const { port, host } = server
    await using proxy = await faultProxy({ host, port })
    const tag = freshTag()
    const { outbox } = outboxOn(ioredis(proxy.url(server.url)), {}, { tag, timeout: 1000 })
    const { outbox: direct } = outboxOn(ioredis(server.url), {}, { tag })
    await direct.enqueueAlone(samples(1))
    const seen: string[] = []
    let release!: () => void
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    const to = async ({ id }: { id: string }) => {
      seen.push(id)
      await released
    }
    const relay = new Relay({
      from: outbox as OutboxReader,
      to,
      lease: 1000,
      poll: 20,
      maxPoll: 50,
      outage: { min: 20, max: 100 },
    })
    await relay.start()
    await until('it is out', () => seen.length === 1)
    proxy.blackHole()
    release()
    await until('its lease has ended', async () => {
      const [entry] = await direct.admin.list({ states: ['leased'] })
      return entry!.availableAt!.getTime() < Date.now()
    })
    await proxy.restore()
    await until('it is settled', async () => (await direct.admin.stats()).states.published.count === 1)
    await relay.stop()
    expect(await direct.admin.list()).toMatchObject([{ attempts: 0, lastError: undefined }])
  })

  test('a lease that ended before it was renewed: the session is lost, and the next has it all, uncharged', async () => {
    const { outbox } = outboxOn(ioredis(server.url))
    await outbox.enqueueAlone(samples(1))
    const [source] = await outbox.reader({ ...READER, lease: 500 }).assignment()
    const session = await source!.open(NEVER)
    const taken = await session!.take({ count: 1, bytes: 1e6 }, NEVER)
    await until('it has ended', async () => {
      const [entry] = await outbox.admin.list({ states: ['leased'] })
      return entry!.availableAt!.getTime() < Date.now()
    })
    await session!.extend!(taken)
    expect(session!.lost.reason).toMatchObject({ code: 'LEASE_EXPIRED' })
    await session!.close()
    const next = await source!.open(NEVER)
    expect(await next!.take({ count: 1, bytes: 1e6 }, NEVER)).toMatchObject([{ attempts: 0 }])
    await next!.close()
  })

  test('a renewal that meets what was just given back, and another has by now, loses nothing', async () => {
    const { outbox } = outboxOn(ioredis(server.url))
    await outbox.enqueueAlone(samples(2))
    const [source] = await outbox.reader({ ...READER }).assignment()
    const [one, other] = [await source!.open(NEVER), await source!.open(NEVER)]
    const taken = await one!.take({ count: 2, bytes: 1e6 }, NEVER)
    await one!.settle([[taken[0]!, RELEASE]])
    expect(await other!.take({ count: 1, bytes: 1e6 }, NEVER)).toHaveLength(1)
    // As of the moment at which the flow asked.
    await one!.extend!(taken)
    expect(one!.lost.aborted).toBe(false)
    expect(await one!.settle([[taken[1]!, DONE]])).toBe(0)
    await Promise.all([one!.close(), other!.close()])
  })

  test('what a session claimed without an answer is given back when it ends, also if no other follows', async () => {
    const { port, host } = server
    await using proxy = await faultProxy({ host, port })
    const tag = freshTag()
    const { outbox } = outboxOn(ioredis(proxy.url(server.url)), {}, { tag, timeout: 2000 })
    const { outbox: direct } = outboxOn(ioredis(server.url), {}, { tag })
    const [source] = await outbox.reader({ ...READER, lease: 60_000 }).assignment()
    const session = await source!.open(NEVER)
    // So that the script is known.
    expect(await session!.take({ count: 5, bytes: 1e6 }, NEVER)).toEqual([])
    await direct.enqueueAlone(samples(2))
    const cut = proxy.cutAfter(1, 'downstream')
    await expect(session!.take({ count: 5, bytes: 1e6 }, NEVER)).rejects.toThrow()
    expect(await cut).toBe(true)
    expect((await direct.admin.stats()).states.leased.count).toBe(2)
    await session!.close()
    expect((await direct.admin.stats()).states).toMatchObject({ leased: { count: 0 }, ready: { count: 2 } })
    expect((await direct.admin.list()).map(({ attempts }) => attempts)).toEqual([0, 0])
  })

  const failovers = {
    'the connection is another': async (look: ReturnType<typeof reader>, tag: string) => {
      const clients = (await look.client('LIST')) as string
      const ours = clients.split('\n').filter((line) => line.includes(` name=waybill-relay-${tag} `))
      expect(ours).toHaveLength(1)
      for (const line of ours) await look.client('KILL', 'ID', /id=(\d+)/.exec(line)![1]!)
    },
    // A cluster's connection outlives its nodes.
    'something was refused': async (look: ReturnType<typeof reader>, _: string, renew: () => Promise<void>) => {
      await look.config('SET', 'min-replicas-to-write', '1')
      await expect(renew()).rejects.toThrow(/NOREPLICAS/)
      await look.config('SET', 'min-replicas-to-write', '0')
    },
  }
  test.each(Object.entries(failovers))(
    'a settlement that a failover has lost, and %s: the event comes again at once, uncharged; what is in hand stays',
    async (_, failOver) => {
      const { db, outbox } = outboxOn(ioredis(server.url))
      const look = reader(server.url)
      const events = samples(3)
      await outbox.enqueueAlone(events)
      const [source] = await outbox.reader({ ...READER, lease: 600_000 }).assignment()
      const session = await source!.open(NEVER)
      const [first, ...others] = await session!.take({ count: 3, bytes: 1e6 }, NEVER)
      const keys = await keysOf(look, db.tag)
      const dumps = await Promise.all(keys.map((key) => look.dumpBuffer(key)))
      expect(await session!.settle([[first!, DONE]])).toBe(0)
      // As the new master has it, which has not heard of that.
      for (const [i, key] of keys.entries()) await look.restore(key, 0, dumps[i]!, 'REPLACE')
      await failOver(look, db.tag, () => session!.extend!(others))
      const again: Delivery[] = []
      await until('it comes again', async () => {
        again.push(...(await session!.take({ count: 5, bytes: 1e6 }, NEVER).catch(() => [])))
        return again.length > 0
      })
      expect(again.map(({ message: { id }, attempts }) => [id, attempts])).toEqual([[first!.message.id, 0]])
      expect(await session!.settle([...again, ...others].map((delivery) => [delivery, DONE]))).toBe(0)
      await session!.close()
    },
  )

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

  test('what Redis refused to renew is lost by it, however many claims; what a blocked process renewed too late is not', async () => {
    let passed = 0
    // Only the test renews.
    const sleep: Clock['sleep'] = (_, signal) =>
      new Promise((resolve) => signal?.addEventListener('abort', () => resolve()))
    const clock: Clock = { ...systemClock, monotonic: () => passed, sleep }
    const node = await standalone()
    const look = reader(node.url)
    const db = storeOf(ioredis(node.url))
    const leases = new Leases({ redis: db.connection, lease: 60_000, clock })
    const marks = Array.from({ length: 501 }, (_, n) => db.key(`inbox:["billing","/shop","${n}"]`))
    for (const mark of marks) leases.hold(mark, 'processing ours')
    const lost = () => marks.filter((mark) => leases.lostByServer(mark, 'processing ours')).length
    for (const mark of marks) await look.set(mark, 'processing ours')
    await look.replicaof('127.0.0.1', '1')
    for (passed = 20_000; passed <= 80_000; passed += 20_000) await expect(leases.renew()).rejects.toThrow(/READONLY/)
    expect(lost()).toBe(501)
    const late = leases.renew()
    passed += 60_000
    await expect(late).rejects.toThrow(/READONLY/)
    expect(lost()).toBe(0)
    // It is too late for this one too.
    await expect(leases.renew()).rejects.toThrow(/READONLY/)
    expect(lost()).toBe(0)
    await look.replicaof('NO', 'ONE')
    await look.del(...marks)
    await leases.renew()
    expect(lost()).toBe(0)
    await leases.close()
  })
})
