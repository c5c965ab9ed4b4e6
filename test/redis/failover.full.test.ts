import { expect, test } from 'vitest'
import { classify } from '../../src/core/index.ts'
import { cluster } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { storeOf, until } from './support.ts'

describeWith(['redis'], 'units of work when a master of the cluster is killed', () => {
  for (const driver of ['ioredis', 'nodeRedis'] as const) {
    test(`${driver}: it is nobody's fault, the new master is found, and scripts are sent to it`, {
      timeout: 180_000,
    }, async () => {
      const nodes = await cluster({ replicas: 1 })
      const db = storeOf(nodes[driver](), { timeout: '2s', durability: { replicas: 1 } })
      const handle = (id: string) =>
        db.withTransaction(async (tx) => {
          const answer = await db.inbox.receive(tx, { subscriber: 's', source: '/s', id })
          if (answer === 'new') tx.incr(db.key('count'))
          return answer
        })
      expect(await handle('1')).toBe('new')
      const old = await nodes.masterOf(db.key(''))
      await old.stop('kill')
      const failed = nodes.failedOver(db.key(''), old)
      const errors: unknown[] = []
      // Nobody waits for a second replica any more, so that commits are found done when they come again.
      await until(
        'it goes on',
        async () => {
          const answer = await handle('2').catch((error: unknown) => errors.push(error))
          return answer === 'done'
        },
        120_000,
      )
      await failed
      expect(errors.map((error) => classify(error)).filter((kind) => kind !== 'down')).toEqual([])
      expect(await handle('1')).toBe('done')
      expect(String(await db.connection.command(['get', db.key('count')]))).toBe('2')
    })
  }
})
