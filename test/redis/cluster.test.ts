import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { beforeAll, describe, expect, test } from 'vitest'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { classify, encodeData, event } from '../../src/core/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { redis, redisFromContext } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/index.ts'
import { cluster, sentinel, spread } from '../support/redis-topologies.ts'
import { topologyDrivers } from '../support/scale.ts'
import { describeWith } from '../support/services.ts'
import { conformance, freshTag, storeOf, until } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const Invoiced = event<{ n: number }>('invoice.sent')
const NEVER = new AbortController().signal

describeWith(['redis'], 'redis in a cluster', () => {
  let nodes: Awaited<ReturnType<typeof cluster>>
  beforeAll(async () => {
    nodes = await cluster()
  })
  const clients = { ioredis: () => nodes.ioredis(), 'node-redis': () => nodes.nodeRedis() }

  for (const driver of topologyDrivers) {
    const client = clients[driver]
    describe(driver, () => {
      conformance(`${driver} in a cluster`, client)

      test('a whole service works on whichever node its tag is, and forwards to all of them', async () => {
        const tags = spread(6, freshTag)
        const streams = redisStreams({ client: client() })
        for (const tag of tags) {
          const db = storeOf(client(), { tag })
          const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
            tx.incrby(db.key('total'), data.n)
            return Invoiced({ n: data.n })
          })
          const incoming = streams.publisher({ stream: db.key('orders') })
          const order = encodeData(Placed({ n: 7 }))
          await incoming.publish([order, order], NEVER)
          const consumer = router.consume(streams.source({ stream: db.key('orders'), group: 'billing', block: 2000 }))
          expect(await consumer.runOnce()).toMatchObject({ taken: 2 })
          await consumer.stop()
          expect(String(await db.connection.command(['get', db.key('total')]))).toBe('7')
          const destination = freshTag('elsewhere')
          const to = streams.publisher({ stream: destination })
          const relay = new Relay({ from: streams.source({ ...db.outbox.forwarding, block: 2000 }), to })
          expect(await relay.runOnce()).toMatchObject({ done: 1 })
          await relay.stop()
          expect(await db.connection.command(['xlen', destination])).toBe(1)
          expect(await db.connection.command(['xlen', db.outbox.stream])).toBe(0)
          for (const publisher of [incoming, to]) await publisher.close!()
        }
        await streams.close()
      })

      test('keys of different slots are refused before anything is sent, and so is the wish to have them', async () => {
        const db = storeOf(client())
        const failing = db.withTransaction(async (tx) => {
          tx.set(db.key('here'), '1')
          tx.set('elsewhere', '1')
        })
        await expect(failing).rejects.toMatchObject({ code: 'CROSSSLOT' })
        expect(await db.connection.command(['exists', db.key('here')])).toBe(0)
        expect(() => redis({ client: client(), tag: 't', anySlot: true })).toThrow(/one slot only/)
      })

      test('a client that was given other nodes of the same cluster queues into its units of work', async () => {
        const db = storeOf(client())
        const [{ host, port }] = nodes.roots as [{ host: string; port: number }]
        const other =
          driver === 'ioredis'
            ? new Cluster([`redis://${host}:${port}`], { lazyConnect: true })
            : createCluster({ rootNodes: [{ url: `redis://${host}:${port}` }] })
        const key = db.key('k')
        const failing = db.withTransaction(async () => {
          await redisFromContext(other).set(key, 'v')
          throw new Error('it fails')
        })
        await expect(failing).rejects.toThrow('it fails')
        expect(await db.connection.command(['exists', key])).toBe(0)
        await db.withTransaction(async () => redisFromContext(other).set(key, 'v'))
        expect(await db.connection.command(['exists', key])).toBe(1)
      })

      test('adapters write at once outside of a unit of work', async () => {
        const given = client()
        await given.connect()
        const db = storeOf(given)
        await redisFromContext(given).set(db.key('k'), 'v')
        expect(String(await db.connection.command(['get', db.key('k')]))).toBe('v')
        if ('disconnect' in given && !('destroy' in given)) given.disconnect()
        else (given as { destroy(): void }).destroy()
      })
    })
  }
})

describeWith(['redis'], 'redis behind sentinels', () => {
  let set: Awaited<ReturnType<typeof sentinel>>
  beforeAll(async () => {
    set = await sentinel()
  })
  const clients = { ioredis: () => set.ioredis(), 'node-redis': () => set.nodeRedis() }
  for (const driver of topologyDrivers) {
    describe(driver, () => conformance(`${driver} through sentinels`, clients[driver]))
  }

  test('adapters write at once outside of a unit of work, with either driver', async () => {
    for (const given of [set.ioredis(), set.nodeRedis()]) {
      const db = storeOf(set.ioredis())
      await given.connect()
      await redisFromContext(given).set(db.key('k'), 'v')
      expect(String(await db.connection.command(['get', db.key('k')]))).toBe('v')
      if ('destroy' in given) given.destroy()
      else given.disconnect()
    }
  })

  test('a failover in the middle of a unit: it fails as nobody’s fault, and the next goes to the new master', async () => {
    const db = storeOf(set.ioredis(), { timeout: '2s' })
    const key = { subscriber: 's', source: '/s', id: '1' }
    await db.withTransaction(async (tx) => tx.incr(db.key('count')))
    const old = await set.master()
    const unlucky = db.withTransaction(async (tx) => {
      await db.inbox.receive(tx, key)
      tx.incr(db.key('count'))
      await old.stop('kill')
    })
    const errors = [await unlucky.catch((error: unknown) => error)]
    await set.failedOver(old)
    // The new master may have the claim, or not: it is of this process, which keeps nobody waiting.
    await until('it is handled', async () => {
      const unit = db.withTransaction(async (tx) => {
        const answer = await db.inbox.receive(tx, key)
        expect(answer).not.toBe('busy')
        if (answer === 'new') tx.incr(db.key('count'))
      })
      return await unit.then(
        () => true,
        (error: unknown) => errors.push(error) === 0,
      )
    })
    expect(errors.filter((error) => classify(error) !== 'down').map(String)).toEqual([])
    expect(String(await db.connection.command(['get', db.key('count')]))).toBe('2')
  })
})
