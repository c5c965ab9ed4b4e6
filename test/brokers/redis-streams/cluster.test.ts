import { beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { slotOf } from '../../../src/drivers/redis-slot.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { cluster } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'
import { factory, fresh, message, NEVER } from './support.ts'

let nodes: Awaited<ReturnType<typeof cluster>>
const drivers = { ioredis: () => nodes.ioredis(), 'node-redis': () => nodes.nodeRedis() }

describeWith(['redis'], 'redis streams in a cluster', () => {
  beforeAll(async () => {
    nodes = await cluster()
  })

  for (const [driver, client] of Object.entries(drivers)) {
    for (const { name, skip, run } of brokerSuite(factory(`${driver} cluster`, client))) {
      test.skipIf(skip !== undefined)(`${driver}: ${name}`, run)
    }

    test(`${driver}: a batch for streams of all nodes arrives, and replicas are asked of the right node`, async () => {
      const names = Array.from({ length: 12 }, () => fresh())
      expect(new Set(names.map((name) => Math.floor((slotOf(name) * 3) / 16384))).size).toBeGreaterThan(1)
      const broker = redisStreams({ client: client() })
      const publisher = broker.publisher()
      const outcomes = await publisher.publish(
        names.map((type) => message('{}', { type })),
        NEVER,
      )
      expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['ok']))
      await publisher.close!()
      const waiting = redisStreams({ client: client(), durability: { replicas: 1, within: 20 } }).publisher()
      expect(await waiting.publish([message('{}', { type: names[0]! })], NEVER)).toMatchObject([
        { kind: 'down', error: { message: expect.stringMatching(/0 of 1 replicas/) } },
      ])
      await waiting.close!()
    })

    test(`${driver}: streams of different slots are refused before anything is sent`, () => {
      const broker = redisStreams({ client: client() })
      expect(() => broker.source({ stream: ['a', 'b'], group: 'g' })).toThrow(/different slots of the cluster/)
      broker.source({ stream: ['{t}a', '{t}b'], group: 'g' })
    })
  }
})
