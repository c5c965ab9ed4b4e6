import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { cluster, eventually } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'
import { fresh, message, NEVER } from './support.ts'

describeWith(['redis'], 'one node of a cluster is down when a publisher begins', () => {
  test('what goes to the others arrives, whatever comes first in the batch', async () => {
    const nodes = await cluster({ settings: { 'cluster-require-full-coverage': 'no' }, nodeTimeout: 1000 })
    const there = fresh()
    const here = await nodes.masterOf(there)
    let gone = fresh()
    while ((await nodes.masterOf(gone)) === here) gone = fresh()
    await (await nodes.masterOf(gone)).stop('kill')
    const broker = redisStreams({ client: nodes.ioredis(), timeout: 1000 })
    const publisher = broker.publisher()
    await eventually('the one that lives takes it', async () => {
      const batch = [gone, there].map((type) => message('{}', { type }))
      const outcomes = await publisher.publish(batch, NEVER).catch(() => [])
      const kinds = outcomes.map(({ kind }) => kind)
      return kinds[0] === 'down' && kinds[1] === 'ok'
    })
    // A new connection may meet the node that is down before any other; then it is tried again, as workers do.
    const source = broker.source({ stream: there, group: 'g' })
    let stats: unknown
    await eventually('the one that lives can be asked', async () => {
      stats = await source.stats().catch(() => undefined)
      return stats !== undefined
    })
    expect(stats).toHaveLength(1)
    await publisher.close!()
    await broker.close()
  })
})
