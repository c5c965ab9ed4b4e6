import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { Message, systemClock } from '../../../src/core/index.ts'
import { connectionOf } from '../../../src/drivers/redis/connection.ts'
import type { RedisClient } from '../../../src/drivers/redis/redis.ts'
import { DONE, Flow, setTopic } from '../../../src/flow/index.ts'
import { type OutboxReader, Relay } from '../../../src/outbox/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { samples } from '../../../src/testing/outbox-probe.ts'
import { outboxOn } from '../../redis/outbox-support.ts'
import { standalone } from '../../support/redis-topologies.ts'
import { describeWith, service } from '../../support/services.ts'
import { fresh, ioredis, message, NEVER, receive, until } from './support.ts'

for (const server of ['redis', 'redis6']) {
  describeWith([server], `redis streams and bad input on ${server}`, () => {
    let admin: Redis
    const client = () => ioredis(service(server).url)
    const broker = (more = {}) => redisStreams({ client: client(), ...more })
    beforeAll(() => {
      admin = new Redis(service(server).url)
    })
    afterAll(() => admin.disconnect())

    test('undecodable entries go to the dead letters alone, with fields and reason, and can be read there', async () => {
      const stream = fresh()
      const [good, other] = [message('{"n":"good"}'), message()]
      const mine = broker()
      const publisher = mine.publisher({ stream })
      await publisher.publish([good], NEVER)
      await admin.xadd(stream, '*', 'event', '{"not":"an event"')
      await admin.xadd(stream, '*', 'something', 'else')
      await admin.xadd(stream, '*', 'event', Buffer.from([0x7b, 0xff, 0x7d]))
      await admin.xadd(stream, '*', 'event', '{"specversion":"1.0","id":"x"}')
      await publisher.publish([other], NEVER)
      const telemetry = recordTelemetry(['message.dead'])
      const source = mine.source({ stream, group: 'g', block: 20 })
      const session = await source.open()
      const taken = await receive(session, 2)
      while ((await source.deadLetters()).length < 4) await session.take({ count: 10, bytes: 1e6 }, NEVER)
      expect(taken.map((delivery) => delivery.message.id)).toEqual([good.id, other.id])
      const letters = await source.deadLetters()
      expect(letters).toHaveLength(4)
      expect(telemetry.of('message.dead')).toHaveLength(4)
      telemetry.stop()
      expect(letters[0]!.reason).toMatch(/well-formed JSON/)
      expect(letters[1]!.reason).toMatch(/no field "event"/)
      expect(letters[1]!.fields['something']!.toString()).toBe('else')
      expect(letters[2]!.fields['event']).toEqual(Buffer.from([0x7b, 0xff, 0x7d]))
      expect(letters.map((letter) => letter.message)).toEqual([undefined, undefined, undefined, undefined])
      expect(letters[0]).toMatchObject({ stream, group: 'g', attempts: 0 })
      await session.close()
      await publisher.close!()
    })

    test('a dead letter is re-armed for its group alone, and discarded for good', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const source = mine.source({ stream, group: 'g', block: 20 })
      const bystander = await mine.source({ stream, group: 'other', block: 20 }).open()
      const session = await source.open()
      const sent = [message(), message()]
      await publisher.publish(sent, NEVER)
      await receive(bystander, 2)
      const taken = await receive(session, 2)
      await session.settle(taken.map((delivery) => [delivery, { kind: 'dead', reason: 'no', error: undefined }]))
      const [first, second] = await source.deadLetters()
      expect([first!.message?.id, second!.message?.id]).toEqual(sent.map(({ id }) => id))
      expect(await source.rearm(first!.id)).toBe(true)
      expect(await source.rearm(first!.id)).toBe(false)
      expect(await source.discard(second!.id)).toBe(true)
      expect(await source.deadLetters()).toEqual([])
      const again = await receive(session, 1)
      expect(again.map(({ message: { id }, attempts }) => [id, attempts])).toEqual([[sent[0]!.id, 0]])
      expect(await bystander.take({ count: 10, bytes: 1e6 }, NEVER)).toEqual([])
      await session.close()
      await bystander.close()
      await publisher.close!()
      await mine.close()
    })

    test('a key of another type is one clear error, for a source', async () => {
      const stream = fresh()
      await admin.hset(stream, 'a', '1')
      await expect(broker().source({ stream, group: 'g' }).open()).rejects.toThrow(/holds a hash, not a stream/)
      // The one that is wrong need not be the first.
      const source = broker().source({ stream: [fresh(), stream], group: 'g' })
      const flow = new Flow({ name: stream, from: source, step: { each: () => {} } })
      await expect(flow.start()).rejects.toMatchObject({ code: 'WRONG_KEY_TYPE' })
    })

    test('a publisher whose stream is of another type is down; chosen by message it fails those alone', async () => {
      const [wrong, right] = [fresh(), fresh()]
      await admin.hset(wrong, 'a', '1')
      const mine = broker()
      const byMessage = mine.publisher()
      const batch = [wrong, right].map((type) => message('{}', { type }))
      expect(await byMessage.publish(batch, NEVER)).toMatchObject([
        { kind: 'failed', error: { kind: 'WRONGTYPE' } },
        { kind: 'ok' },
      ])
      const { outbox } = outboxOn(client())
      const events = samples(5)
      await outbox.enqueueAlone(events)
      const retry = { attempts: 2, backoff: { min: 1, max: 1, jitter: 0 } }
      const relay = new Relay({
        from: outbox as OutboxReader,
        to: mine.publisher({ stream: wrong }),
        retry,
        outage: { min: 10, max: 20 },
      })
      await relay.start()
      await until('it says so', () => /WRONGTYPE/.test(relay.status().reason ?? ''))
      expect(relay.status().state).toBe('paused')
      await admin.del(wrong)
      await until('all have arrived', async () => (await admin.xlen(wrong)) === 5)
      await until('and are settled', async () => (await outbox.admin.stats()).states.published.count === 5)
      await relay.stop()
      expect((await outbox.admin.list()).map(({ attempts }) => attempts)).toEqual([0, 0, 0, 0, 0])
      await mine.close()
    })

    for (const what of ['group', 'stream'] as const) {
      test(`the ${what} is deleted while running: told, made again, and the flow goes on`, async () => {
        const stream = fresh()
        const mine = broker()
        const publisher = mine.publisher({ stream })
        const seen: string[] = []
        const telemetry = recordTelemetry(['warning'])
        const flow = new Flow({
          name: 'deleted',
          from: mine.source({ stream, group: 'g', block: 20 }),
          step: { each: ({ message: { id } }) => void seen.push(id) },
          outage: { min: 10, max: 50 },
        })
        await flow.start()
        const arrives = async (one: Message<string | Uint8Array>) => {
          await publisher.publish([one], NEVER)
          for (const end = performance.now() + 10_000; !seen.includes(one.id); await systemClock.sleep(10)) {
            expect(performance.now()).toBeLessThan(end)
          }
        }
        await arrives(message())
        if (what === 'group') await admin.xgroup('DESTROY', stream, 'g')
        else await admin.del(stream)
        await arrives(message())
        await flow.stop()
        expect(telemetry.of('warning').map((warning) => warning.message)).toContainEqual(
          expect.stringMatching(/was deleted .*is made again/),
        )
        telemetry.stop()
        await publisher.close!()
      })
    }

    test('entries trimmed before they were handled are acknowledged away and told as lost', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      await publisher.publish([message(), message(), message()], NEVER)
      const options = { stream, group: 'g', block: 20 }
      const holder = await mine.source({ ...options, reclaim: { idle: '10m' } }).open()
      await receive(holder, 3)
      const entries = await admin.xrange(stream, '-', '+')
      await admin.xdel(stream, entries[0]![0], entries[1]![0])
      const telemetry = recordTelemetry(['warning'])
      const source = mine.source({ ...options, reclaim: { every: 0, idle: 1 } })
      const session = await source.open()
      const taken = await receive(session, 1)
      expect(taken.map(({ entry }) => entry)).toEqual([entries[2]![0]])
      const told = telemetry.of('warning').map((warning) => warning.message)
      expect(told).toContainEqual(
        expect.stringMatching(new RegExp(`2 entries of ${stream} .* lost: ${entries[0]![0]}`)),
      )
      telemetry.stop()
      expect((await source.stats())[0]).toMatchObject({ unsettled: 1, length: 1 })
      await session.close()
      await holder.close()
      await publisher.close!()
      await mine.close()
    })

    test('an entry whose consumers die again and again is given up', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      await publisher.publish([message()], NEVER)
      const source = mine.source({ stream, group: 'g', maxCrashes: 2, block: 20, reclaim: { every: 0, idle: 1 } })
      const attempts: number[] = []
      const sessions = []
      for (let i = 0; i < 2; i++) {
        const session = await source.open()
        sessions.push(session)
        attempts.push(...(await receive(session, 1)).map((delivery) => delivery.attempts))
      }
      expect(attempts).toEqual([0, 1])
      const last = await source.open()
      sessions.push(last)
      while ((await source.deadLetters()).length === 0) {
        expect(await last.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
      }
      expect(await source.deadLetters()).toMatchObject([{ attempts: 2, reason: expect.stringMatching(/CRASHED/) }])
      for (const session of sessions) await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('the trimmer deletes what every group has handled and nothing else', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const sent = Array.from({ length: 10 }, () => message())
      await publisher.publish(sent, NEVER)
      const trimmer = mine.trimmer({ stream })
      expect(await trimmer.runOnce(), 'without a group nobody has handled anything').toBe(0)
      const fast = await mine.source({ stream, group: 'fast', block: 20 }).open()
      const slow = await mine.source({ stream, group: 'slow', block: 20 }).open()
      const all = await receive(fast, 10)
      await fast.settle(all.map((delivery) => [delivery, DONE]))
      expect(await trimmer.runOnce()).toBe(0)
      const some = await receive(slow, 6)
      await slow.settle(some.filter((_, i) => i !== 3).map((delivery) => [delivery, DONE]))
      expect(await trimmer.runOnce(), 'up to the one that is pending').toBe(3)
      await slow.settle([[some[3]!, DONE]])
      expect(await trimmer.runOnce(), 'up to what the slow one was given last').toBe(3)
      const rest = await receive(slow, 4)
      expect(rest.map(({ message: { id } }) => id)).toEqual(sent.slice(6).map(({ id }) => id))
      await slow.settle(rest.map((delivery) => [delivery, DONE]))
      const keeping = mine.trimmer({ stream, keep: '1h' })
      expect(await keeping.runOnce()).toBe(0)
      expect(await trimmer.runOnce()).toBe(4)
      expect(await admin.xlen(stream)).toBe(0)
      for (const session of [fast, slow]) await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('what is handled is removed where asked for, unless another group reads the stream', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const source = mine.source({ stream, group: 'forwarder', remove: true, block: 20 })
      const session = await source.open()
      const handle = async () => {
        await publisher.publish([message()], NEVER)
        const taken = await receive(session, 1)
        await session.settle(taken.map((delivery) => [delivery, DONE]))
      }
      await handle()
      expect(await admin.xlen(stream)).toBe(0)
      await admin.xgroup('CREATE', stream, 'another', '0')
      await handle()
      expect(await admin.xlen(stream)).toBe(1)
      await session.close()
      await publisher.close!()
    })

    test('lag, pending and age are told, on a server that does not know the lag too', async () => {
      const stream = fresh()
      const mine = broker()
      const publisher = mine.publisher({ stream })
      const source = mine.source({ stream, group: 'g', block: 20 })
      expect((await source.stats())[0]).toMatchObject({ length: 0, lag: 0, unsettled: 0, waiting: 0, oldest: 0 })
      const session = await source.open()
      await publisher.publish(
        Array.from({ length: 1200 }, () => message()),
        NEVER,
      )
      const taken = await receive(session, 4)
      const after = { kind: 'retry', after: 60_000, error: undefined, charged: true } as const
      await session.settle([
        [taken[0]!, DONE],
        [taken[1]!, after],
      ])
      await systemClock.sleep(20)
      const [stats] = await source.stats()
      // A read takes no more than was asked for, and may take the next as many ahead.
      expect([stats!.length, stats!.waiting, stats!.lagIsAtLeast]).toEqual([1200, 1, false])
      expect(stats!.lag + stats!.unsettled).toBe(1198)
      expect(stats!.oldest).toBeGreaterThanOrEqual(20)
      await session.close()
      await publisher.close!()
      await mine.close()
    })

    test('a message goes to the stream its outbox named, and by function, and order stops at a refusal', async () => {
      const [one, two] = [fresh(), fresh()]
      const mine = broker()
      const publisher = mine.publisher()
      const named = message()
      setTopic(named, one)
      const unserialisable = new Message(
        { id: 'r', source: '/s', type: two, extensions: { partitionkey: 'k' } },
        { n: 1n },
      ) as unknown as ReturnType<typeof message>
      const behind = message('{}', { type: two, key: 'k' })
      const free = message('{}', { type: two, key: 'other' })
      const outcomes = await publisher.publish([named, unserialisable, behind, free], NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'rejected', 'failed', 'ok'])
      expect(await admin.xlen(one)).toBe(1)
      expect(await admin.xlen(two)).toBe(1)
      await publisher.close!()
    })

    test('own encoders and decoders, and a client with a key prefix', async () => {
      const stream = fresh()
      const prefixed = new Redis(service(server).url, { lazyConnect: true, keyPrefix: 'app:' })
      const mine = redisStreams({
        client: prefixed,
        encode: ({ id, data }) => ({ id, body: Buffer.from(data as string).reverse() }),
        decode: ({ id, body }) =>
          new Message({ id: String(id), source: '/s', type: 't' }, Buffer.from(body!).reverse().toString()),
      })
      const publisher = mine.publisher({ stream })
      const session = await mine.source({ stream, group: 'g', block: 20 }).open()
      await publisher.publish([message('{"a":1}', { id: 'x' })], NEVER)
      const [taken] = await receive(session, 1)
      expect([taken!.message.id, taken!.message.data]).toEqual(['x', '{"a":1}'])
      expect(await admin.xlen(`app:${stream}`)).toBe(1)
      await session.close()
      await publisher.close!()
    })

    test('replicas that do not have it in time: down, not ok', async () => {
      const publisher = broker({ durability: { replicas: 1, within: 50 } }).publisher({ stream: fresh() })
      expect(await publisher.publish([message()], NEVER)).toMatchObject([{ kind: 'down' }])
      await publisher.close!()
    })
  })
}

