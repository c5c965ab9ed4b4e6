import { mkdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { classify, encodeData, event } from '../../src/core/index.ts'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { redisDue } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { transaction } from '../../src/store/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { sample, samples } from '../../src/testing/outbox-probe.ts'
import { admin, eventually, type RedisNode, type RedisVersion, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn, READER } from './outbox-support.ts'
import { freshTag, ioredis, nodeRedis, until } from './support.ts'

const NEVER = new AbortController().signal

type Refusal = (node: RedisNode) => Promise<() => Promise<unknown>>

/** What a server says that takes no writes, and how it is brought to it; what ends it is answered. */
const OOM: Refusal = async (node) => {
  await admin(node).config('SET', 'maxmemory', '1')
  return () => admin(node).config('SET', 'maxmemory', '0')
}
const READONLY: Refusal = async (node) => {
  await admin(node).call('replicaof', '127.0.0.1', '1')
  return () => admin(node).call('replicaof', 'no', 'one')
}
const NOREPLICAS: Refusal = async (node) => {
  await admin(node).config('SET', 'min-replicas-to-write', '1')
  return () => admin(node).config('SET', 'min-replicas-to-write', '0')
}
const MISCONF: Refusal = async (node) => {
  const look = admin(node)
  const [, dir] = (await look.config('GET', 'dir')) as [string, string]
  // Where its snapshot would be there is a directory.
  await mkdir(join(dir, 'snapshot'))
  const saved = (how: string) => async () => {
    await look.bgsave().catch(() => {})
    return (await look.info('persistence')).includes(`rdb_last_bgsave_status:${how}`)
  }
  await eventually('a snapshot has failed', saved('err'))
  return async () => {
    await rmdir(join(dir, 'snapshot'))
    await eventually('a snapshot was written', saved('ok'))
  }
}

const CASES: [RedisVersion, string, Refusal][] = [
  ['redis', 'OOM', OOM],
  ['redis6', 'OOM', OOM],
  ['redis', 'READONLY', READONLY],
  ['redis', 'NOREPLICAS', NOREPLICAS],
  ['redis', 'MISCONF', MISCONF],
]

describeWith(['redis', 'redis6'], 'a server that refuses writes', () => {
  const nodes = new Map<RedisVersion, RedisNode>()
  beforeAll(async () => {
    const settings = { dbfilename: 'snapshot', save: '3600 1000000' }
    for (const version of ['redis', 'redis6'] as const) nodes.set(version, await standalone(settings, version))
  })

  test.each(CASES)(
    '%s, %s: a unit of work that begins with an event, or an intent, has written nothing',
    async (version, kind, refuse) => {
      const node = nodes.get(version)!
      const { db, outbox } = outboxOn(ioredis(node.url), {}, { timeout: 2000 })
      const due = redisDue({ outbox })
      await outbox.enqueueAlone(samples(1))
      const units = {
        enqueue: () => db.withTransaction((tx) => outbox.enqueue(tx, samples(1))),
        'enqueue and write': () =>
          db.withTransaction(async (tx) => {
            await outbox.enqueue(tx, samples(1))
            tx.set(db.key('k'), 'v')
          }),
        record: () => db.withTransaction((tx) => due.record(tx, { id: 'i', at: new Date() })),
        enqueueAlone: () => outbox.enqueueAlone(samples(1)),
        'record alone': () => due.record({ id: 'i', at: new Date() }),
      }
      const end = await refuse(node)
      for (const [name, unit] of Object.entries(units)) {
        const error = await unit().then(
          () => 'was written',
          (caught: unknown) => caught,
        )
        expect(error, name).toMatchObject({ name: 'Unavailable', message: expect.stringContaining(kind) })
        expect(classify(error), name).toBe('down')
      }
      await end()
      await until('it takes writes', async () => {
        return await outbox.enqueueAlone(samples(1)).then(
          () => true,
          () => false,
        )
      })
      expect((await outbox.admin.stats()).states.ready.count).toBe(2)
      expect(await due.find()).toEqual([])
      expect(await admin(node).exists(db.key('k'))).toBe(0)
    },
  )

  test('handlers without an inbox: nobody is charged or dead, and all is done when the server takes writes', async () => {
    const node = nodes.get('redis')!
    const { db, outbox } = outboxOn(ioredis(node.url))
    const broker = redisStreams({ client: ioredis(node.url) })
    const Placed = event<{ n: number }>('order.placed')
    const stream = freshTag()
    let end: (() => Promise<unknown>) | undefined
    const router = new Router('billing').use(transaction(db)).on(Placed, async () => {
      end ??= await OOM(node)
      await outbox.enqueue(samples(1))
    })
    const publisher = broker.publisher({ stream })
    await publisher.publish(
      Array.from({ length: 20 }, (_, n) => encodeData(Placed({ n }))),
      NEVER,
    )
    const seen = recordTelemetry(['message.dead'])
    const consumer = router.consume(broker.source({ stream, group: 'g' }), { outage: { min: 10, max: 50 } })
    await consumer.start()
    await until('it is told', () => consumer.status().state === 'paused')
    await end!()
    await until('all is done', async () => (await outbox.admin.stats()).states.ready.count === 20)
    await consumer.stop()
    seen.stop()
    expect(seen.of('message.dead')).toEqual([])
    await publisher.close!()
    await broker.close()
  })

  test.each(['redis', 'redis6'] as const)(
    '%s out of memory: leases are renewed, and what is published is settled',
    async (version) => {
      const node = nodes.get(version)!
      const { outbox } = outboxOn(ioredis(node.url))
      await outbox.enqueueAlone([sample(1), sample(2, { key: 'a' }), sample(3, { key: 'a' })])
      const [source] = await outbox.reader({ ...READER, lease: 60_000 }).assignment()
      const session = await source!.open(NEVER)
      const taken = await session!.take({ count: 1, bytes: 1e6 }, NEVER)
      const before = (await outbox.admin.list({ states: ['leased'] }))[0]!.availableAt!
      const end = await OOM(node)
      await until('the lease has been renewed', async () => {
        await session!.extend!(taken)
        return (await outbox.admin.list({ states: ['leased'] }))[0]!.availableAt! > before
      })
      const rest = await session!.take({ count: 5, bytes: 1e6 }, NEVER)
      expect(await session!.settle([...taken, ...rest].map((delivery) => [delivery, { kind: 'done' }]))).toBe(0)
      expect((await outbox.admin.stats()).states.published.count).toBe(2)
      await end()
      await session!.close()
    },
  )
})

describeWith(['redis'], 'a server that refuses the user', () => {
  test('a relay from its outbox rejects at start; one whose server is away waits', async () => {
    const node = await standalone({ requirepass: 'right' })
    for (const driver of [ioredis, nodeRedis]) {
      for (const place of [node.url, node.url.replace('://', '://default:wrong@')]) {
        const { outbox } = outboxOn(driver(place), {}, { timeout: 2000 })
        const relay = new Relay({ from: outbox as OutboxReader, to: () => {}, name: freshTag() })
        const error = await relay.start().catch((caught: unknown) => caught)
        expect(error).toMatchObject({ code: 'ACCESS_REFUSED' })
        expect(String(error)).not.toMatch(/wrong/)
      }
    }
    await node.stop('kill')
    const { outbox } = outboxOn(ioredis(node.url), {}, { timeout: 2000 })
    const relay = new Relay({ from: outbox as OutboxReader, to: () => {}, name: freshTag() })
    await relay.start()
    await relay.stop()
  })
})
