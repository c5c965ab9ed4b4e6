import { beforeAll, expect, test } from 'vitest'
import { brokerSuite } from '../../../src/testing/index.ts'
import { admin, sentinel } from '../../support/redis-topologies.ts'
import { topologyDrivers } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { underLoad } from './load.ts'
import { factory } from './support.ts'

let set: Awaited<ReturnType<typeof sentinel>>
const clients = { ioredis: () => set.ioredis(), 'node-redis': () => set.nodeRedis() }

describeWith(['redis'], 'redis streams behind sentinels', () => {
  beforeAll(async () => {
    set = await sentinel({ replicas: 2, downAfter: 3000 })
  })

  for (const driver of topologyDrivers) {
    const client = clients[driver]
    runSuite(brokerSuite(factory(`${driver} sentinel`, client)), {
      named: (name) => `${driver}: ${name}`,
      concurrent: true,
    })

    test(`${driver}: scripts are forgotten while messages flow, and are sent again`, async () => {
      const load = await underLoad({ client: client() })
      const master = admin(await set.master())
      for (let i = 0; i < 5; i++) {
        await load.flows(50)
        await master.script('FLUSH')
      }
      await load.flows(50)
      expect(await load.end()).toEqual([])
      expect([...load.errors], 'nobody noticed').toEqual([])
    })
  }

  // With the other driver, planned, and again and again: sentinel.full.test.ts.
  test('the master is killed while messages flow: what it and a replica had is not lost', async () => {
    const load = await underLoad({ client: set.ioredis(), replicas: 1 })
    await load.flows()
    const old = await set.master()
    await old.stop('kill')
    const now = await set.failedOver(old)
    await load.flows()
    expect(await load.end(), 'accepted by master and replica, and lost').toEqual([])
    expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
    expect(load.telemetry.of('message.dead')).toEqual([])
    expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(load.accepted.size)
  })
})
