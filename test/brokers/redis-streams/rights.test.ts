import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { event, Reject } from '../../../src/core/index.ts'
import { Router } from '../../../src/router/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, nodeRedis } from './support.ts'

const guide = readFileSync(new URL('../../../docs/guides/redis-streams.md', import.meta.url), 'utf8')
const rights = /^With ACLs: `([^`]+)`/m.exec(guide)![1]!.split(/\s+/)
const Placed = event('thing.happened')

describeWith(['redis', 'redis6'], 'the rights of the guide', () => {
  const drivers = { ioredis, nodeRedis }
  test.each([
    ['redis', 'ioredis'],
    ['redis', 'nodeRedis'],
    ['redis6', 'ioredis'],
    ['redis6', 'nodeRedis'],
  ] as const)(
    'are enough on %s with %s: to publish, handle, give up, re-arm, discard, look and trim',
    async (server, driver) => {
      const [stream, user] = [fresh('orders'), fresh('user')]
      const admin = ioredis(service(server).url)
      await admin.call('ACL', 'SETUSER', user, 'on', '>pw', ...rights.map((one) => one.replaceAll('orders', stream)))
      const url = new URL(service(server).url)
      url.username = user
      url.password = 'pw'
      const broker = redisStreams({ client: drivers[driver](url.href) })
      const source = broker.source({ stream, group: 'billing' })
      const refusing = new Router('billing').on(Placed, () => {
        throw new Reject('no')
      })
      const consumer = refusing.consume(source)
      const trimmer = broker.trimmer({ stream })
      try {
        expect(await broker.publisher({ stream }).publish([message()], NEVER)).toEqual([{ kind: 'ok' }])
        expect(await consumer.runOnce()).toMatchObject({ dead: 1 })
        const [letter] = await source.deadLetters()
        await source.rearm(letter!.id)
        expect(await consumer.runOnce()).toMatchObject({ dead: 1 })
        const [again] = await source.deadLetters()
        await source.discard(again!.id)
        expect(await source.stats()).toMatchObject([{ stream, unsettled: 0, dead: 0 }])
        await trimmer.runOnce()
      } finally {
        for (const worker of [consumer, trimmer]) await worker.stop()
        await broker.close()
        await admin.call('ACL', 'DELUSER', user)
        admin.disconnect()
      }
    },
  )
})