for (const version of ['redis', 'redis6'] as const) {
  describeWith([version], `redis streams and the settings of ${version}`, () => {
    let admin: Redis
    let url: string
    const broker = (more = {}) => redisStreams({ client: ioredis(url), ...more })
    beforeAll(async () => {
      url = (await standalone({}, version)).url
      admin = new Redis(url)
    })
    afterAll(() => admin.disconnect())

    test('settings that lose messages are told, or refused where durability is required', async () => {
      const stream = fresh()
      await admin.config('SET', 'maxmemory-policy', 'allkeys-lru')
      try {
        const telemetry = recordTelemetry(['warning'])
        const publisher = broker({ name: fresh('warned') }).publisher({ stream, maxLen: 5 })
        await publisher.start!()
        const told = telemetry.of('warning').map((warning) => warning.message)
        expect(told).toContainEqual(expect.stringMatching(/maxLen trims entries whether or not they were handled/))
        expect(told).toContainEqual(expect.stringMatching(/maxmemory-policy is allkeys-lru.*set noeviction/))
        telemetry.stop()
        await publisher.close!()
        const required = broker({ durability: { required: true } }).publisher({ stream })
        await expect(required.start!()).rejects.toMatchObject({ code: 'NOT_DURABLE' })
        await required.close!()
      } finally {
        await admin.config('SET', 'maxmemory-policy', 'noeviction')
      }
    })

    test('memory that is full is the trouble of the server: down, and nothing arrives', async () => {
      const stream = fresh()
      const publisher = broker().publisher({ stream })
      await publisher.start!()
      await admin.config('SET', 'maxmemory', '1')
      try {
        expect(await publisher.publish([message(), message()], NEVER)).toMatchObject([
          { kind: 'down' },
          { kind: 'down' },
        ])
      } finally {
        await admin.config('SET', 'maxmemory', '0')
      }
      expect(await publisher.publish([message()], NEVER)).toMatchObject([{ kind: 'ok' }])
      expect(await admin.xlen(stream)).toBe(1)
      await publisher.close!()
    })
  })
}

