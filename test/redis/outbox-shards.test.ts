import { afterEach, beforeAll, expect, test } from 'vitest'
import { systemClock } from '../../src/core/index.ts'
import { type OutboxReader, Relay, type RelayOptions } from '../../src/outbox/index.ts'
import { type RedisOutbox, redisDue, redisOutbox } from '../../src/redis/index.ts'
import { outboxScripts } from '../../src/redis/scripts.ts'
import { FakeClock, faultProxy } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { type RedisNode, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn } from './outbox-support.ts'
import { freshTag, ioredis, reader, storeOf, until } from './support.ts'

describeWith(['redis'], 'one shard of a redis outbox is down', () => {
  let servers: [RedisNode, RedisNode]
  const relays: Relay[] = []
  beforeAll(async () => {
    const settings = { appendonly: 'yes', appendfsync: 'always' }
    servers = [await standalone(settings), await standalone(settings)]
  })
  afterEach(async () => {
    await Promise.all(relays.splice(0).map((relay) => relay.stop()))
  })

  /** An outbox over two servers, each shard as an outbox of its own to look at, and a key for each. */
  const setup = () => {
    const tags = [freshTag(), freshTag()]
    const stores = servers.map(({ url }, i) => storeOf(ioredis(url), { tag: tags[i]!, timeout: 2000 }))
    const outbox = redisOutbox({ on: stores })
    const alone = servers.map(({ url }, i) => outboxOn(ioredis(url), {}, { tag: tags[i]! }).outbox)
    const keys = outbox.shards.all.map((shard) => {
      for (let n = 0; ; n++) if (outbox.shards.of(`key ${n}`) === shard) return `key ${n}`
    }) as [string, string]
    const [a, b] = alone as [RedisOutbox, RedisOutbox]
    return { outbox, a, b, keys }
  }
  const started = async (from: RedisOutbox, options: Pick<RelayOptions, 'to'> & Partial<RelayOptions>) => {
    const quick = { poll: 20, maxPoll: 50, outage: { min: 20, max: 100 } } as const
    const relay = new Relay({ from: from as OutboxReader, ...quick, ...options })
    relays.push(relay)
    await relay.start()
    return relay
  }

  const counts = ({ states }: Awaited<ReturnType<RedisOutbox['admin']['stats']>>) => [
    states.ready.count,
    states.published.count,
  ]

  test('the other flows, keeps its leases and is charged nothing; when it is back its events come', async () => {
    const { outbox, a, keys } = setup()
    const seen: string[] = []
    // The first takes longer than the lease: without renewal it would run out.
    const lease = 3000
    let calls = 0
    const to = async ({ id }: { id: string }) => {
      if (++calls === 1) await systemClock.sleep(1.5 * lease)
      seen.push(id)
    }
    const [here, there] = [samples(6, { key: keys[0] }), samples(2, { key: keys[1] })]
    await outbox.enqueueAlone(there)
    await servers[1].stop('kill')
    try {
      await outbox.enqueueAlone(here.slice(0, 2))
      const relay = await started(outbox, { to, lease })
      await until('those of the shard that is there have arrived', () => seen.length === 2)
      expect(relay.status().children?.map(({ state }) => state)).toContain('failing')
      await outbox.enqueueAlone(here.slice(2, 3))
      await until('later ones too', () => seen.length === 3)
      await until('they are settled', async () => (await a.admin.stats()).states.published.count === 3)
      expect((await a.admin.list()).map(({ attempts }) => attempts)).toEqual([0, 0, 0])
    } finally {
      await servers[1].start()
    }
    await until('those of the other come', () => seen.length === 5)
    expect(seen.slice(3).sort()).toEqual(there.map(({ id }) => id).sort())
  })

  test('what is being published when it goes away is neither charged nor sent twice', async () => {
    const { outbox, a, b, keys } = setup()
    const seen: string[] = []
    let release = () => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    const to = async ({ id }: { id: string }) => {
      seen.push(id)
      await released
    }
    await outbox.enqueueAlone([...samples(1, { key: keys[0] }), ...samples(1, { key: keys[1] })])
    await started(outbox, { to, lease: '30s' })
    await until('both are out', () => seen.length === 2)
    await servers[1].stop('kill')
    release()
    await until('the one is settled', async () => (await a.admin.stats()).states.published.count === 1)
    await servers[1].start()
    await until('and then the other', async () => {
      return (await b.admin.stats().catch(() => undefined))?.states.published.count === 1
    })
    expect(seen).toHaveLength(2)
    expect((await b.admin.list())[0]).toMatchObject({ attempts: 0, lastError: undefined })
  })

  test('due intents, the repair and the cleaner go on with the others, and say what was away', async () => {
    const { outbox, a, b, keys } = setup()
    const due = redisDue({ outbox })
    await b.enqueueAlone(samples(1))
    await new Relay({ from: b as OutboxReader, to: async () => {} }).runOnce()
    await b.enqueueAlone(samples(1))
    expect(counts(await b.admin.stats())).toEqual([1, 1])
    // Out of its place: nobody would find it.
    await reader(servers[1].url).del(`${outbox.shards.all[1]!.base}:pending`)
    const at = new Date(Date.now() - 1000)
    for (const id of keys) await due.record({ id, at })
    const worker = due.worker({ event: () => samples(1)[0]! })
    // The first of the shards is the one that is away: what comes after it must have its turn.
    await servers[0].stop('kill')
    try {
      await expect(worker.runOnce()).rejects.toMatchObject({ code: 'UNAVAILABLE' })
      await expect(outbox.repair().runOnce()).rejects.toMatchObject({ code: 'UNAVAILABLE' })
      await expect(outbox.admin.clean({ retention: 0 })).rejects.toMatchObject({ code: 'UNAVAILABLE' })
      // What was published is cleaned, what was lost is found, and the intent is an event.
      expect(counts(await b.admin.stats())).toEqual([2, 0])
    } finally {
      await servers[0].start()
    }
    await until('it answers', async () => (await a.admin.stats().catch(() => undefined)) !== undefined)
    expect((await due.find()).map(({ id }) => id)).toEqual([keys[0]])
    await until('the rest is decided', async () => (await worker.runOnce().catch(() => undefined))?.enqueued === 1)
  })

  test('a shard that hangs is asked seldom: due intents of the others do not wait for its time-out each time', async () => {
    const { hostname: host, port } = new URL(servers[0].url)
    await using proxy = await faultProxy({ host, port: Number(port) })
    const urls = [proxy.url(servers[0].url), servers[1].url]
    const outbox = redisOutbox({ on: urls.map((url) => storeOf(ioredis(url), { timeout: 2000 })) })
    const due = redisDue({ outbox })
    const keys = outbox.shards.all.map((shard) => {
      for (let n = 0; ; n++) if (outbox.shards.of(`key ${n}`) === shard) return `key ${n}`
    })
    const clock = new FakeClock()
    const worker = due.worker({ event: () => samples(1)[0]!, clock })
    const record = async () => {
      for (const id of keys) await due.record({ id, at: new Date(Date.now() - 1000) })
    }
    await record()
    expect(await worker.runOnce()).toMatchObject({ enqueued: 2 })
    await record()
    proxy.blackHole()
    const round = worker.runOnce().catch((error) => error)
    await clock.advance(1000)
    expect(await round).toMatchObject({ code: 'UNAVAILABLE' })
    expect(await due.find({}, [outbox.shards.all[1]!])).toEqual([])
    await proxy.restore()
    await until('it answers', async () => (await due.find().catch(() => [])).length === 1)
    await clock.advance(4999)
    await expect(worker.runOnce(), 'it is not asked').rejects.toMatchObject({ code: 'UNAVAILABLE' })
    expect(await due.find()).toHaveLength(1)
    await clock.advance(1)
    expect(await worker.runOnce()).toMatchObject({ enqueued: 1 })
  })

  test('numbers and lists are those of the others, and name the one that is away; what would be done in part is not done', async () => {
    const { outbox, keys } = setup()
    const [here, there] = [samples(2, { key: keys[1] }), samples(1, { key: keys[0] })]
    await outbox.enqueueAlone([...here, ...there])
    expect(await outbox.admin.stats()).not.toHaveProperty('missing')
    expect(await outbox.admin.list()).not.toHaveProperty('missing')
    await outbox.admin.discardDead({}, { by: 'ann', note: 'none there' })
    expect(await outbox.admin.audits()).not.toHaveProperty('missing')
    const away = [{ part: outbox.shards.all[0]!.store.tag, reason: expect.stringMatching(/UNAVAILABLE.*connect/) }]
    await servers[0].stop('kill')
    try {
      const stats = await outbox.admin.stats()
      expect(stats.states.ready.count + stats.states.held.count).toBe(2)
      expect(stats.missing).toEqual(away)
      const list = await outbox.admin.list()
      expect(list.map(({ eventId }) => eventId).sort()).toEqual(here.map(({ id }) => id).sort())
      expect(list.missing).toEqual(away)
      expect(await outbox.admin.audits()).toMatchObject({ length: 0, missing: away })
      expect((await outbox.admin.show(here[0]!.id))?.entry.eventId).toBe(here[0]!.id)
      await expect(outbox.admin.show(there[0]!.id), 'it may be there').rejects.toMatchObject({ code: 'UNAVAILABLE' })
      await expect(outbox.admin.preview('rearm', {})).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    } finally {
      await servers[0].start()
    }
    await until('all is counted again', async () => (await outbox.admin.stats()).missing === undefined)
    expect(await outbox.admin.list()).toHaveLength(3)
  })

  test('a list during which a shard dies is that of the others, and names it', async () => {
    const { outbox, keys } = setup()
    const here = samples(2, { key: keys[1] })
    await outbox.enqueueAlone([...here, ...samples(2, { key: keys[0] })])
    const shard = outbox.shards.all[0]!
    const run = shard.run.bind(shard)
    for (const filter of [{}, { eventIds: here.map(({ id }) => id) }]) {
      let dead = false
      shard.run = async (script, args) => {
        // Not before it has said that it is there.
        if (script !== outboxScripts.stats && !dead) await servers[0].stop('kill')
        dead ||= script !== outboxScripts.stats
        return run(script, args)
      }
      try {
        const list = await outbox.admin.list(filter)
        expect(list.map(({ eventId }) => eventId).sort()).toEqual(here.map(({ id }) => id).sort())
        expect(list.missing).toMatchObject([{ part: shard.store.tag }])
      } finally {
        shard.run = run
        await servers[0].start()
      }
    }
  })
})
