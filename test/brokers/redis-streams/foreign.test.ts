import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { DONE } from '../../../src/flow/index.ts'
import { clone, clones } from '../../support/redis-clone.ts'
import type { RedisVersion } from '../../support/redis-topologies.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, nodeRedis, receive } from './support.ts'

for (const version of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([version], `redis streams beside consumers of other programs on ${version}`, () => {
    let admin: Redis
    beforeAll(() => {
      admin = new Redis(service(version).url)
    })
    afterAll(() => admin.disconnect())

    const pendingOf = async (stream: string) =>
      ((await admin.xpending(stream, 'g', '-', '+', 10)) as [string, string][]).map(([id, owner]) => [id, owner])

    test('what they claim from us we neither keep alive nor give back, and what we have handled stays handled', async () => {
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(service(version).url) })
      const publisher = broker.publisher({ stream })
      const session = await broker.source({ stream, group: 'g', block: 20 }).open()
      await publisher.publish([message(), message(), message()], NEVER)
      const [done, retried, dead] = await receive(session, 3)
      const taken = [done!, retried!, dead!]
      // As other libraries do it: no note, no script.
      for (const { entry } of taken) await admin.xclaim(stream, 'g', 'foreigner', 0, entry)
      await session.extend(taken)
      expect(await pendingOf(stream)).toEqual(taken.map(({ entry }) => [entry, 'foreigner']))
      const retry = { kind: 'retry', after: 0, charged: true, error: undefined } as const
      const stale = await session.settle([
        [done!, DONE],
        [retried!, retry],
        [dead!, { kind: 'dead', reason: 'no', error: undefined }],
      ])
      expect(stale).toBe(2)
      expect(await pendingOf(stream), 'what was not handled is still theirs').toEqual([
        [retried!.entry, 'foreigner'],
        [dead!.entry, 'foreigner'],
      ])
      expect(await broker.source({ stream, group: 'g' }).deadLetters()).toEqual([])
      await session.close()
      await publisher.close!()
      await broker.close()
    })

    test('what one of them read and never acknowledged is taken over when it has been idle for long enough', async () => {
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(service(version).url) })
      const publisher = broker.publisher({ stream })
      const sent = [message(), message()]
      await publisher.publish(sent, NEVER)
      await admin.xgroup('CREATE', stream, 'g', '0')
      await admin.xreadgroup('GROUP', 'g', 'foreigner', 'COUNT', 10, 'STREAMS', stream, '>')
      const source = broker.source({ stream, group: 'g', block: 20, reclaim: { every: 20, idle: 200 } })
      const session = await source.open()
      const taken = await receive(session, 2)
      expect(taken.map(({ message: { id }, attempts }) => [id, attempts])).toEqual(sent.map(({ id }) => [id, 1]))
      await session.settle(taken.map((delivery) => [delivery, DONE]))
      expect(await pendingOf(stream)).toEqual([])
      await session.close()
      await publisher.close!()
      await broker.close()
    })

    test('they read what we publish as CloudEvents JSON', async () => {
      const stream = fresh()
      const publisher = redisStreams({ client: ioredis(service(version).url) }).publisher({ stream })
      await publisher.publish([message('{"n":1}', { id: 'x', key: 'k' })], NEVER)
      const [[, fields]] = (await admin.xrange(stream, '-', '+')) as [[string, string[]]]
      expect(fields[0]).toBe('event')
      const attributes = { specversion: '1.0', id: 'x', source: '/test', type: 'thing.happened', partitionkey: 'k' }
      expect(JSON.parse(fields[1]!)).toEqual({ ...attributes, data: { n: 1 } })
      await publisher.close!()
    })
  })
}

describe('redis streams on what is no Redis, or an old one', () => {
  for (const [what, { says, answer }] of Object.entries(clones)) {
    for (const [driver, client] of [
      ['ioredis', ioredis],
      ['node-redis', nodeRedis],
    ] as const) {
      test(`${what}: one clear error, for source and publisher (${driver})`, async () => {
        const { url, close } = await clone(answer)
        const broker = redisStreams({ client: client(url) })
        const refusal = { code: 'UNSUPPORTED_SERVER', message: expect.stringMatching(says) }
        await expect(broker.source({ stream: 's', group: 'g' }).open()).rejects.toMatchObject(refusal)
        const publisher = broker.publisher({ stream: 's' })
        await expect(publisher.publish([message()], NEVER)).rejects.toMatchObject(refusal)
        await publisher.close!()
        await broker.close()
        close()
      })
    }
  }
})
