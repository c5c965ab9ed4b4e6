import { describe, expect, test } from 'vitest'
import { redisOf } from '../../../src/drivers/redis/recognise.ts'
import { besides, checkSameSlot, slotOf } from '../../../src/drivers/redis/slot.ts'
import { ioredis, nodeRedis } from '../../brokers/redis-streams/support.ts'
import { describeWith, service } from '../../support/services.ts'

describe('hash slots', () => {
  test('are those of Redis Cluster', () => {
    // From the specification: CRC16 of 123456789 is 0x31C3.
    expect(slotOf('123456789')).toBe(0x31c3 % 16384)
    expect(slotOf('{user1000}.following')).toBe(slotOf('{user1000}.followers'))
    expect(slotOf('foo{}{bar}')).not.toBe(slotOf('bar'))
    expect(slotOf('foo{{bar}}zap')).toBe(slotOf('{bar'))
  })

  test('a name beside a key is in its slot', () => {
    for (const key of ['orders', '{shop}:orders', 'a{b}c', 'grüße']) {
      expect(slotOf(besides(key, ':dead'))).toBe(slotOf(key))
    }
    expect(() => besides('a}b', ':dead')).toThrow(/name it yourself/)
  })

  test('keys of different slots are refused with the way out', () => {
    expect(() => checkSameSlot('here', ['a', 'b'])).toThrow(/here: "a" and "b" live in different slots.*hash tag/)
    checkSameSlot('here', ['{t}a', '{t}b'])
  })
})

describe('clients', () => {
  test('what is no client is refused', () => {
    for (const wrong of [{}, { connect() {} }, null, 'redis://localhost']) {
      expect(() => redisOf(wrong as object)).toThrow(/no Redis client that is known here/)
    }
  })
})

for (const [driver, make] of [
  ['ioredis', ioredis],
  ['node-redis', nodeRedis],
] as const) {
  describeWith(['redis'], `${driver} as a client`, () => {
    const connect = (timeout = 5000) => redisOf(make(service('redis').url)).connect({ timeout })

    test('replies are bytes, refusals errors with their kind, and a pipeline answers each', async () => {
      const redis = await connect()
      const key = `drivers:${driver}`
      await redis.command(['set', key, Buffer.from([0xff, 0x00, 0xfe])])
      expect(await redis.command(['get', key])).toEqual(Buffer.from([0xff, 0x00, 0xfe]))
      await expect(redis.command(['lpush', key, 'x'])).rejects.toMatchObject({ code: 'REDIS_ERROR', kind: 'WRONGTYPE' })
      const [one, two, three] = await redis.pipeline([
        ['exists', key],
        ['lpush', key, 'x'],
        ['strlen', key],
      ])
      expect([one, (two as { kind: string }).kind, three]).toEqual([1, 'WRONGTYPE', 3])
      await redis.command(['del', key])
      await redis.close()
    })

    test('a command without an answer in time loses the connection', async () => {
      const redis = await connect(200)
      await expect(redis.command(['blpop', 'drivers:nothing', '0'])).rejects.toMatchObject({ code: 'UNAVAILABLE' })
      expect(redis.lost.aborted).toBe(true)
      await expect(redis.command(['ping'])).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    })

    test('an ended connection is told, and nothing is sent again behind our back', async () => {
      const [victim, other] = [await connect(), await connect()]
      const id = String(await victim.command(['client', 'id']))
      const blocked = victim.command(['blpop', `drivers:${driver}:list`, '0'])
      blocked.catch(() => {})
      await other.command(['client', 'kill', 'ID', id])
      await expect(blocked).rejects.toMatchObject({ code: 'UNAVAILABLE' })
      expect(victim.lost.aborted).toBe(true)
      // Had it been sent again, it would take this.
      await other.command(['rpush', `drivers:${driver}:list`, 'x'])
      expect(await other.command(['llen', `drivers:${driver}:list`])).toBe(1)
      await other.command(['del', `drivers:${driver}:list`])
      await other.close()
    })
  })
}
