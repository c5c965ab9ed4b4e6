import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { DUE, RETURNED } from '../../../src/brokers/redis-streams/scripts.ts'
import { DONE, Flow } from '../../../src/flow/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'
import { listening } from '../../support/listening.ts'
import { admin as adminOf, standalone } from '../../support/redis-topologies.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, receive, until } from './support.ts'

for (const server of ['redis', 'redis6'] as const) {
  describeWith([server], `groups of redis streams on ${server}`, () => {
    let admin: Redis
    const broker = (more = {}) => redisStreams({ client: ioredis(service(server).url), ...more })
    beforeAll(() => {
      admin = new Redis(service(server).url)
    })
    afterAll(() => admin.disconnect())

    test('by default: 10 entries a read, which waits 1 s; every 30 s what was let lie for 60 s', async () => {
      const stream = fresh()
      const clock = new FakeClock()
      const { client, said } = listening(ioredis(service(server).url))
      const mine = redisStreams({ client, clock })
      const publisher = broker().publisher({ stream })
      const session = await mine.source({ stream, group: 'g' }).open()
      const handleOne = async () => {
        said.splice(0)
        await publisher.publish([message()], NEVER)
        await session.settle((await receive(session, 1)).map((delivery) => [delivery, DONE]))
        // Group, me, returned, base, idle, charge, limit, owner: '' is everybody.
        return said.filter(([name, ...args]) => name === 'claim' && args[7] === '').map((args) => args[5])
      }
      await publisher.publish([message()], NEVER)
      const taken = await session.take({ count: 100, bytes: 1e8 }, NEVER)
      await session.settle(taken.map((delivery) => [delivery, DONE]))
      const read = said.filter(([name]) => name === 'xreadgroup').map((args) => args.slice(4, 8).join(' '))
      expect(new Set(read)).toEqual(new Set(['COUNT 10 BLOCK 1000']))
      expect(said.filter(([name, ...args]) => name === 'claim' && args[7] === '')).toMatchObject([{ 5: '60000' }])
      expect(session.extendEvery).toBe(20_000)
      await clock.advance(29_999)
      expect(await handleOne()).toEqual([])
      await clock.advance(1)
      expect(await handleOne()).toEqual(['60000'])
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('a group begins with all there is, with what comes, or behind an id', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const publish = (id: string) => publisher.publish([message('{}', { id })], NEVER)
      for (const id of ['a', 'b', 'c']) await publish(id)
      const [, second] = (await admin.xrange(stream, '-', '+')) as [string, string[]][]
      const starts = { '0': ['a', 'b', 'c', 'd'], $: ['d'], [second![0]]: ['c', 'd'] }
      const sessions = []
      for (const start of Object.keys(starts)) {
        sessions.push(await mine.source({ stream, group: `from ${start}`, start, block: 20 }).open())
      }
      await publish('d')
      for (const [i, expected] of Object.values(starts).entries()) {
        const taken = await receive(sessions[i]!, expected.length)
        expect(taken.map(({ message: { id } }) => id)).toEqual(expected)
        await sessions[i]!.close()
      }
      expect(() => mine.source({ stream, group: 'g', start: 'now' })).toThrow(/start: "now" is not allowed/)
      await publisher.close!()
      await mine.close()
    })

    test('a group that begins with what comes, and is destroyed: nothing is missed, and that is what is said', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      await publisher.publish([message('{}', { id: 'before' })], NEVER)
      const seen = new Set<string>()
      const source = mine.source({ stream, group: 'g', start: '$', block: 20 })
      const step = { each: ({ message: { id } }: { message: { id: string } }) => void seen.add(id) }
      const flow = new Flow({ name: stream, from: source, step, outage: { min: 100, max: 100 } })
      const told = recordTelemetry(['warning', 'flow.opened'])
      await flow.start()
      await until('it reads', () => told.of('flow.opened').length === 1)
      for (let n = 0; n < 60; n++) {
        if (n === 20) await admin.xgroup('DESTROY', stream, 'g')
        await publisher.publish([message('{}', { id: `m${n}` })], NEVER)
      }
      await until('all are handled', () => seen.size === 60)
      await flow.stop()
      told.stop()
      expect(seen.has('before')).toBe(false)
      const warnings = told.of('warning').map((warning) => warning.message)
      expect(warnings).toEqual([expect.stringMatching(/group g.*reads on from where all was settled/)])
      await publisher.close!()
      await mine.close()
    })

    test('what waits for its retry comes when it is due here, also when the clock of Redis went back', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const session = await mine.source({ stream, group: 'g', block: 20 }).open()
      await publisher.publish([message('{}', { id: 'a' })], NEVER)
      const taken = await receive(session, 1)
      const retry = { kind: 'retry', after: 300, charged: true, error: undefined } as const
      await session.settle(taken.map((delivery) => [delivery, retry]))
      const { entry } = taken[0]!
      // As an hour back: it has been idle for less.
      await admin.call('xclaim', stream, 'g', RETURNED, '0', entry, 'IDLE', String(DUE - 3_600_000), 'RETRYCOUNT', '2')
      expect((await receive(session, 1, 10_000))[0]).toMatchObject({ entry, attempts: 1 })
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('the clock of Redis went back: told once, and the trimmer removes what is handled all the same', async () => {
      const stream = fresh()
      const mine = broker()
      // What a source sees of the server's clock, it compares with its own.
      const clock = new FakeClock()
      const slow = broker({ clock })
      const warnings = recordTelemetry(['warning'])
      const source = slow.source({ stream, group: 'g', block: 20 })
      await (await source.open()).close()
      await clock.advance(60_000)
      await (await source.open()).close()
      await clock.advance(1000)
      await (await source.open()).close()
      const told = warnings.of('warning').map(({ message }) => message)
      warnings.stop()
      expect(told.filter((text) => text.includes('the clock of Redis went back'))).toEqual([
        expect.stringMatching(/went back by (59|60) s: entries of consumers that died/),
      ])
      // Written an hour ahead of what the clock says now.
      await admin.call('xadd', stream, `${Date.now() + 3_600_000}-5`, 'no', 'event')
      const reading = mine.source({ stream, group: 'g', block: 20 })
      const session = await reading.open()
      await until('it is buried', async () => {
        await session.take({ count: 1, bytes: 1e6 }, NEVER)
        const [stats] = await reading.stats()
        return stats!.dead === 1 && stats!.lag === 0 && stats!.unsettled === 0
      })
      await session.close()
      expect(await mine.trimmer({ stream, keep: 1000 }).runOnce(), 'it is younger than that').toBe(0)
      expect(await mine.trimmer({ stream }).runOnce()).toBe(1)
      await mine.close()
      await slow.close()
    })

    test('while the entries of a dead consumer are taken over, new ones are handled beside them', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const old = Array.from({ length: 1000 }, (_, n) => message('{}', { id: `old ${n}` }))
      await publisher.publish(old, NEVER)
      await admin.xgroup('CREATE', stream, 'g', '0')
      await admin.xreadgroup('GROUP', 'g', 'dead', 'COUNT', 1000, 'STREAMS', stream, '>')
      const seen: string[] = []
      const source = mine.source({ stream, group: 'g', block: 10, reclaim: { every: 50, idle: 500 } })
      const step = {
        each: async ({ message: { id } }: { message: { id: string } }) => {
          seen.push(id)
          await new Promise((resolve) => setTimeout(resolve, 2))
        },
      }
      const flow = new Flow({ name: stream, from: source, step, concurrency: 4 })
      await flow.start()
      // Long enough that no read from before is under way.
      await until('it takes over', () => seen.length > 200)
      await publisher.publish([message('{}', { id: 'new' })], NEVER)
      const then = seen.length
      await until('the new one is handled', () => seen.includes('new'))
      // Not behind all the others.
      expect(seen.indexOf('new') - then).toBeLessThan(400)
      await until('all are handled', () => new Set(seen).size === 1001)
      await flow.stop()
      await publisher.close!()
      await mine.close()
    })

    test('a stream that cannot be trimmed does not let the others grow', async () => {
      const [wrong, stream] = [fresh(), fresh()]
      const mine = broker()
      await admin.set(wrong, 'no stream')
      await admin.xadd(stream, '*', 'f', 'v')
      await admin.xgroup('CREATE', stream, 'g', '$')
      await expect(mine.trimmer({ stream: [wrong, stream] }).runOnce()).rejects.toThrow(/WRONGTYPE/)
      expect(await admin.xlen(stream)).toBe(0)
      await mine.close()
    })

    describe('publishers', () => {
      test('maxLen trims to about so many, or exactly where asked', async () => {
        const mine = broker()
        const lengths = []
        for (const exact of [false, true]) {
          const stream = fresh()
          const publisher = mine.publisher({ stream, maxLen: 150, exact, acceptLoss: true })
          for (let n = 0; n < 2; n++)
            await publisher.publish(
              Array.from({ length: 300 }, () => message()),
              NEVER,
            )
          lengths.push(await admin.xlen(stream))
          await publisher.close!()
        }
        expect(lengths[0]).toBeGreaterThanOrEqual(150)
        expect(lengths[0]).toBeLessThan(600)
        expect(lengths[1]).toBe(150)
        expect(() => mine.publisher({ exact: true })).toThrow(/exact has no effect without maxLen/)
      })

      test('the version of an event arrives', async () => {
        const stream = fresh()
        const mine = broker()
        const publisher = mine.publisher({ stream })
        await publisher.publish([message('{}', { type: 'thing.moved', extensions: { eventversion: 3 } })], NEVER)
        const [[, fields]] = (await admin.xrange(stream, '-', '+')) as [[string, string[]]]
        expect(JSON.parse(fields[1]!)).toMatchObject({ type: 'thing.moved', eventversion: 3 })
        const session = await mine.source({ stream, group: 'g', block: 20 }).open()
        expect((await receive(session, 1))[0]!.message.version).toBe(3)
        await session.close()
        await publisher.close!()
        await mine.close()
      })

      test('a batch of more words than one command takes arrives in several', async () => {
        const stream = fresh()
        const fields = Object.fromEntries(Array.from({ length: 3400 }, (_, n) => [n, '']))
        const mine = broker({ encode: () => fields })
        const publisher = mine.publisher({ stream })
        const outcomes = await publisher.publish(
          Array.from({ length: 160 }, () => message()),
          NEVER,
        )
        expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['ok']))
        expect(await admin.xlen(stream)).toBe(160)
        await admin.del(stream)
        await publisher.close!()
        await mine.close()
      })

      test('an encoder that gives more fields than can be appended costs nobody but its message', async () => {
        const stream = fresh()
        const many = Object.fromEntries(Array.from({ length: 4100 }, (_, n) => [`f${n}`, 'v']))
        const mine = broker({ encode: ({ id }: { id: string }) => (id === 'many' ? many : { id }) })
        const publisher = mine.publisher({ stream })
        const batch = ['a', 'many', 'b'].map((id) => message('{}', { id }))
        const outcomes = await publisher.publish(batch, NEVER)
        expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'rejected', 'ok'])
        await publisher.close!()
        await mine.close()
      })
    })
  })
}

