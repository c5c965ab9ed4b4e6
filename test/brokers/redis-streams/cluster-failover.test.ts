import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { admin, cluster, eventually } from '../../support/redis-topologies.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { underLoad } from './load.ts'
import { fresh, message, NEVER, receive } from './support.ts'

describeWith(['redis'], 'redis streams in a cluster that fails over', () => {
  for (const driver of ['ioredis', 'node-redis']) {
    test(`${driver}: a master is killed while messages flow: what it and its replicas had is not lost`, async () => {
      const nodes = await cluster({ replicas: 2, nodeTimeout: 1500 })
      const client = driver === 'ioredis' ? nodes.ioredis() : nodes.nodeRedis()
      const load = await underLoad({ client, replicas: 1 })
      // One replica has what was accepted, and another may be elected: what both have is what cannot be lost. A master
      // whose replicas are not both there is not killed: the one that is still empty could be elected.
      let kept: string[] = []
      const unsure = new Set<string>()
      for (let kill = 0; kill < scale({ test: 1, full: 3, torture: 20 }); kill++) {
        await load.flows()
        const old = await nodes.masterOf(load.stream)
        await eventually('both replicas have what was accepted', async () => {
          kept = [...load.accepted].filter((id) => !unsure.has(id))
          await admin(old).set(`{${load.stream}}:mark`, '1')
          return Number(await admin(old).wait(2, 10_000)) === 2
        })
        await old.stop('kill')
        const now = await nodes.failedOver(load.stream, old)
        for (const id of [...load.accepted].slice(kept.length + unsure.size)) unsure.add(id)
        await load.flows()
        expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(kept.length)
        await old.start()
        await nodes.formed()
      }
      await load.flows()
      const lost = await load.end()
      expect(
        lost.filter((id) => kept.includes(id)),
        'accepted by master and replicas, and lost',
      ).toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
      const now = await nodes.masterOf(load.stream)
      expect(await admin(now).xlen(load.stream)).toBeGreaterThanOrEqual(kept.length)
    })

    test(`${driver}: a master that is gone for good holds up nobody who needs the others`, {
      timeout: 30_000,
    }, async () => {
      const nodes = await cluster({ nodeTimeout: 1500, settings: { 'cluster-require-full-coverage': 'no' } })
      const lost = fresh()
      const old = await nodes.masterOf(lost)
      let kept = fresh()
      while ((await nodes.masterOf(kept)) === old) kept = fresh()
      await old.stop('kill')
      const client = driver === 'ioredis' ? nodes.ioredis() : nodes.nodeRedis()
      const broker = redisStreams({ client, timeout: 2000 })
      const publisher = broker.publisher({ stream: ({ type }) => type })
      await eventually('the others work', async () => {
        const [outcome] = await publisher.publish([message('{}', { type: kept })], NEVER).catch(() => [])
        return outcome?.kind === 'ok'
      })
      const outcomes = await publisher.publish([message('{}', { type: lost })], NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(['down'])
      const source = broker.source({ stream: kept, group: 'g', block: 20 })
      let session: Awaited<ReturnType<typeof source.open>> | undefined
      // A client that happens to ask the dead one first is told so; whoever opens tries again, as a flow does.
      await eventually('the source opens', async () => {
        session = await source.open().catch(() => undefined)
        return session !== undefined
      })
      expect(await receive(session!, 1)).toHaveLength(1)
      await session!.close()
      await publisher.close!()
      await broker.close()
    })
  }
})