test('a server without streams is one clear error', async () => {
  const old: RedisClient = {
    driver: 'scripted',
    cluster: false,
    keyPrefix: '',
    connect: async (options) =>
      connectionOf(
        {
          send: async ([name]) => (name === 'command' ? [null] : Promise.reject(new Error('ERR unknown command'))),
          sendAll: async () => [],
          onEnd() {},
          destroy() {},
        },
        options,
      ),
  }
  const source = redisStreams({ client: old }).source({ stream: 's', group: 'g' })
  await expect(source.open()).rejects.toThrow(/a server without streams; .*need Redis 5 or later/)
})

test('options that make no sense are refused', () => {
  const mine = redisStreams({ client: ioredis('redis://127.0.0.1:1') })
  expect(() => redisStreams({ client: {} })).toThrow(/no Redis client that is known here/)
  expect(() => mine.source({ stream: '', group: 'g' })).toThrow(/not a name/)
  expect(() => mine.source({ stream: [], group: 'g' })).toThrow(/at least one/)
  expect(() => mine.source({ stream: 's', group: '' })).toThrow(/not a name/)
  expect(() => mine.source({ stream: 's', group: 'g', batch: 0 })).toThrow(/batch: 0 is not allowed/)
  expect(() => mine.source({ stream: 's', group: 'g', bach: 1 } as never)).toThrow(/did you mean "batch"/)
  expect(() => mine.source({ stream: 's', group: 'g', deadLetter: 's' })).toThrow(/must not be a stream that is read/)
  expect(() => mine.publisher({ maxLen: -1 })).toThrow(/maxLen/)
  const cluster = {
    driver: 'scripted',
    cluster: true,
    keyPrefix: '',
    connect: () => Promise.reject(new Error('never')),
  }
  const clustered = redisStreams({ client: cluster })
  expect(() => clustered.source({ stream: ['a', 'b'], group: 'g' })).toThrow(/different slots/)
  expect(() => clustered.source({ stream: 'a', group: 'g', deadLetter: 'b' })).toThrow(/different slots/)
})
