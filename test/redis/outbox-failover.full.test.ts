import { beforeAll, describe, expect, test } from 'vitest'
import { classify, type Message, systemClock } from '../../src/core/index.ts'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { redisOutbox } from '../../src/redis/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { cluster, type RedisNode, sentinel } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxConformance } from './outbox-support.ts'
import { storeOf, until } from './support.ts'

/** Servers of which one is master for a key, with one replica, so that it is known who follows. */
interface Topology {
  readonly ioredis: () => object
  readonly nodeRedis: () => object
  masterOf(key: string): Promise<RedisNode>
  failedOver(key: string, old: RedisNode): Promise<unknown>
}

const topologies: Record<string, () => Promise<Topology>> = {
  cluster: () => cluster({ replicas: 1 }),
  async sentinels() {
    const set = await sentinel({ replicas: 1, downAfter: 3000 })
    return { ...set, masterOf: () => set.master(), failedOver: (_, old) => set.failedOver(old) }
  },
}

for (const [name, make] of Object.entries(topologies)) {
  describeWith(['redis'], `a redis outbox when its master is killed: ${name}`, () => {
    // A failover takes longer than the one lease, and not as long as the other.
    test.each([
      ['ioredis', '30s'],
      ['nodeRedis', '3s'],
    ] as const)(
      '%s, lease %s: what was committed and copied arrives, each key in order, and scripts are sent to the new master',
      { timeout: 300_000 },
      async (driver, lease) => {
        const servers = await make()
        const db = storeOf(servers[driver](), { timeout: '2s', durability: { replicas: 1 } })
        const outbox = redisOutbox({ on: [db] })
        const arrived: Message[] = []
        const relay = new Relay({
          from: outbox as OutboxReader,
          to: async (message) => void arrived.push(message),
          lease,
          poll: '50ms',
          maxPoll: '200ms',
          outage: { min: 50, max: 500 },
        })
        const committed: Message[] = []
        const errors: unknown[] = []
        let going = true
        const writing = (async () => {
          for (let n = 0; going; n++) {
            const event = sample(n, { key: `key ${n % 5}` })
            // Again until it is known to be there: the same event is never written twice.
            for (let known = false; !known; ) {
              try {
                await db.withTransaction((tx) => outbox.enqueue(tx, event))
                known = true
              } catch (error) {
                errors.push(error)
                await systemClock.sleep(20)
              }
            }
            committed.push(event)
          }
        })()
        await relay.start()
        await until('events flow', () => arrived.length >= 100)
        const old = await servers.masterOf(db.key(''))
        await old.stop('kill')
        await servers.failedOver(db.key(''), old)
        // As a replica of the new one, which has somebody to wait for again.
        await old.start()
        const before = arrived.length
        await until('events flow again', () => arrived.length >= before + 100, 120_000)
        going = false
        await writing
        const ids = () => new Set(arrived.map(({ id }) => id))
        await until('all have arrived', () => committed.every(({ id }) => ids().has(id)), 60_000)
        const settled = async () => (await outbox.admin.stats()).states.published.count === ids().size
        await until('all are settled, also what the new master had missed', settled, 60_000)
        await relay.stop()
        const known = new Set(committed.map(({ id }) => id))
        expect(arrived.filter(({ id }) => !known.has(id))).toEqual([])
        for (let key = 0; key < 5; key++) {
          const of = (list: readonly Message[]) =>
            list.filter((event) => event.key === `key ${key}`).map(({ id }) => id)
          expect([...new Set(of(arrived))]).toEqual(of(committed))
        }
        expect(errors.map((error) => classify(error)).filter((kind) => kind !== 'down')).toEqual([])
        const charged = (await outbox.admin.list({}, { limit: 1000 })).filter(({ attempts }) => attempts > 0)
        expect(charged, 'a failover is nobody’s fault').toEqual([])
      },
    )
  })
}

describeWith(['redis'], 'a redis outbox behind sentinels', () => {
  let set: Awaited<ReturnType<typeof sentinel>>
  beforeAll(async () => {
    set = await sentinel()
  })
  describe('ioredis', () => outboxConformance('ioredis sentinel', () => set.ioredis()))
  describe('node-redis', () => outboxConformance('node-redis sentinel', () => set.nodeRedis()))
})