describeWith(['redis'], 'a consumer group where memory is full', () => {
  test('one that is there is read and acknowledged', async () => {
    const node = await standalone()
    const stream = fresh()
    const mine = redisStreams({ client: ioredis(node.url) })
    const publisher = mine.publisher({ stream })
    const source = mine.source({ stream, group: 'g', block: 20 })
    await (await source.open()).close()
    await publisher.publish([message()], NEVER)
    await adminOf(node).config('SET', 'maxmemory', '1')
    const session = await source.open()
    const taken = await receive(session, 1)
    await session.extend!(taken)
    expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
    await session.close()
    await publisher.close!()
    await mine.close()
  })

  test('an entry that nobody can read does not stop those behind it, whose removal frees memory', async () => {
    const node = await standalone()
    const stream = fresh()
    const mine = redisStreams({ client: ioredis(node.url) })
    const publisher = mine.publisher({ stream })
    const source = mine.source({ stream, group: 'g', block: 20, remove: true })
    await adminOf(node).xadd(stream, '*', 'event', 'no JSON')
    await publisher.publish([message(), message()], NEVER)
    await adminOf(node).xgroup('CREATE', stream, 'g', '0')
    await adminOf(node).config('SET', 'maxmemory', '1')
    const session = await source.open()
    const taken = await receive(session, 2)
    expect(await session.settle(taken.map((delivery) => [delivery, DONE]))).toBe(0)
    await session.close()
    expect(await source.deadLetters()).toHaveLength(1)
    expect(await adminOf(node).xlen(stream)).toBe(0)
    await publisher.close!()
    await mine.close()
  })
})
