import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { DUE, RETURNED } from '../../../src/brokers/redis-streams/scripts.ts'
import { DONE } from '../../../src/flow/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, receive, until } from './support.ts'

for (const server of ['redis', 'redis6'] as const) {
  describeWith([server], `what a session of redis streams claims, on ${server}`, () => {
    let admin: Redis
    beforeAll(() => {
      admin = new Redis(service(server).url)
    })
    afterAll(() => admin.disconnect())

    test('a claim that is refused costs nothing that was claimed before it, and takes nothing itself', async () => {
      const [a, b] = [fresh(), fresh()]
      const mine = redisStreams({ client: ioredis(service(server).url) })
      const publisher = mine.publisher()
      for (const type of [a, b]) {
        await publisher.publish([message('{}', { id: `of ${type}`, type })], NEVER)
        await admin.xgroup('CREATE', type, 'g', '0')
        await admin.xreadgroup('GROUP', 'g', 'dead', 'COUNT', 1, 'STREAMS', type, '>')
      }
      // Where it is noted from whom something was taken over: no takeover from this stream succeeds.
      await admin.set(`{${b}}:taken:g`, 'text')
      const source = mine.source({ stream: [a, b], group: 'g', block: 20, reclaim: { every: 0, idle: 1 } })
      const session = await source.open()
      const seen: string[] = []
      const refusals: unknown[] = []
      const take = async () => {
        const refused = (error: unknown) => {
          refusals.push(error)
          return []
        }
        const taken = await session.take({ count: 10, bytes: 1e6 }, NEVER).catch(refused)
        await session.settle(taken.map((delivery) => [delivery, DONE]))
        seen.push(...taken.map(({ message: { id } }) => id))
      }
      await until('the one is handled, though the other was refused beside it', async () => {
        await take()
        return refusals.length > 0 && seen.length === 1
      })
      expect(refusals[0]).toMatchObject({ kind: 'WRONGTYPE' })
      expect(session.lost.aborted).toBe(false)
      const owners = (await admin.xpending(b, 'g', '-', '+', 1)) as [string, string][]
      expect(owners[0]![1], 'what cannot be noted is not taken').toBe('dead')
      await admin.del(`{${b}}:taken:g`)
      await until('the other follows', async () => {
        await take()
        return seen.length === 2
      })
      expect(seen).toEqual([`of ${a}`, `of ${b}`])
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('a batch of which one is refused and that is settled again gives nothing back twice', async () => {
      const [a, b] = [fresh(), fresh()]
      const mine = redisStreams({ client: ioredis(service(server).url) })
      const publisher = mine.publisher()
      await publisher.publish(
        [a, a, b].map((type) => message('{}', { type })),
        NEVER,
      )
      // No letter can be written.
      for (const stream of [a, b]) await admin.set(`{${stream}}:dead:g`, 'text')
      const session = await mine.source({ stream: [a, b], group: 'g', block: 20 }).open()
      const taken = await receive(session, 3)
      const [again, dead] = taken.filter(({ stream }) => stream.key === a)
      const other = taken.find(({ stream }) => stream.key === b)
      const back = { kind: 'retry', after: 0, error: new Error('no'), charged: false } as const
      const letter = { kind: 'dead', reason: 'no', error: new Error('no') } as const
      const take = () => session.take({ count: 10, bytes: 1e6 }, NEVER)
      const batch = [[again!, back] as const, [other!, letter] as const]
      await expect(session.settle(batch)).rejects.toThrow(/WRONGTYPE/)
      const [held] = await receive(session, 1)
      expect(held!.entry).toBe(again!.entry)
      await expect(session.settle(batch)).rejects.toThrow(/WRONGTYPE/)
      expect(await take(), 'it is in work').toEqual([])
      // Of one stream: it comes again in parts.
      await expect(session.settle([[held!, back] as const, [dead!, letter] as const])).rejects.toThrow(/WRONGTYPE/)
      expect(await take(), 'nothing was given back yet').toEqual([])
      expect(await session.settle([[held!, back]])).toBe(0)
      expect(await receive(session, 1)).toMatchObject([{ entry: again!.entry, attempts: 0 }])
      await expect(session.settle([[dead!, letter]])).rejects.toThrow(/WRONGTYPE/)
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('renewed too late: what nobody else has taken goes on; once others have some of it, the session is lost', async () => {
      const stream = fresh()
      const clock = new FakeClock()
      const client = ioredis(service(server).url)
      const [slow, mine] = [redisStreams({ client, clock }), redisStreams({ client })]
      const publisher = mine.publisher({ stream })
      await publisher.publish([message(), message()], NEVER)
      const session = await slow.source({ stream, group: 'g', block: 20 }).open()
      const held = await receive(session, 2)
      await clock.advance(60_000)
      await session.extend(held)
      expect(session.lost.aborted).toBe(false)
      const heir = await mine.source({ stream, group: 'g', block: 20, reclaim: { every: 0, idle: 1 } }).open()
      await until('another has one', async () => (await heir.take({ count: 1, bytes: 1e6 }, NEVER)).length === 1)
      await session.extend(held)
      expect(session.lost.aborted, 'in time: what it still has is its own').toBe(false)
      await clock.advance(60_000)
      await session.extend(held)
      expect(session.lost.reason).toMatchObject({ code: 'LEASE_EXPIRED' })
      await session.close()
      await heir.close()
      await publisher.close!()
      for (const broker of [slow, mine]) await broker.close()
    })

    test('no more is claimed than there is room for in bytes: of a dead consumer, and of what was given back', async () => {
      const stream = fresh()
      const mine = redisStreams({ client: ioredis(service(server).url) })
      const publisher = mine.publisher({ stream })
      const sent = Array.from({ length: 6 }, (_, n) => message(JSON.stringify('x'.repeat(1e5)), { id: `m${n}` }))
      await publisher.publish(sent, NEVER)
      await admin.xgroup('CREATE', stream, 'g', '0')
      await admin.xreadgroup('GROUP', 'g', 'dead', 'COUNT', 6, 'STREAMS', stream, '>')
      const source = mine.source({ stream, group: 'g', block: 20, reclaim: { every: 0, idle: 1 } })
      const session = await source.open()
      const all: Awaited<ReturnType<typeof session.take>>[number][] = []
      const owned = async () => {
        const [, , , consumers] = (await admin.xpending(stream, 'g')) as [number, string, string, [string, string][]]
        const others = consumers.filter(([name]) => name === 'dead' || name === RETURNED)
        return 6 - others.reduce((sum, [, count]) => sum + Number(count), 0)
      }
      const takeAll = async () => {
        all.splice(0)
        await until('all have come', async () => {
          all.push(...(await session.take({ count: 100, bytes: 150_000 }, NEVER)))
          // One may have come beside those that were given out.
          expect((await owned()) - all.length).toBeLessThanOrEqual(1)
          return all.length === 6
        })
        expect(all.map(({ message: { id } }) => id).sort()).toEqual(sent.map(({ id }) => id))
      }
      await takeAll()
      const again = { kind: 'retry', after: 0, charged: false, error: undefined } as const
      await session.settle(all.map((delivery) => [delivery, again]))
      // As if the clock of Redis went back: that they are due is known here only.
      for (const [id, , , count] of (await admin.xpending(stream, 'g', '-', '+', 6)) as [
        string,
        string,
        number,
        number,
      ][]) {
        await admin.call('xclaim', stream, 'g', RETURNED, '0', id, 'IDLE', String(DUE - 3_600_000), 'RETRYCOUNT', count)
      }
      await takeAll()
      expect(await session.settle(all.map((delivery) => [delivery, DONE]))).toBe(0)
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('a process takes nothing over from one that lives, whose stable name begins as its own does', async () => {
      const stream = fresh()
      const mine = redisStreams({ client: ioredis(service(server).url) })
      const publisher = mine.publisher({ stream })
      await publisher.publish([message()], NEVER)
      const open = (consumer: string) => mine.source({ stream, group: 'g', consumer, block: 20 }).open()
      const first = await open('worker:1')
      const taken = await receive(first, 1)
      const second = await open('worker')
      expect(await second.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
      expect(await first.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
      await first.close()
      await second.close()
      await publisher.close!()
      await mine.close()
    })

    test('a source that removes what is handled: settling is no error once somebody has deleted the stream', async () => {
      const stream = fresh()
      const mine = redisStreams({ client: ioredis(service(server).url) })
      const publisher = mine.publisher({ stream })
      await publisher.publish([message()], NEVER)
      const session = await mine.source({ stream, group: 'g', block: 20, remove: true }).open()
      const taken = await session.take({ count: 1, bytes: 1e6 }, NEVER)
      await admin.del(stream)
      expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(1)
      await session.close()
      await publisher.close!()
      await mine.close()
    })
  })
}
