import { beforeAll, expect, test } from 'vitest'
import { admin, eventually, sentinel } from '../../support/redis-topologies.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { underLoad } from './load.ts'

let set: Awaited<ReturnType<typeof sentinel>>
const drivers = { ioredis: () => set.ioredis(), 'node-redis': () => set.nodeRedis() }

describeWith(['redis'], 'redis streams behind sentinels, failing over', () => {
  beforeAll(async () => {
    set = await sentinel({ replicas: 2, downAfter: 2000 })
  })

  for (const [driver, client] of Object.entries(drivers)) {
    test(`${driver}: planned: the old master lives on as a replica, and everybody moves`, async () => {
      // All of them: one replica is promoted while the other still follows, and confirms, what the old master accepts.
      const load = await underLoad({ client: client(), replicas: 2 })
      await load.flows()
      const old = await set.master()
      await eventually('a failover is accepted', async () => {
        const answer = admin(set.sentinels[0]!).call('sentinel', 'failover', set.name)
        return await answer.then(
          () => true,
          () => false,
        )
      })
      const now = await set.failedOver(old)
      await load.flows()
      expect(await load.end(), 'accepted by all, and lost').toEqual([])
      const told = load.telemetry.of('warning').map(({ message }) => message)
      expect(
        told.filter((text) => /deleted/.test(text)),
        'nobody deleted a group',
      ).toEqual([])
      expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size)
      await set.calm()
    })

    test(`${driver}: masters are killed one after the other: what they and a replica had is not lost`, async () => {
      const load = await underLoad({ client: client(), replicas: 1 })
      for (let kill = 0; kill < scale({ test: 1, full: 3, torture: 30 }); kill++) {
        await load.flows()
        const old = await set.master()
        await old.stop('kill')
        const now = await set.failedOver(old)
        await load.flows()
        expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size - 20)
        await old.start()
        await set.calm()
      }
      await load.flows()
      expect(await load.end(), 'accepted by master and replica, and lost').toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
      expect(await admin(await set.master()).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size)
    })
  }
})
