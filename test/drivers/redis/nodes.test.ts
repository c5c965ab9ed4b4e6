import { expect, test } from 'vitest'
import { redisScript } from '../../../src/drivers/redis/connection.ts'
import { redisOf } from '../../../src/drivers/redis/recognise.ts'
import { ReconnectingRedis } from '../../../src/drivers/redis/reconnecting.ts'
import { RedisError } from '../../../src/drivers/redis/redis.ts'
import { slotOf } from '../../../src/drivers/redis/slot.ts'
import { replicatedScript } from '../../../src/drivers/redis/wait.ts'
import { fresh, ioredis, nodeRedis } from '../../brokers/redis-streams/support.ts'
import { admin, cluster, eventually, replicated } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'

describeWith(['redis'], 'drivers of redis and the node that replies', () => {
  test('a replica refuses WAIT: what was written before is unknown, and the connection is given up', async () => {
    const { replicas } = await replicated()
    const reads = redisScript('reads', 'return 1')
    for (const driver of [ioredis, nodeRedis]) {
      const connection = await redisOf(driver(replicas[0]!.url)).connect({ timeout: 2000 })
      // A script that wrote would be refused itself; in between the server may become a replica.
      const asked = replicatedScript(connection, reads, ['k'], [], { replicas: 1, within: 100 })
      await expect(asked).rejects.toMatchObject({ code: 'UNAVAILABLE', message: expect.stringContaining('WAIT') })
      expect(connection.lost.aborted).toBe(true)
    }
  })

  test('a connection to a server that is no master any more is replaced, and what is on its way is still answered', async () => {
    const { master } = await replicated({ replicas: 0 })
    const refused = redisScript('refused', "return redis.error_reply('READONLY You can’t write')")
    const own = redisScript('own', "return 'mine'")
    for (const driver of [ioredis, nodeRedis]) {
      const redis = new ReconnectingRedis(redisOf(driver(master.url)), { timeout: 30_000 })
      const before = await redis.connection()
      await before.command(['script', 'load', refused.text])
      const refusal = expect(redis.script(refused, [], [])).rejects.toMatchObject({ kind: 'READONLY' })
      const waiting = redis.command(['blpop', 'nothing', '1'])
      await refusal
      expect(String(await redis.script(own, [], []))).toBe('mine')
      expect(await redis.connection()).not.toBe(before)
      expect(await waiting, 'it was sent before the refusal came').toBeNull()
      await eventually('it ends when all is answered', async () => before.lost.aborted)
      await redis.close()
    }
  })

  test('a connection is replaced while the next cannot be opened: whoever asked is told, and the process goes on', async () => {
    const { master } = await replicated({ replicas: 0 })
    const refused = redisScript('refused', "return redis.error_reply('READONLY You can’t write')")
    const unhandled: unknown[] = []
    const onUnhandled = (error: unknown) => void unhandled.push(error)
    process.on('unhandledRejection', onUnhandled)
    for (const driver of [ioredis, nodeRedis]) {
      // As sentinels do that know of no other master yet.
      const [first, next] = [redisOf(driver(master.url)), redisOf(driver('redis://127.0.0.1:1'))]
      let opened = 0
      const connect: typeof first.connect = (options) => (++opened === 1 ? first : next).connect(options)
      const redis = new ReconnectingRedis({ ...first, connect }, { timeout: 30_000 })
      const before = await redis.connection()
      const asked = [1, 2].map(() => redis.script(refused, [], []).catch(() => redis.command(['ping'])))
      const answers = await Promise.allSettled(asked)
      expect(answers.map((one) => 'reason' in one && one.reason.code)).toEqual(['UNAVAILABLE', 'UNAVAILABLE'])
      await eventually('the first has ended', async () => before.lost.aborted)
      await new Promise((resolve) => setImmediate(resolve))
      await redis.close()
    }
    process.off('unhandledRejection', onUnhandled)
    expect(unhandled).toEqual([])
  })

  test('whoever closes does not wait for what a replaced connection still brings', async () => {
    const { master } = await replicated({ replicas: 0 })
    const redis = new ReconnectingRedis(redisOf(ioredis(master.url)), { timeout: 30_000 })
    const before = await redis.connection()
    const waiting = redis.command(['blpop', 'nothing', '0'])
    const ended = expect(waiting).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    redis.retire(before)
    await redis.connection()
    expect(before.lost.aborted).toBe(false)
    await redis.close()
    expect(before.lost.aborted).toBe(true)
    await ended
  })

  test('a slot that has moved is found by the next pipeline', async () => {
    const nodes = await cluster()
    for (const client of [nodes.ioredis(), nodes.nodeRedis()]) {
      const connection = await redisOf(client).connect({ timeout: 2000 })
      const key = fresh()
      const written = () =>
        connection.pipeline(
          [
            ['set', key, '1'],
            ['del', key],
          ],
          { key },
        )
      expect((await written()).map(String)).toEqual(['OK', '1'])
      const old = nodes.nodes.indexOf(await nodes.masterOf(key))
      const to = (old + 1) % nodes.nodes.length
      const slot = String(slotOf(key))
      await admin(nodes.nodes[to]!).call('cluster', 'setslot', slot, 'importing', nodes.ids[old]!)
      // All of them, so that whichever the client asks knows it.
      for (const at of [to, old, 3 - to - old]) {
        await admin(nodes.nodes[at]!).call('cluster', 'setslot', slot, 'node', nodes.ids[to]!)
      }
      // Drivers follow the answer MOVED for single commands only: the first may fail, and nothing was done then.
      const first = await written()
      if (first.some((reply) => reply instanceof RedisError)) expect(first[0]).toMatchObject({ kind: 'MOVED' })
      expect((await written()).map(String)).toEqual(['OK', '1'])
      await connection.close()
    }
  })
})
