import { readFileSync } from 'node:fs'
import { beforeAll, expect, test } from 'vitest'
import { type RedisStreamsBroker, redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { fromStructured, toStructured } from '../../src/cloudevents/index.ts'
import { encodeData, event, type RawMessage } from '../../src/core/index.ts'
import { OK, type Publisher, setTopic, topicOf } from '../../src/flow/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { type RedisStore, type RedisTx, redisFromContext } from '../../src/redis/index.ts'
import { Engine, Router, timeout } from '../../src/router/index.ts'
import { inbox, outbox, transaction, transactional } from '../../src/store/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { listening } from '../support/listening.ts'
import { describeWith, service } from '../support/services.ts'
import { Placed as Billed, billing } from './billing.ts'
import { ioredis, keysOf, reader, storeOf, until } from './support.ts'

const Placed = event<{ n: number; fail?: string }>('order.placed')
const Invoiced = event<{ n: number }>('invoice.sent')
const Mailed = event<{ n: number }>('mail.sent')
const NEVER = new AbortController().signal

const placed = (n: number, fail?: string): RawMessage =>
  encodeData(Placed(fail === undefined ? { n } : { n, fail }, { id: `o${n}`, source: '/shop' }))

for (const server of ['redis', 'redis6']) {
  describeWith([server], `a service on ${server} alone`, () => {
    let url: string
    beforeAll(() => {
      url = service(server).url
    })
    const look = () => reader(url)

    /** A service and its streams, with names of its own. */
    const made = (options: Parameters<typeof storeOf>[1] = {}, client: object = ioredis(url)) => {
      const db = storeOf(client, options)
      const streams = redisStreams({ client: ioredis(url) })
      const stream = db.key('orders')
      const source = (more: object = {}) =>
        streams.source({ stream, group: 'billing', block: 20, batch: 100, reclaim: { every: 50, idle: 300 }, ...more })
      const publisher = streams.publisher({ stream })
      const settled = async () => {
        const [stats] = await source().stats()
        // Nothing is known of it before there is a group.
        return stats!.length > 0 && stats!.lag + stats!.unsettled + stats!.waiting === 0
      }
      const end = async () => {
        await publisher.close!()
        await streams.close()
      }
      return { db, streams, stream, source, publisher, settled, end }
    }

    const gathering = () => {
      const got: { topic: string; message: RawMessage }[] = []
      const to: Publisher = {
        name: 'gathering',
        features: { ordered: true },
        async publish(messages) {
          for (const message of messages) got.push({ topic: topicOf(message), message })
          return messages.map(() => OK)
        },
      }
      return { got, to }
    }

    const forward = async (streams: RedisStreamsBroker, db: RedisStore, to: Publisher) => {
      const relay = new Relay({ from: streams.source({ ...db.outbox.forwarding, block: 20 }), to })
      await until('all is forwarded', async () => {
        await relay.runOnce()
        return (await look().xlen(db.outbox.stream)) === 0
      })
      await relay.stop()
    }

    test('business writes, the done mark and outputs are one step; duplicates are acked; outputs reach their topics', async () => {
      const { db, streams, source, publisher, settled, end } = made()
      const counts = { save: async (n: number) => redisFromContext(look()).incrby(db.key('total'), n) }
      const router = new Router('billing')
        .use(transactional(db, { topic: ({ type }) => (type === 'mail.sent' ? 'mails' : undefined) }))
        .on(Placed, async ({ data }) => {
          await counts.save(data.n)
          return [Invoiced({ n: data.n }), Mailed({ n: data.n })]
        })
      const sent = [placed(1), placed(2), placed(3)]
      await publisher.publish([...sent, ...sent, sent[0]!], NEVER)
      const consumer = await router.consume(source()).start()
      await until('all are settled', settled)
      await consumer.stop()
      expect(await look().get(db.key('total'))).toBe('6')
      expect(await look().xlen(db.outbox.stream)).toBe(6)
      expect((await keysOf(look(), db.tag)).filter((key) => key.includes(':inbox:'))).toHaveLength(3)

      const { got, to } = gathering()
      await forward(streams, db, to)
      expect(got.map(({ topic }) => topic).sort()).toEqual([
        ...Array(3).fill('invoice.sent'),
        ...Array(3).fill('mails'),
      ])
      expect(got.every(({ message }) => message.extensions['causationid'] !== undefined)).toBe(true)
      expect(await look().xlen(db.outbox.stream)).toBe(0)
      const [group] = (await look().xinfo('GROUPS', db.outbox.stream)) as unknown[][]
      expect(group).toContain('outbox-forwarder')
      await end()
    })

    test('a handler that imports no driver: written in its unit of work on Redis, and unchanged elsewhere', async () => {
      const source = readFileSync(new URL('./billing.ts', import.meta.url), 'utf8')
      expect(source.match(/from '.*'/g)).toEqual(["from '../../src/core/index.ts'"])
      const { client: heard, said } = listening(ioredis(url))
      const { db, source: orders, publisher, settled, end } = made({}, heard)
      const client = look()
      const totals = { add: async (n: number) => redisFromContext(client).incrby(db.key('total'), n) }
      let seenInside: unknown
      const handler = billing(totals)
      const router = new Router('billing').use(transactional(db)).on(Billed, async (message) => {
        const output = await handler(message)
        said.splice(0)
        seenInside = [await client.exists(db.key('total')), await client.exists(db.outbox.stream)]
        return output
      })
      const { got, to } = gathering()
      await publisher.publish([encodeData(Billed({ n: 4 }))], NEVER)
      const consumer = await router.consume(orders(), { to }).start()
      await until('it is settled', settled)
      await consumer.stop()
      // Queued until the handler had succeeded; what it returned is in the outbox, and nowhere else.
      expect([seenInside, await client.get(db.key('total')), await client.xlen(db.outbox.stream)]).toEqual([
        [0, 0],
        '4',
        1,
      ])
      // Business commands, the mark and outputs: one call to the server.
      expect(said.map(([name]) => name)).toEqual(['commit'])
      expect(got).toEqual([])
      let total = 0
      const inMemory = {
        add: async (n: number) => {
          total += n
        },
      }
      await billing(inMemory)({ data: { n: 4 } })
      expect(total).toBe(4)
      await end()
    })

    test('marks are kept for 24 hours by default, and their key may be made of the whole message', async () => {
      const { db, source, publisher, settled, end } = made()
      const router = new Router('billing')
        .use(transactional(db, { key: ({ extensions }) => String(extensions['orderkey']) }))
        .on(Placed, async (_, { tx }) => tx.incr(db.key('total')))
      const twice = ['a', 'b'].map((id) =>
        Placed({ n: 1 }, { id, source: '/shop' }).with({ extensions: { orderkey: 'o1' } }),
      )
      await publisher.publish(twice.map(encodeData), NEVER)
      const consumer = await router.consume(source()).start()
      await until('both are settled', settled)
      await consumer.stop()
      expect(await look().get(db.key('total'))).toBe('1')
      const [mark, ...others] = (await keysOf(look(), db.tag)).filter((key) => key.includes(':inbox:'))
      expect(others).toEqual([])
      const left = await look().pttl(mark!)
      expect(left).toBeGreaterThan(24 * 3_600_000 - 60_000)
      expect(left).toBeLessThanOrEqual(24 * 3_600_000)
      await end()
    })

    test('an engine over the outbox stream: handled or passed through, acked when it has arrived, and then removed', async () => {
      const { db, streams, end } = made()
      await db.withTransaction(async (tx) => {
        await db.outbox.enqueue(tx, [Invoiced({ n: 1 }, { id: 'i1' }), Mailed({ n: 2 }, { id: 'm2' })])
      })
      const router = new Router('bridge')
        .on(Invoiced, ({ data }) => Mailed({ n: data.n + 10 }))
        .on(Mailed, async () => {})
      const { got, to } = gathering()
      let refused = 0
      const engine = new Engine('bridge', { router }).output('mails', to, { match: 'mail.*' })
      engine.output('rest', async () => {
        refused++
        throw new Error('nobody takes it')
      })
      const quick = { retry: { backoff: { min: 10, max: 10, jitter: 0 } } }
      await engine.input('outbox', streams.source({ ...db.outbox.forwarding, block: 20 }), quick)
      await engine.start()
      await until('all is handled and removed', async () => (await look().xlen(db.outbox.stream)) === 0)
      expect(got.map(({ message }) => message.data)).toEqual([JSON.stringify({ n: 11 })])
      await engine.stop()
      // It is in the stream for as long as it has not arrived, and comes again when its destination failed.
      const there: number[] = []
      const late: Publisher = {
        ...to,
        async publish(messages, signal) {
          there.push(await look().xlen(db.outbox.stream))
          if (there.length === 1) throw new Error('not yet')
          return to.publish(messages, signal)
        },
      }
      const through = new Engine('through', { router: new Router('through') }).output('all', late)
      const passing = { passThrough: true, ...quick }
      await through.input('outbox', streams.source({ ...db.outbox.forwarding, block: 20 }), passing)
      await through.start()
      await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 3 }, { id: 'p3' }), { topic: 'orders' }))
      await until('it has passed through', () =>
        got.some(({ message, topic }) => message.id === 'p3' && topic === 'orders'),
      )
      await until('and is removed', async () => (await look().xlen(db.outbox.stream)) === 0)
      await through.stop()
      expect(there).toEqual([1, 1])
      expect(refused).toBe(0)
      await end()
    })

    test('a handler that throws has written nothing, and succeeds later', async () => {
      const { db, source, publisher, settled, end } = made()
      let calls = 0
      const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
        tx.incrby(db.key('total'), data.n)
        if (++calls < 3) throw new Error('not yet')
        return Invoiced({ n: data.n })
      })
      await publisher.publish([placed(5)], NEVER)
      const consumer = await router.consume(source(), { retry: { backoff: { min: 20, max: 20, jitter: 0 } } }).start()
      await until('it is settled', settled)
      await consumer.stop()
      expect(calls).toBe(3)
      expect(await look().get(db.key('total'))).toBe('5')
      expect(await look().xlen(db.outbox.stream)).toBe(1)
      await end()
    })

    test('a message that another is handling waits without spending attempts', async () => {
      const { db, source, publisher, end } = made()
      const other = storeOf(ioredis(url), { tag: db.tag })
      const router = new Router('billing').use(transactional(db)).on(Placed, async () => {})
      const taken = other.withTransaction(async (tx) => {
        await other.inbox.receive(tx, { subscriber: 'billing', source: '/shop', id: 'o1' })
        await publisher.publish([placed(1)], NEVER)
        const consumer = router.consume(source({ block: 2000 }), { retry: { attempts: 1 } })
        expect(await consumer.runOnce()).toMatchObject({ taken: 1, retry: 1, dead: 0 })
        await consumer.stop()
      })
      await taken
      expect((await source().stats())[0]).toMatchObject({ waiting: 1, dead: 0 })
      const [pending] = (await look().xpending(db.key('orders'), 'billing', '-', '+', 1)) as [unknown[]]
      expect(pending[3]).toBe(1)
      await end()
    })

    test('work that is applied in part goes to the dead letters at once, and names the command', async () => {
      const { db, source, publisher, settled, end } = made()
      await look().set(db.key('word'), 'no number')
      const router = new Router('billing').use(transactional(db)).on(Placed, async (_, { tx }) => {
        tx.incr(db.key('total'))
        tx.incr(db.key('word'))
      })
      await publisher.publish([placed(1)], NEVER)
      const consumer = await router.consume(source()).start()
      await until('it is settled', settled)
      await consumer.stop()
      const letters = await source().deadLetters()
      expect(letters.map(({ reason }) => reason)).toEqual([
        expect.stringMatching(/PARTLY_APPLIED.*INCR, 2 of 2, failed after.*:word"$/),
      ])
      expect(await look().get(db.key('total'))).toBe('1')
      await end()
    })

    test('a handler that takes longer than both thresholds runs once, in whichever process', async () => {
      // Long for a machine that stands still now and then, which would be a reason to run it again.
      const lease = 2000
      const { db, source, publisher, settled, end } = made({ inbox: { lease } })
      let runs = 0
      const consumers = [1, 2].map(() => {
        const mine = storeOf(ioredis(url), { tag: db.tag, inbox: { lease } })
        const router = new Router('billing').use(transactional(mine)).on(Placed, async (_, { tx }) => {
          runs++
          tx.incr(db.key('total'))
          await new Promise((resolve) => setTimeout(resolve, 3 * lease))
        })
        return router.consume(source({ reclaim: { every: 50, idle: lease } }))
      })
      await publisher.publish([placed(1), placed(1)], NEVER)
      for (const consumer of consumers) await consumer.start()
      await until('both are settled', settled)
      for (const consumer of consumers) await consumer.stop()
      expect([runs, await look().get(db.key('total'))]).toEqual([1, '1'])
      await end()
    })

    test('a handler that is too slow is given up, its late commit changes nothing, and the message is handled', async () => {
      const recorder = recordTelemetry(['inbox.fenced'])
      const { db, source, publisher, settled, end } = made()
      let runs = 0
      let finish!: () => void
      const finished = new Promise<void>((resolve) => {
        finish = resolve
      })
      const router = new Router('billing')
        .use(timeout(1500))
        .use(transactional(db))
        .on(Placed, async (_, { tx }) => {
          tx.incr(db.key('total'))
          if (++runs === 1) await finished
        })
      await publisher.publish([placed(1)], NEVER)
      const consumer = await router.consume(source(), { retry: { backoff: { min: 20, max: 20, jitter: 0 } } }).start()
      await until('it is settled', settled)
      finish()
      await consumer.stop()
      expect([runs, await look().get(db.key('total'))]).toEqual([2, '1'])
      recorder.stop()
      await end()
    })

    test('what forwards is confirmed by the destination only; what is refused stays, and stream and codec are yours', async () => {
      const { db, end } = made({
        outbox: {
          encode: (message, topic) => ({ to: topic, body: toStructured(message) }),
          topic: 'all',
          stream: 'bridge',
        },
      })
      expect(db.outbox.stream).toBe(db.key('bridge'))
      const streams = redisStreams({
        client: ioredis(url),
        decode: (fields) => {
          const message = fromStructured(fields['body']!)
          setTopic(message, fields['to']!.toString())
          return message
        },
      })
      await db.withTransaction(async (tx) => {
        await db.outbox.enqueue(
          tx,
          [1, 2, 3].map((n) => Invoiced({ n }, { id: `i${n}` })),
          { key: 'k', tenant: 'acme' },
        )
        await db.outbox.enqueue(Mailed({ n: 4 }, { id: 'i4' }), { topic: 'mails' })
      })
      expect(await look().xlen(db.key('bridge'))).toBe(4)
      const got: string[] = []
      let refusing = true
      const relay = new Relay({
        from: streams.source({ ...db.outbox.forwarding, block: 20 }),
        to: async (message) => {
          if (message.id === 'i2' && refusing) throw new Error('refused')
          got.push(`${topicOf(message)} ${message.id} ${message.key} ${message.tenant}`)
        },
        retry: { backoff: { min: 10, max: 10, jitter: 0 } },
      })
      await until('one is left', async () => {
        await relay.runOnce()
        return (await look().xlen(db.outbox.stream)) === 1
      })
      await until('the refused one came again', async () => {
        refusing = false
        await relay.runOnce()
        return got.some((line) => line.includes('i2'))
      })
      await relay.stop()
      expect(got.sort()).toEqual(['all i1 k acme', 'all i2 k acme', 'all i3 k acme', 'mails i4 undefined undefined'])
      expect(await look().xlen(db.outbox.stream)).toBe(0)
      await streams.close()
      await end()
    })

    test('one outbox stream serves many destinations: other streams, by topic', async () => {
      const { db, streams, end } = made()
      await db.withTransaction(async (tx) => {
        await db.outbox.enqueue(tx, Invoiced({ n: 1 }), { topic: db.key('a') })
        await db.outbox.enqueue(tx, Invoiced({ n: 2 }), { topic: db.key('b') })
        await db.outbox.enqueue(tx, Invoiced({ n: 3 }), { topic: db.key('a') })
      })
      const to = streams.publisher()
      await forward(streams, db, to)
      await to.close!()
      expect([await look().xlen(db.key('a')), await look().xlen(db.key('b'))]).toEqual([2, 1])
      await end()
    })

    test('the three middlewares by themselves, in their order, or an error at start', async () => {
      const { db, source, publisher, settled, end } = made()
      const wrong = new Router('billing').use(outbox(db.outbox)).on(Placed, async () => {})
      await expect(wrong.consume(source()).start()).rejects.toMatchObject({ code: 'MIDDLEWARE_ORDER' })
      const alone = new Router('billing').use(inbox(db.inbox)).on(Placed, async () => {})
      await expect(alone.consume(source()).start()).rejects.toMatchObject({ code: 'MIDDLEWARE_ORDER' })
      const router = new Router('billing')
        .use(transaction<RedisTx>(db))
        .use(outbox(db.outbox))
        .on(Placed, async ({ data }, { tx }) => {
          tx.incrby(db.key('total'), data.n)
          return Invoiced({ n: data.n })
        })
      await publisher.publish([placed(1), placed(1)], NEVER)
      const consumer = await router.consume(source()).start()
      await until('both are settled', settled)
      await consumer.stop()
      // Without an inbox each delivery counts.
      expect([await look().get(db.key('total')), await look().xlen(db.outbox.stream)]).toEqual(['2', 2])
      await end()
    })

    test('two subscribers of one stream do not suppress each other', async () => {
      const { db, streams, stream, publisher, end } = made()
      await publisher.publish([placed(1)], NEVER)
      for (const name of ['billing', 'shipping']) {
        const router = new Router(name).use(transactional(db)).on(Placed, async (_, { tx }) => tx.incr(db.key('total')))
        const consumer = router.consume(streams.source({ stream, group: name, block: 2000 }))
        expect(await consumer.runOnce()).toMatchObject({ done: 1 })
        await consumer.stop()
      }
      expect(await look().get(db.key('total'))).toBe('2')
      await end()
    })

    test('bad input to the outbox is one clear error each, and nothing is written', async () => {
      const { db, end } = made()
      const enqueue = (given: unknown, options?: object) =>
        db.withTransaction(async (tx) => db.outbox.enqueue(tx, given as never, options as never))
      await expect(enqueue({})).rejects.toMatchObject({
        code: 'INVALID_OPTION',
        message: expect.stringMatching(/not an event/),
      })
      await expect(enqueue(Invoiced({ n: 1 }), { key: 42 })).rejects.toThrow(
        'enqueue: key: 42 is not allowed; give text',
      )
      await expect(
        db.withTransaction((tx) => db.outbox.enqueue(Invoiced({ n: 1 }) as never, tx as never)),
      ).rejects.toThrow('the transaction comes first')
      await expect(enqueue(Invoiced({ n: 1 }), { topik: 'x' })).rejects.toThrow(/did you mean "topic"/)
      await expect(enqueue(Invoiced({ n: 1 }), { availableAt: new Date() })).rejects.toThrow(/unknown option/)
      await expect(db.outbox.enqueue(Invoiced({ n: 1 }))).rejects.toMatchObject({ code: 'NO_TRANSACTION' })
      await expect(db.outbox.enqueue(ioredis(url) as never, Invoiced({ n: 1 }))).rejects.toMatchObject({
        code: 'NOT_A_TRANSACTION',
      })
      await look().hset(db.outbox.stream, 'f', 'v')
      await expect(enqueue(Invoiced({ n: 1 }))).rejects.toMatchObject({
        code: 'WRONG_KEY_TYPE',
        message: expect.stringMatching(/a stream is needed, and there is a hash/),
      })
      await end()
    })
  })
}

test('a relay is told what it may be told when it forwards from a source', () => {
  const source = { name: 'stream', features: {}, open: async () => undefined }
  expect(() => new Relay({ from: source, to: async () => {}, shards: 2 })).toThrow(/shards is for outboxes/)
  expect(() => new Relay({ from: {} as never, to: async () => {} })).toThrow(/an outbox.*or a source/)
  expect(new Relay({ from: source, to: async () => {} })).toBeInstanceOf(Object)
})
