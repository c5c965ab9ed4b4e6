import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { fromStructured } from '../../../src/cloudevents/index.ts'
import { DONE } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, receive, until } from './support.ts'

for (const server of ['redis', 'redis6'] as const) {
  describeWith([server], `dead letters of redis streams on ${server}`, () => {
    let admin: Redis
    const broker = (more = {}) => redisStreams({ client: ioredis(service(server).url), ...more })
    beforeAll(() => {
      admin = new Redis(service(server).url)
    })
    afterAll(() => admin.disconnect())

    test('in a stream that streams and groups share, each finds, re-arms and drops its own only', async () => {
      const [a, b, deadLetter] = [fresh(), fresh(), fresh()]
      const mine = broker()
      const both = mine.source({ stream: [a, b], group: 'g', deadLetter, block: 20 })
      const other = mine.source({ stream: a, group: 'other', deadLetter, block: 20 })
      // Entries of equal ids, as two streams may have.
      for (const stream of [a, b]) await admin.xadd(stream, '5-1', 'event', `{"broken": "${stream === a ? 'a' : 'b'}"`)
      const sessions = [await both.open(), await other.open()]
      await until('all are dead letters', async () => {
        for (const session of sessions) await session.take({ count: 10, bytes: 1e8 }, NEVER)
        return (await admin.xlen(deadLetter)) === 3
      })
      const letters = await both.deadLetters()
      expect(letters.map(({ stream, group, entry }) => [stream, group, entry]).sort()).toEqual(
        [a, b].map((stream) => [stream, 'g', '5-1']).sort(),
      )
      const [theirs] = await other.deadLetters()
      expect(theirs).toMatchObject({ stream: a, group: 'other' })
      expect([await both.rearm(theirs!.id), await both.discard(theirs!.id)]).toEqual([false, false])
      // The entry of a is there too, under the same id: it is not the one that is meant.
      expect(await both.rearm(letters.find(({ stream }) => stream === b)!.id)).toBe(true)
      expect((await admin.xpending(a, 'g'))[0]).toBe(0)
      expect((await admin.xpending(b, 'g'))[0]).toBe(1)
      expect([await admin.xlen(a), await admin.xlen(b)]).toEqual([1, 1])
      expect(await both.deadLetters({ count: 1 })).toMatchObject([{ stream: a, group: 'g' }])
      expect(await other.discard(theirs!.id)).toBe(true)
      for (const session of sessions) await session.close()
      await mine.close()
    })

    test('where the key of the dead letters holds something else, those behind what nobody can read are handled', async () => {
      const [stream, letters] = [fresh(), fresh()]
      const mine = broker()
      const source = mine.source({ stream, group: 'g', block: 20, deadLetter: letters })
      await admin.set(letters, 'text')
      await admin.xadd(stream, '*', 'event', 'no JSON')
      const publisher = mine.publisher({ stream })
      await publisher.publish([message(), message()], NEVER)
      const telemetry = recordTelemetry(['warning', 'message.dead'])
      const session = await source.open()
      const taken = await receive(session, 2)
      expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
      await session.take({ count: 1, bytes: 1e6 }, NEVER)
      expect(telemetry.of('warning').map(({ message: text }) => text)).toEqual([
        expect.stringMatching(/its dead letter is refused.*WRONGTYPE/),
      ])
      const pending = async () => ((await admin.xpending(stream, 'g', '-', '+', 1)) as [string, string, number][])[0]!
      const [id, owner] = await pending()
      await admin.call('xclaim', stream, 'g', owner, '0', id, 'IDLE', '3600000', 'JUSTID')
      await session.extend!([])
      expect((await pending())[2], 'it is kept alive').toBeLessThan(3_600_000)
      await admin.del(letters)
      await until('it is buried', async () => {
        await session.take({ count: 1, bytes: 1e6 }, NEVER)
        return telemetry.of('message.dead').length === 1
      })
      telemetry.stop()
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('where one stream’s key of dead letters holds something else, what nobody can read of another is buried', async () => {
      const [a, b] = [fresh(), fresh()]
      const mine = broker()
      const source = mine.source({ stream: [a, b], group: 'g', block: 20 })
      await admin.set(`{${a}}:dead:g`, 'text')
      const session = await source.open()
      const take = () => session.take({ count: 1, bytes: 1e6 }, NEVER)
      const telemetry = recordTelemetry(['warning'])
      await admin.xadd(a, '*', 'event', 'no JSON')
      await until('the first is refused', async () => {
        await take()
        return telemetry.of('warning').length === 1
      })
      await admin.xadd(b, '*', 'event', 'no JSON')
      await until('the other is buried', async () => {
        await take()
        return (await admin.exists(`{${b}}:dead:g`)) === 1
      })
      expect(telemetry.of('warning')).toHaveLength(1)
      telemetry.stop()
      await session.close()
      await mine.close()
    })

    test('an entry of which a decoder makes no message becomes a dead letter alone', async () => {
      const stream = fresh()
      const decode = ({ event }: Readonly<Record<string, Buffer>>) =>
        event === undefined ? (undefined as never) : fromStructured(event)
      const mine = broker({ decode })
      const source = mine.source({ stream, group: 'g', block: 20 })
      await admin.xadd(stream, '*', 'of', 'others')
      const publisher = mine.publisher({ stream })
      const sent = message()
      await publisher.publish([sent], NEVER)
      const session = await source.open()
      const taken = await receive(session, 1)
      expect(taken[0]!.message.id).toBe(sent.id)
      expect(await session.settle([[taken[0]!, DONE]])).toBe(0)
      await until('the other is buried', async () => {
        await session.take({ count: 1, bytes: 1e6 }, NEVER)
        return (await source.deadLetters()).length === 1
      })
      expect(await source.deadLetters()).toMatchObject([
        { reason: expect.stringMatching(/decode returned undefined/), message: undefined },
      ])
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('an entry of thousands of fields becomes a dead letter alone, shown as it was, and re-armed', async () => {
      const stream = fresh()
      const fields = Array.from({ length: 4100 }, (_, n) => [`f${n}`, `value ${n}`]).flat()
      let reads = false
      const decode = (found: Readonly<Record<string, Buffer>>) => {
        if (found['f0'] !== undefined && !reads) throw new Error('too many fields')
        return message('{}', { id: String(found['id'] ?? found['f4099']) })
      }
      const mine = broker({ decode })
      const source = mine.source({ stream, group: 'g', block: 20 })
      await admin.xadd(stream, '*', ...fields)
      await admin.xadd(stream, '*', 'id', 'after')
      const session = await source.open()
      const taken = await receive(session, 1)
      expect(taken[0]!.message.id).toBe('after')
      await session.settle(taken.map((delivery) => [delivery, DONE]))
      await until('it is a dead letter', async () => {
        await session.take({ count: 1, bytes: 1e8 }, NEVER)
        return (await source.deadLetters()).length === 1
      })
      const [letter] = await source.deadLetters()
      expect(Object.keys(letter!.fields)).toHaveLength(4100)
      expect(String(letter!.fields['f4099'])).toBe('value 4099')
      // Its entry is gone, so it is appended anew.
      await admin.xdel(stream, letter!.entry)
      reads = true
      expect(await source.rearm(letter!.id)).toBe(true)
      expect((await receive(session, 1))[0]!.message.id).toBe('value 4099')
      expect(await source.deadLetters()).toEqual([])
      await session.close()
      await mine.close()
    })
  })
}
