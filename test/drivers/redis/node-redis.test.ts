import { afterEach, beforeAll, expect, test } from 'vitest'
import { redisScript } from '../../../src/drivers/redis/connection.ts'
import { redisOf } from '../../../src/drivers/redis/recognise.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { hiding } from '../../support/hiding.ts'
import { admin, cluster, sentinel } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'

/** What node-redis keeps beside its public face, we use where it is there. Here it is not. */

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

const opened = async (client: object) => {
  const connection = await redisOf(client).connect({ timeout: 5000, name: 'waybill-test' })
  ends.push(() => connection.close())
  return connection
}

const PUT = redisScript('put', "redis.call('SET', KEYS[1], ARGV[1])\nreturn redis.call('GET', KEYS[1])")

describeWith(['redis'], 'node-redis behind sentinels, without private fields', () => {
  let set: Awaited<ReturnType<typeof sentinel>>
  beforeAll(async () => {
    set = await sentinel({ replicas: 1 })
  })
  const bare = () => hiding(set.nodeRedis(), '_execute')

  test('commands, scripts and pipelines reach the master, on one connection', async () => {
    const redis = await opened(bare())
    expect(String(await redis.command(['set', 'a', Buffer.from([0xff, 0])]))).toBe('OK')
    expect(await redis.command(['get', 'a'])).toEqual(Buffer.from([0xff, 0]))
    expect(await redis.script(PUT, ['b'], ['1'])).toEqual(Buffer.from('1'))
    const ids = await redis.pipeline([
      ['client', 'id'],
      ['client', 'id'],
      ['lpush', 'a', 'x'],
    ])
    expect(ids[0]).toBe(ids[1])
    expect(ids[2]).toMatchObject({ code: 'REDIS_ERROR', kind: 'WRONGTYPE' })
    expect(redis.lost.aborted).toBe(false)
    // WAIT counts the replicas of what this very connection has written.
    const [, copies] = await redis.pipeline(
      [
        ['set', 'c', '1'],
        ['wait', '1', '2000'],
      ],
      { key: 'c' },
    )
    expect(copies).toBe(1)
  })

  test('a connection that ends is lost, and nothing is sent again', async () => {
    const redis = await opened(bare())
    const id = String(await redis.command(['client', 'id']))
    const blocked = redis.command(['blpop', 'list', '0'])
    blocked.catch(() => {})
    const other = admin(await set.master())
    await eventually('it waits', async () => /cmd=blpop/.test(String(await other.call('client', 'list', 'id', id))))
    await other.call('client', 'kill', 'id', id)
    await expect(blocked).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    await eventually('it is lost', () => redis.lost.aborted)
    await other.rpush('list', 'x')
    expect(await other.llen('list')).toBe(1)
  })

  test('a prefix that nobody tells is none, and that is said', () => {
    const recorded = recordTelemetry(['warning'])
    ends.push(() => recorded.stop())
    expect(redisOf(hiding(set.nodeRedis(), '_keyPrefix')).keyPrefix).toBe('')
    expect(recorded.of('warning')).toMatchObject([
      { message: expect.stringContaining('does not expose its keyPrefix') },
    ])
  })
})

describeWith(['redis'], 'node-redis on a cluster, without private fields', () => {
  test('its nodes have the settings the user gave them, and every slot is reached', async () => {
    const nodes = await cluster({ masters: 3 })
    const redis = await opened(hiding(nodes.nodeRedis(), '_options'))
    for (const key of ['a', 'b', 'c', 'd']) {
      expect(await redis.script(PUT, [key], ['1'])).toEqual(Buffer.from('1'))
      const [reply] = await redis.pipeline([['get', key]], { key })
      expect(reply).toEqual(Buffer.from('1'))
    }
  })
})
