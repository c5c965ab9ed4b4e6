import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { RETURNED } from '../../../src/brokers/redis-streams/scripts.ts'
import { systemClock } from '../../../src/core/index.ts'
import { slotOf } from '../../../src/drivers/redis/slot.ts'
import { DONE } from '../../../src/flow/index.ts'
import { brokerSuite, faultProxy } from '../../../src/testing/index.ts'
import { admin, cluster, eventually, spread } from '../../support/redis-topologies.ts'
import { topologyDrivers } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { underLoad } from './load.ts'
import { factory, fresh, message, NEVER, receive } from './support.ts'

let nodes: Awaited<ReturnType<typeof cluster>>
const clients = { ioredis: () => nodes.ioredis(), 'node-redis': () => nodes.nodeRedis() }

async function publishTo(stream: string, given: object): Promise<void> {
  const broker = redisStreams({ client: given })
  const publisher = broker.publisher({ stream })
  expect(await publisher.publish([message()], NEVER)).toMatchObject([{ kind: 'ok' }])
  await publisher.close!()
  await broker.close()
}

describeWith(['redis'], 'redis streams in a cluster', () => {
  beforeAll(async () => {
    nodes = await cluster()
  })

  for (const driver of topologyDrivers) {
    const client = clients[driver]
    runSuite(brokerSuite(factory(`${driver} cluster`, client)), {
      named: (name) => `${driver}: ${name}`,
      concurrent: true,
    })

    test(`${driver}: an entry whose read was never answered is handled all the same`, async () => {
      const stream = fresh()
      const old = await nodes.masterOf(stream)
      await using proxy = await faultProxy({ host: old.host, port: old.port })
      const map = { [`${old.host}:${old.port}`]: { host: proxy.host, port: proxy.port } }
      const roots = nodes.roots.filter(({ port }) => port !== old.port)
      const through =
        driver === 'ioredis'
          ? new Cluster(roots, { lazyConnect: true, natMap: map })
          : createCluster({
              rootNodes: roots.map(({ host, port }) => ({ url: `redis://${host}:${port}` })),
              nodeAddressMap: map,
            })
      const broker = redisStreams({ client: through, timeout: 2000 })
      const source = broker.source({ stream, group: 'g', block: 5000 })
      const server = admin(old)
      const blocked = async () => /flags=b .*cmd=xreadgroup/.test(String(await server.call('client', 'list')))
      /** The entry is pending in the consumer's name, and the reply that says so never arrives. */
      const neverAnswered = async () => {
        const session = await source.open()
        const taking = session.take({ count: 1, bytes: 1e6 }, NEVER).catch(() => [])
        await eventually('it waits for entries', blocked)
        const cut = proxy.cutAfter(1, 'downstream')
        await publishTo(stream, client())
        expect(await cut).toBe(true)
        const taken = await taking
        const [, , , owners] = (await server.xpending(stream, 'g')) as [number, string, string, [string][] | null]
        const hit = taken.length === 0 && (owners ?? []).some(([owner]) => owner !== RETURNED)
        await session.settle(taken.map((delivery) => [delivery, DONE])).catch(() => {})
        if (hit) expect(session.lost.aborted, 'the next session takes over').toBe(true)
        await session.close().catch(() => {})
        return hit
      }
      // What is cut may be the reply to another question of the session.
      await eventually('a read is not answered', neverAnswered)
      const next = await source.open()
      expect(await receive(next, 1)).toHaveLength(1)
      await next.close()
      await broker.close()
    })

    test(`${driver}: a batch for streams of all nodes arrives, and replicas are asked of the right node`, async () => {
      const names = spread(12, fresh)
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

    test(`${driver}: a node that refuses ends nothing that is on its way to the others`, async () => {
      const there = fresh()
      const healthy = await nodes.masterOf(there)
      let refused = fresh()
      while ((await nodes.masterOf(refused)) === healthy) refused = fresh()
      const full = admin(await nodes.masterOf(refused))
      const broker = redisStreams({ client: client() })
      const publisher = broker.publisher()
      const batch = () => [refused, there].map((type) => message('{}', { type }))
      expect(await publisher.publish(batch(), NEVER)).toMatchObject([{ kind: 'ok' }, { kind: 'ok' }])
      await full.config('SET', 'maxmemory', '1')
      try {
        // Its answer comes long after the refusal of the other.
        await admin(healthy).call('client', 'pause', '500', 'write')
        expect(await publisher.publish(batch(), NEVER)).toMatchObject([{ kind: 'down' }, { kind: 'ok' }])
      } finally {
        await full.config('SET', 'maxmemory', '0')
      }
      expect(await publisher.publish(batch(), NEVER)).toMatchObject([{ kind: 'ok' }, { kind: 'ok' }])
      expect(await admin(healthy).xlen(there)).toBe(3)
      await publisher.close!()
      await broker.close()
    })

    test(`${driver}: streams of different slots are refused before anything is sent`, () => {
      const broker = redisStreams({ client: client() })
      expect(() => broker.source({ stream: ['a', 'b'], group: 'g' })).toThrow(/different slots of the cluster/)
      broker.source({ stream: ['{t}a', '{t}b'], group: 'g' })
    })
  }

  for (const driver of topologyDrivers) {
    const client = clients[driver]
    test(`${driver}: a slot that nobody serves is the trouble of the cluster: down, and then it goes on`, async () => {
      const load = await underLoad({ client: client() })
      await load.flows()
      const owner = admin(await nodes.masterOf(load.stream))
      const slot = String(slotOf(load.stream))
      await owner.call('cluster', 'delslots', slot)
      await eventually('it is noticed', async () => [...load.errors].some((error) => /CLUSTERDOWN|MOVED/.test(error)))
      // Who connects meanwhile is told, and not left waiting.
      const late = redisStreams({ client: client(), timeout: 2000 })
      await expect(late.source({ stream: load.stream, group: 'late' }).open()).rejects.toThrow()
      await owner.call('cluster', 'addslots', slot)
      await nodes.formed()
      await load.flows()
      expect(await load.end()).toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
    })

    test(`${driver}: a slot moves to another node while messages flow: nothing is lost`, async () => {
      const load = await underLoad({ client: client() })
      await load.flows()
      const slot = String(slotOf(load.stream))
      const from = await nodes.masterOf(load.stream)
      const to = nodes.nodes.find((node) => node !== from)!
      const [fromId, toId] = [from, to].map((node) => nodes.ids[nodes.nodes.indexOf(node)]!)
      await admin(to).call('cluster', 'setslot', slot, 'importing', fromId!)
      await admin(from).call('cluster', 'setslot', slot, 'migrating', toId!)
      // While it lasts, scripts whose keys are here and there are refused (TRYAGAIN), or sent on (ASK).
      await systemClock.sleep(300)
      const keys = (await admin(from).call('cluster', 'getkeysinslot', slot, '100')) as string[]
      expect(keys).toContain(load.stream)
      await admin(from).call('migrate', to.host, String(to.port), '', '0', '10000', 'KEYS', ...keys)
      await systemClock.sleep(300)
      for (const node of [to, from]) await admin(node).call('cluster', 'setslot', slot, 'node', toId!)
      await load.flows()
      expect(await nodes.masterOf(load.stream)).toBe(to)
      expect(await load.end()).toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
      expect(await admin(to).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size)
    })
  }
})
