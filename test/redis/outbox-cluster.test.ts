import { beforeAll, expect, test } from 'vitest'
import type { Message } from '../../src/core/index.ts'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { redisDue, redisOutbox } from '../../src/redis/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { cluster, spread } from '../support/redis-topologies.ts'
import { topologyDrivers } from '../support/scale.ts'
import { describeWith } from '../support/services.ts'
import { outboxConformance, shardedOn } from './outbox-support.ts'
import { freshTag, storeOf, until } from './support.ts'

let nodes: Awaited<ReturnType<typeof cluster>>
const clients = { ioredis: () => nodes.ioredis(), 'node-redis': () => nodes.nodeRedis() }

describeWith(['redis'], 'a redis outbox in a cluster', () => {
  beforeAll(async () => {
    nodes = await cluster()
  }, 60_000)

  for (const driver of topologyDrivers) {
    const client = clients[driver]
    outboxConformance(`${driver} cluster`, client)

    test(`${driver}: shards on several nodes, with units of work in the slot of each key`, async () => {
      const outbox = redisOutbox({ on: spread(6, freshTag).map((tag) => storeOf(client(), { tag })) })
      const events = samples(60).map((event, n) => event.with({ extensions: { partitionkey: `order ${n % 10}` } }))
      for (const event of events) {
        const db = outbox.storeOf(event.key!)
        await db.withTransaction(async (tx) => {
          tx.incr(db.key(`count:${event.key}`))
          await outbox.enqueue(tx, event)
        })
      }
      const due = redisDue({ outbox })
      for (let n = 0; n < 10; n++) await due.record({ id: `order ${n}`, at: new Date(n) })
      const worker = due.worker({ event: () => samples(1)[0]! })
      expect(await worker.runOnce()).toMatchObject({ enqueued: 10 })
      const arrived: Message[] = []
      const relay = new Relay({ from: outbox as OutboxReader, to: async (message) => void arrived.push(message) })
      await relay.start()
      await until('all have arrived', () => arrived.length === 70)
      await relay.stop()
      for (let n = 0; n < 10; n++) {
        const key = `order ${n}`
        const of = (list: readonly Message[]) => list.filter((event) => event.key === key).map(({ id }) => id)
        expect(of(arrived).slice(0, 6)).toEqual(of(events))
      }
    })

    test(`${driver}: a unit of work of another slot is refused before anything is sent`, async () => {
      const outbox = shardedOn(client, 2)
      const [one, other] = [outbox.storeOf('a'), 'bcdefgh'.split('').map((key) => outbox.storeOf(key))]
      const wrong = other.find((store) => store !== one)!
      const crossed = wrong.withTransaction((tx) => outbox.enqueue(tx, samples(1, { key: 'a' })))
      await expect(crossed).rejects.toMatchObject({ code: 'CROSSSLOT' })
    })
  }
})
