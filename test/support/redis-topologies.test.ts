import { expect, test } from 'vitest'
import { admin, cluster, replicated, sentinel } from './redis-topologies.ts'
import { describeWith } from './services.ts'

describeWith(['redis'], 'redis topologies for tests', () => {
  test('a pair: what is written to the master is on the replica', async () => {
    const { master, replicas } = await replicated()
    const client = admin(master)
    await client.set('a', '1')
    expect(await client.wait(1, 10_000)).toBe(1)
    expect(await admin(replicas[0]!).get('a')).toBe('1')
  })

  test('sentinels promote the replica of a master that was killed', async () => {
    const set = await sentinel({ downAfter: 500 })
    const old = await set.master()
    await old.stop('kill')
    const now = await set.failedOver(old)
    expect(now.port).not.toBe(old.port)
    const client = set.ioredis()
    await client.set('a', '1')
    client.disconnect()
  })

  test('in a cluster with replicas one of them follows its master', async () => {
    const nodes = await cluster({ replicas: 1, nodeTimeout: 1000 })
    const old = await nodes.masterOf('a')
    await old.stop('kill')
    const now = await nodes.failedOver('a', old)
    expect(now.port).not.toBe(old.port)
    const client = nodes.ioredis()
    expect(await client.set('a', '1')).toBe('OK')
    client.disconnect()
  })
})
