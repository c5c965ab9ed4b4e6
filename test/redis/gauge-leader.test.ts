import { expect, test } from 'vitest'
import { redisOf } from '../../src/drivers/redis/recognise.ts'
import { ReconnectingRedis } from '../../src/drivers/redis/reconnecting.ts'
import { GaugeLeader } from '../../src/redis/gauge-leader.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { describeWith, service } from '../support/services.ts'
import { ioredis } from './support.ts'

describeWith(['redis'], 'who reports for an outbox on Redis', () => {
  test('whoever leads stops counting on it well before its key runs out; then another may', async () => {
    const clock = new FakeClock()
    const redis = new ReconnectingRedis(redisOf(ioredis(service('redis').url)), { timeout: 10_000, name: 'test' })
    const base = `{leader-${process.pid}}:outbox`
    try {
      const [first, second] = [new GaugeLeader(60_000, clock), new GaugeLeader(60_000, clock)]
      await first.renew(base, redis)
      await second.renew(base, redis)
      expect([first.leads, second.leads]).toEqual([true, false])
      await clock.advance(53_000)
      expect(first.leads).toBe(true)
      await clock.advance(2000)
      expect(first.leads).toBeUndefined()
      await first.renew(base, redis)
      await first.leave(base, redis)
      await second.renew(base, redis)
      expect(second.leads).toBe(true)
      await second.leave(base, redis)
    } finally {
      await redis.close()
    }
  })

  test('whoever was suspended for too long and stops leaves the key to the one that has taken over', async () => {
    const clock = new FakeClock()
    const redis = new ReconnectingRedis(redisOf(ioredis(service('redis').url)), { timeout: 10_000, name: 'test' })
    const base = `{leader-late-${process.pid}}:outbox`
    const [first, second, third] = [60_000, 60_000, 60_000].map((lease) => new GaugeLeader(lease, clock))
    try {
      await first!.renew(base, redis)
      await clock.advance(61_000)
      // What time does to the key.
      await redis.command(['del', `${base}:leader`])
      await second!.renew(base, redis)
      await first!.leave(base, redis)
      await third!.renew(base, redis)
      expect([second!.leads, third!.leads]).toEqual([true, false])
      await second!.leave(base, redis)
    } finally {
      await redis.close()
    }
  })
})
