import { expect, test } from 'vitest'
import { admin, cluster } from '../../support/redis-topologies.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { underLoad } from './load.ts'

describeWith(['redis'], 'redis streams in a cluster that fails over', () => {
  for (const driver of ['ioredis', 'node-redis']) {
    test(`${driver}: a master is killed while messages flow: what it and its replica had is not lost`, async () => {
      const nodes = await cluster({ replicas: 2, nodeTimeout: 1500 })
      const client = driver === 'ioredis' ? nodes.ioredis() : nodes.nodeRedis()
      const load = await underLoad({ client, replicas: 1 })
      for (let kill = 0; kill < scale({ test: 1, full: 3, torture: 20 }); kill++) {
        await load.flows()
        const old = await nodes.masterOf(load.stream)
        await old.stop('kill')
        const now = await nodes.failedOver(load.stream, old)
        await load.flows()
        expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size - 20)
        await old.start()
        await nodes.formed()
      }
      await load.flows()
      expect(await load.end(), 'accepted by master and replica, and lost').toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
      const now = await nodes.masterOf(load.stream)
      expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size)
    })
  }
})
