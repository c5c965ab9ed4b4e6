import { beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { DONE } from '../../../src/flow/index.ts'
import { admin, datasetOf, type RedisNode, type RedisVersion, standalone } from '../../support/redis-topologies.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, receive } from './support.ts'

for (const version of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([version], `redis streams in a long run on ${version}`, () => {
    let server: RedisNode
    beforeAll(async () => {
      // Rewriting the append-only file, from 64 MB on, takes 10 MB and more for a moment, before 7.0.
      server = await standalone({ 'auto-aof-rewrite-percentage': '0' }, version)
    })
    const memory = async () => datasetOf(await admin(server).info('memory'))

    for (const how of ['remove', 'trimmer'] as const) {
      test(`memory stays bounded with ${how}, also when sessions come and go`, async () => {
        const stream = fresh()
        const broker = redisStreams({ client: ioredis(server.url) })
        const publisher = broker.publisher({ stream })
        const trimmer = broker.trimmer({ stream })
        const options = { stream, batch: 500, block: 20, remove: how === 'remove' }
        const round = async (size: number) => {
          const source = broker.source({ ...options, group: 'g' })
          const session = await source.open()
          await publisher.publish(
            Array.from({ length: size }, () => message(JSON.stringify({ note: 'x'.repeat(500) }))),
            NEVER,
          )
          const taken = await receive(session, size)
          // Some are tried again, and some given up and discarded.
          const [first, second, ...others] = taken
          await session.settle([
            [first!, { kind: 'retry', after: 0, charged: true, error: undefined }],
            [second!, { kind: 'dead', reason: 'no', error: undefined }],
            ...others.map((delivery) => [delivery, DONE] as const),
          ])
          await session.settle((await receive(session, 1)).map((delivery) => [delivery, DONE]))
          for (const { id } of await source.deadLetters()) await source.discard(id)
          await session.close()
          if (how === 'trimmer') await trimmer.runOnce()
        }
        for (let i = 0; i < 3; i++) await round(500)
        const [before, keys] = [await memory(), await admin(server).dbsize()]
        for (let i = 0; i < scale({ test: 15, full: 100, torture: 2000 }); i++) await round(500)
        expect(await admin(server).xlen(stream)).toBe(0)
        expect(await admin(server).dbsize()).toBe(keys)
        // All of it would be 5 MB and more.
        expect((await memory()) - before).toBeLessThan(1_500_000)
        const consumers = (await admin(server).xinfo('CONSUMERS', stream, 'g')) as unknown[]
        expect(consumers.length, 'whoever leaves is no member any more').toBeLessThanOrEqual(1)
        await publisher.close!()
        await broker.close()
      })
    }

    test('the lag is exact up to a limit where the server does not know it, and entries that are gone are not counted', async () => {
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(server.url) })
      const publisher = broker.publisher({ stream })
      const source = broker.source({ stream, group: 'g', block: 20 })
      const session = await source.open()
      await publisher.publish(
        Array.from({ length: 1501 }, () => message()),
        NEVER,
      )
      await receive(session, 1)
      await session.close()
      const entries = (await admin(server).xrange(stream, '-', '+')) as [string, string[]][]
      await admin(server).xdel(stream, entries[700]![0], entries[900]![0])
      const stats = async () => {
        const [{ lag, unsettled, waiting, lagIsAtLeast }] = (await source.stats()) as [
          Awaited<ReturnType<typeof source.stats>>[0],
        ]
        return { behind: lag! + unsettled + waiting, lagIsAtLeast }
      }
      expect(await stats()).toEqual({ behind: 1499, lagIsAtLeast: false })
      await publisher.publish(
        Array.from({ length: 12_000 }, () => message()),
        NEVER,
      )
      const { behind, lagIsAtLeast } = await stats()
      if (lagIsAtLeast) {
        expect(behind).toBeGreaterThanOrEqual(10_000)
        expect(behind).toBeLessThanOrEqual(13_499)
      } else expect(behind).toBe(13_499)
      await publisher.close!()
      await broker.close()
    })
  })
}
