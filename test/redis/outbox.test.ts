import { afterEach, describe, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { encodeData, event, type Message, RetryLater, telemetry } from '../../src/core/index.ts'
import { Cleaner, type OutboxReader, Relay, type RelayOptions } from '../../src/outbox/index.ts'
import { type RedisOutbox, redisDue, redisOutbox } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { outbox as enqueueing, inbox, transaction, transactional } from '../../src/store/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { listening } from '../support/listening.ts'
import { describeWith, service } from '../support/services.ts'
import { outboxOn, READER, shardedOn } from './outbox-support.ts'
import { ioredis, keysOf, reader, storeOf, until } from './support.ts'

const relays: Relay[] = []
afterEach(async () => {
  for (const relay of relays.splice(0)) await relay.stop()
})

function relayOf(outbox: RedisOutbox, to: RelayOptions['to'], options: Partial<RelayOptions> = {}): Relay {
  const relay = new Relay({ from: outbox as OutboxReader, to, poll: '20ms', maxPoll: '50ms', ...options })
  relays.push(relay)
  return relay
}

/** A destination that remembers what arrived. */
function destination() {
  const arrived: Message[] = []
  return { arrived, to: async (message: Message) => void arrived.push(message) }
}

const ids = (messages: readonly Message[]) => messages.map(({ id }) => id)

for (const server of ['redis', 'redis6']) {
  describeWith([server], `redis outbox on ${server}`, () => {
    const url = () => service(server).url
    const setup = (options = {}) => {
      const made = outboxOn(ioredis(url()), options)
      return { ...made, base: `{${made.db.tag}}:outbox`, raw: reader(url()) }
    }

    describe('enqueue', () => {
      test('business commands and events are one script: with the commit all of them, without it none', async () => {
        const { db, outbox, raw } = setup()
        const [kept, dropped] = samples(2)
        await db.withTransaction(async (tx) => {
          tx.set(db.key('order:1'), 'placed')
          await outbox.enqueue(tx, kept!, { key: 'order 1' })
        })
        const failure = db.withTransaction(async (tx) => {
          tx.set(db.key('order:2'), 'placed')
          await outbox.enqueue(tx, dropped!)
          throw new Error('no')
        })
        await expect(failure).rejects.toThrow('no')
        expect(await raw.get(db.key('order:1'))).toBe('placed')
        expect(await raw.get(db.key('order:2'))).toBeNull()
        expect((await outbox.admin.list()).map(({ eventId, key }) => [eventId, key])).toEqual([[kept!.id, 'order 1']])
      })

      test('the store says that it needs no transaction of a database, and works without one when told by name', async () => {
        const { outbox } = setup()
        expect(outbox.requiresTransaction).toBe(false)
        const events = samples(3)
        expect(await outbox.enqueueAlone(events)).toEqual(ids(events))
        expect(await outbox.enqueueAlone(events[0]!)).toBe(events[0]!.id)
        await expect(outbox.enqueue(events[0]!)).rejects.toMatchObject({ code: 'NO_TRANSACTION' })
        expect(await outbox.admin.list()).toHaveLength(3)
      })

      test('a duplicate id is a no-op and counted, in one batch and in two', async () => {
        const { db, outbox } = setup()
        const [event, other] = samples(2)
        const seen = recordTelemetry(['outbox.enqueued'])
        await outbox.enqueueAlone([event!, other!, event!])
        await db.withTransaction((tx) => outbox.enqueue(tx, [event!], { topic: 'elsewhere' }))
        seen.stop()
        expect(seen.of('outbox.enqueued').map(({ count, duplicates }) => [count, duplicates])).toEqual([
          [2, 1],
          [0, 1],
        ])
        expect((await outbox.admin.list()).map(({ topic }) => topic)).toEqual([event!.type, event!.type])
      })

      test('a thousand in one call: each key in order, duplicates left out, and later ones wait for their time', async () => {
        const { outbox, raw, base } = setup()
        const keyed = samples(1200).map((event, n) =>
          n % 4 === 0 ? event : event.with({ extensions: { partitionkey: `key ${n % 3}` } }),
        )
        const again = [keyed[1]!, keyed[1100]!]
        await outbox.enqueueAlone(keyed[0]!)
        const seen = recordTelemetry(['outbox.enqueued'])
        await outbox.enqueueAlone([...keyed, ...again])
        const [later] = samples(1)
        await outbox.enqueueAlone(later!, { key: 'key 1', availableAt: new Date(Date.now() + 3_600_000) })
        seen.stop()
        expect(seen.of('outbox.enqueued').map(({ count, duplicates }) => [count, duplicates])).toEqual([
          [1199, 3],
          [1, 0],
        ])
        const { states } = await outbox.admin.stats()
        expect([states.ready.count, states.held.count, states.scheduled.count]).toEqual([303, 897, 1])
        expect(await raw.hlen(`${base}:heads`)).toBe(3)
        const { arrived, to } = destination()
        await relayOf(outbox, to).start()
        await until('all but the later have arrived', () => arrived.length === 1200)
        for (const key of ['key 0', 'key 1', 'key 2']) {
          const ofKey = (all: readonly Message[]) => ids(all.filter((event) => event.key === key))
          expect(ofKey(arrived)).toEqual(ofKey(keyed))
        }
        expect(new Set(ids(arrived)).size).toBe(1200)
      })

      test('more on their own than one script should write go in several', async () => {
        const { client, said } = listening(ioredis(url()))
        const { outbox } = outboxOn(client)
        const events = samples(12_000)
        expect(await outbox.enqueueAlone(events)).toEqual(ids(events))
        const sizes = said.filter(([name]) => name === 'outbox-enqueue').map(({ length }) => (length - 1) / 5)
        expect(sizes).toEqual([10_000, 2000])
        expect((await outbox.admin.stats()).states.ready.count).toBe(12_000)
      })

      test('a key of another type refuses the whole unit of work, with nothing written', async () => {
        for (const suffix of ['entries', 'states', 'heads', 'pending', 'held', 'sequence']) {
          const { db, outbox, raw, base } = setup()
          await raw.rpush(`${base}:${suffix}`, 'not ours')
          const unit = db.withTransaction(async (tx) => {
            tx.set(db.key('order:1'), 'placed')
            await outbox.enqueue(tx, samples(1, { key: 'a' }))
          })
          await expect(unit).rejects.toThrow(`${base}:${suffix} holds a list`)
          expect(await keysOf(raw, db.tag)).toEqual([`${base}:${suffix}`])
        }
      })

      test('wrong key type under our names: one clear error, from enqueue, from a relay that starts and from one that runs', async () => {
        for (const suffix of ['entries', 'states', 'heads', 'pending', 'leased', 'retrying', 'held', 'dead', 'sent']) {
          const { outbox, raw, base } = setup()
          await raw.rpush(`${base}:${suffix}`, 'not ours')
          const wrong = {
            code: 'WRONG_KEY_TYPE',
            message: expect.stringContaining(`"${base}:${suffix}", which holds a list`),
          }
          if (/entries|states|heads|pending|held/.test(suffix)) {
            await expect(outbox.enqueueAlone(samples(1, { key: 'a' }))).rejects.toMatchObject(wrong)
          }
          await expect(relayOf(outbox, async () => {}).start()).rejects.toMatchObject(wrong)
          await raw.del(`${base}:${suffix}`)
          await outbox.enqueueAlone(samples(1, { key: 'a' }))
          const [source] = await outbox.reader(READER).assignment()
          const session = await source!.open(NEVER)
          await raw.rename(`${base}:${suffix}`, `${base}:kept`).catch(() => {})
          await raw.rpush(`${base}:${suffix}`, 'not ours')
          await expect(session!.take({ count: 1, bytes: 1000 }, NEVER)).rejects.toMatchObject(wrong)
          await raw.del(`${base}:${suffix}`)
          await raw.rename(`${base}:kept`, `${base}:${suffix}`).catch(() => {})
          expect(await session!.take({ count: 1, bytes: 1000 }, NEVER), suffix).toHaveLength(1)
          await session!.close()
        }
      })
    })

    describe('under the shared relay, cleaner and admin', () => {
      test('everything is published in order per key, kept for its retention, then cleaned: Redis is as empty as before', async () => {
        const { db, outbox, raw, base } = setup()
        const { arrived, to } = destination()
        const relay = relayOf(outbox, to)
        await relay.start()
        const events = samples(300).map((event, n) =>
          n % 3 === 0 ? event : event.with({ extensions: { partitionkey: `key ${n % 7}` } }),
        )
        for (let from = 0; from < events.length; from += 50) {
          await db.withTransaction((tx) => outbox.enqueue(tx, events.slice(from, from + 50)))
        }
        await until('all have arrived', async () => (await outbox.admin.stats()).states.published.count === 300)
        expect(new Set(ids(arrived))).toEqual(new Set(ids(events)))
        for (const key of new Set(events.map((event) => event.key))) {
          if (key === undefined) continue
          expect(ids(arrived.filter((event) => event.key === key))).toEqual(
            ids(events.filter((event) => event.key === key)),
          )
        }
        const cleaner = new Cleaner({ of: outbox.admin, batch: 100, retention: '1h' })
        expect(await cleaner.runOnce()).toEqual({ [outbox.name]: 0 })
        expect(await new Cleaner({ of: outbox.admin, batch: 100, retention: 0 }).runOnce()).toEqual({
          [outbox.name]: 300,
        })
        // The relay is still at work: the other key is its own, and ends with it.
        const left = (await keysOf(raw, db.tag)).filter((key) => key !== `${base}:leader`)
        expect(left).toEqual([`${base}:sequence`])
      })

      test('memory stays bounded: what is sent and cleaned leaves nothing behind', async () => {
        const { db, outbox, raw, base } = setup()
        const relay = relayOf(outbox, async () => {}, { batch: 500 })
        const size = async () => {
          const used = (await keysOf(raw, db.tag)).map((key) => raw.call('memory', 'usage', key) as Promise<number>)
          return (await Promise.all(used)).reduce((sum, bytes) => sum + bytes, 0)
        }
        for (let round = 0; round < 5; round++) {
          await outbox.enqueueAlone(samples(40, { key: `key ${round}` }).concat(samples(400)))
          while ((await relay.runOnce()).taken > 0) await outbox.admin.clean({ retention: 0 })
          expect(await size()).toBeLessThan(500)
        }
        expect(await keysOf(raw, db.tag)).toEqual([`${base}:sequence`])
      })

      test('a broken entry is parked with the reason, and the flow goes on', async () => {
        const { outbox, raw, base } = setup()
        const { arrived, to } = destination()
        const events = samples(4)
        await outbox.enqueueAlone(events.slice(0, 3))
        await raw.hset(`${base}:entries`, events[0]!.id, '-{"topic": broken')
        await raw.hset(`${base}:entries`, events[1]!.id, '-{"a":1}\n{}')
        await outbox.enqueueAlone(events[3]!)
        const seen = recordTelemetry(['message.dead'])
        await relayOf(outbox, to).runOnce()
        seen.stop()
        expect(ids(arrived)).toEqual(ids(events.slice(2)))
        const dead = await outbox.admin.list({ states: ['dead'] })
        expect(dead.map(({ eventId }) => eventId)).toEqual(ids(events.slice(0, 2)))
        expect(dead[0]!.lastError).toMatch(/cannot be read: its header is no JSON/)
        expect(dead[0]!.lastError).not.toMatch(/broken/)
        expect(dead[1]!.lastError).toMatch(/lacks topic, type, source or form/)
        expect(seen.events).toHaveLength(2)
        const shown = await outbox.admin.show(events[0]!.id)
        expect(String(Buffer.from(shown!.message.data as Uint8Array))).toContain('broken')
      })

      test('the pause before each try grows with the count that is stored, whoever tries', async () => {
        const { outbox } = setup()
        const [event] = samples(1)
        await outbox.enqueueAlone(event!)
        const failing = async () => {
          throw new Error('refused')
        }
        const pauses: number[] = []
        for (let failures = 1; failures <= 4; failures++) {
          // Each time another relay.
          const backoff = { min: 40, max: 10_000, jitter: 0 }
          const relay = relayOf(outbox, failing, { retry: { backoff } })
          const before = Date.now()
          await until('it is tried', async () => (await relay.runOnce()).taken > 0)
          const [entry] = await outbox.admin.list()
          expect(entry).toMatchObject({ state: 'retrying', attempts: failures })
          pauses.push(entry!.availableAt!.getTime() - Math.max(before, entry!.createdAt.getTime()))
        }
        for (const [i, base] of [40, 80, 160, 320].entries()) expect(pauses[i]).toBeGreaterThanOrEqual(base - 5)
        expect(pauses[3]).toBeLessThan(5000)
      })

      test('parked at the limit, never taken away by itself, re-armed by a person', async () => {
        const { outbox } = setup()
        const { arrived, to } = destination()
        const events = samples(3, { key: 'a' })
        await outbox.enqueueAlone(events)
        let fails = true
        const relay = relayOf(
          outbox,
          async (message) => {
            if (fails) throw new Error('refused')
            await to(message)
          },
          { retry: { attempts: 2, backoff: { min: 1, max: 1, jitter: 0 } } },
        )
        await until('it is dead', async () => {
          await relay.runOnce()
          return (await outbox.admin.stats()).states.dead.count === 1
        })
        expect(await outbox.admin.clean({ retention: 0 })).toBe(0)
        expect((await outbox.admin.stats()).blockedKeys).toEqual({ count: 1, estimated: false })
        expect((await relay.runOnce()).taken).toBe(0)
        fails = false
        expect(await outbox.admin.rearm({})).toBe(1)
        await until('all have arrived', async () => {
          await relay.runOnce()
          return arrived.length === 3
        })
        expect(ids(arrived)).toEqual(ids(events))
      })
    })

    test('what was sent after failures has its attempts, and no error any more', async () => {
      const { outbox } = setup()
      await outbox.enqueueAlone(samples(1))
      let failures = 2
      const to = async () => {
        if (failures-- > 0) throw new Error('refused')
      }
      const relay = relayOf(outbox, to, { retry: { backoff: { min: 1, max: 1, jitter: 0 } } })
      await until('it is sent', async () => (await relay.runOnce()).done > 0)
      const [entry] = await outbox.admin.list()
      expect(entry).toMatchObject({ state: 'published', attempts: 2, lastError: undefined })
      expect(entry!.publishedAt).toBeInstanceOf(Date)
    })

    test('a handler’s writes, its inbox mark and its outputs are one step, under the same middleware as elsewhere', async () => {
      const { db, outbox, raw } = setup()
      const Placed = event<{ n: number }>('order.placed')
      const Invoiced = event<{ n: number }>('invoice.sent')
      const broker = new InProcessBroker()
      const { arrived, to } = destination()
      await relayOf(outbox, to).start()
      let failures = 1
      const router = new Router('billing')
        .use(transaction(db))
        .use(inbox(db.inbox))
        .use(enqueueing(outbox))
        .on(Placed, async ({ data }, { tx }) => {
          tx.incrby(db.key('total'), data.n)
          if (failures-- > 0) throw new RetryLater(10)
          return [Invoiced({ n: data.n })]
        })
      const consumer = router.consume(broker.source('billing'))
      await consumer.start()
      const placed = encodeData(Placed({ n: 7 }, { id: 'o7', source: '/shop' }))
      await broker.publish([placed, placed])
      await until('it has arrived', () => arrived.length === 1)
      await until('both are settled', async () => (await raw.get(db.key('total'))) === '7')
      await consumer.stop()
      expect(await raw.get(db.key('total'))).toBe('7')
      expect(arrived.map(({ type }) => type)).toEqual(['invoice.sent'])
    })

    test('a state that no script has written, and a number that is none, cost nobody else', async () => {
      const { outbox, raw, base } = setup()
      const events = samples(3)
      await outbox.enqueueAlone(events)
      // MessagePack of ['ready', 'many']: attempts are no number.
      await raw.hset(`${base}:states`, events[0]!.id, Buffer.from('92a57265616479a46d616e79', 'hex'))
      // ['ready', 0, 0, 0, 0, 0, false, [], false]: its key is a list.
      await raw.hset(`${base}:states`, events[1]!.id, Buffer.from('99a572656164790000000000c290c2', 'hex'))
      await raw.set(`${base}:sequence`, 'no number')
      const more = samples(1)
      await outbox.enqueueAlone(more)
      const session = (await (await outbox.reader(READER).assignment())[0]!.open(NEVER))!
      const seen: string[] = []
      await until('all have come', async () => {
        const taken = await session.take({ count: 5, bytes: 1e6 }, NEVER)
        seen.push(...taken.map(({ message }) => message.id))
        expect(taken.filter(({ attempts }) => attempts !== 0)).toEqual([])
        await session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
        return seen.length === 4
      })
      expect(seen.sort()).toEqual([...events, ...more].map(({ id }) => id).sort())
      await session.close()
    })

    test('the clock of Redis went back: what is ready goes on, a lease ends in its time, and it is said', async () => {
      const { db, outbox } = setup()
      const look = reader(url())
      const base = `{${db.tag}}:outbox`
      const hour = 3_600_000
      await outbox.enqueueAlone(samples(3))
      const dead = (await (await outbox.reader(READER).assignment())[0]!.open(NEVER))!
      const [taken] = await dead.take({ count: 1, bytes: 1e6 }, NEVER)
      // As if all of that had been an hour later: what is written has times that the clock has not reached.
      for (const set of ['pending', 'leased']) {
        const members = await look.zrange(`${base}:${set}`, '0', '-1', 'WITHSCORES')
        for (let i = 0; i < members.length; i += 2) await look.zincrby(`${base}:${set}`, hour, members[i]!)
      }
      await look.set(`${base}:sequence`, String((Date.now() + hour) * 1000))
      const told = recordTelemetry(['warning'])
      const session = (await (await outbox.reader({ ...READER, lease: 1000 }).assignment())[0]!.open(NEVER))!
      const seen: string[] = []
      await until('all have come', async () => {
        const more = await session.take({ count: 5, bytes: 1e6 }, NEVER)
        seen.push(...more.map(({ message }) => message.id))
        await session.settle(more.map((delivery) => [delivery, { kind: 'done' }]))
        return seen.length === 3
      })
      told.stop()
      expect(seen.at(-1)).toBe(taken!.message.id)
      expect(told.of('warning').map(({ message }) => message)).toEqual([
        expect.stringMatching(/clock of Redis is 3\d\d\d s behind/),
      ])
      await session.close()
      await dead.close()
    })

    test('the clock of Redis went back: what is ready is found behind all that is scheduled meanwhile', async () => {
      const { db, outbox } = setup()
      const look = reader(url())
      const base = `{${db.tag}}:outbox`
      const hour = 3_600_000
      const events = samples(2)
      await outbox.enqueueAlone(events)
      for (const member of await look.zrange(`${base}:pending`, '0', '-1')) {
        await look.zincrby(`${base}:pending`, hour, member)
      }
      // More than a claim looks at.
      await outbox.enqueueAlone(samples(1200), { availableAt: new Date(Date.now() + hour / 2) })
      await look.set(`${base}:sequence`, String((Date.now() + hour) * 1000))
      const session = (await (await outbox.reader(READER).assignment())[0]!.open(NEVER))!
      const seen: string[] = []
      await until('they have come', async () => {
        const more = await session.take({ count: 5, bytes: 1e6 }, NEVER)
        seen.push(...more.map(({ message }) => message.id))
        await session.settle(more.map((delivery) => [delivery, { kind: 'done' }]))
        return seen.length === 2
      })
      expect(seen.sort()).toEqual(events.map(({ id }) => id).sort())
      await session.close()
    })

    test('what is due for its next try goes before what came later: fresh events do not starve it', async () => {
      const { outbox } = setup()
      const [first, ...later] = samples(4)
      await outbox.enqueueAlone(first!)
      const session = (await (await outbox.reader(READER).assignment())[0]!.open(NEVER))!
      const take = () => session.take({ count: 1, bytes: 1e6 }, NEVER)
      const error = new Error('not now')
      const again = { kind: 'retry', after: 0, charged: true, error } as const
      await session.settle((await take()).map((delivery) => [delivery, again]))
      await outbox.enqueueAlone(later)
      expect((await take()).map(({ message }) => message.id)).toEqual([first!.id])
      await session.close()
    })

    test('an event that was scheduled waits for what is in flight of its key when it is due, and goes before what came later', async () => {
      const { outbox } = setup()
      const [scheduled, first, later] = samples(3, { key: 'a' })
      await outbox.enqueueAlone(scheduled!, { availableAt: new Date(Date.now() + 2000) })
      await outbox.enqueueAlone(first!)
      const session = (await (await outbox.reader(READER).assignment())[0]!.open(NEVER))!
      const take = () => session.take({ count: 5, bytes: 1e6 }, NEVER)
      const taken = await take()
      expect(taken.map(({ message }) => message.id)).toEqual([first!.id])
      await outbox.enqueueAlone(later!)
      await until('it is due and held', async () => {
        expect(await take()).toEqual([])
        return (await outbox.admin.stats()).states.held.count === 2
      })
      const order: string[] = []
      for (let next = taken; next.length > 0; next = await take()) {
        order.push(...next.map(({ message }) => message.id))
        await session.settle(next.map((delivery) => [delivery, { kind: 'done' }]))
      }
      expect(order).toEqual([first!.id, scheduled!.id, later!.id])
      await session.close()
    })

    describe('inline and cold', () => {
      test('a relay of this process sends right after the commit, long before its poll', async () => {
        const { db, outbox } = setup()
        const { arrived, to } = destination()
        const relay = relayOf(outbox, to, { poll: '10m', maxPoll: '10m' })
        await relay.start()
        await outbox.enqueueAlone(samples(1))
        await until('the first has arrived', () => arrived.length === 1)
        for (let n = 2; n <= 5; n++) {
          await db.withTransaction((tx) => outbox.enqueue(tx, samples(1, { key: 'a' })))
          await until(`${n} have arrived`, () => arrived.length === n)
        }
      })

      test('what another process has committed is found by the poll', async () => {
        const { db, outbox } = setup()
        const { arrived, to } = destination()
        await relayOf(outbox, to, { poll: '30ms', maxPoll: '60ms' }).start()
        // Another object has other hints, as another process has.
        const elsewhere = outboxOn(ioredis(url()), {}, { tag: db.tag }).outbox
        await elsewhere.enqueueAlone(samples(3))
        await until('they have arrived', () => arrived.length === 3)
      })

      test('the inline relay and pollers race for the same events: none is in flight twice', async () => {
        const { db, outbox } = setup()
        const flying = new Set<string>()
        const arrived: string[] = []
        const twice: string[] = []
        const to = async ({ id }: Message) => {
          if (flying.has(id)) twice.push(id)
          flying.add(id)
          await new Promise((resolve) => setImmediate(resolve))
          arrived.push(id)
        }
        const cold = outboxOn(ioredis(url()), {}, { tag: db.tag }).outbox
        await relayOf(outbox, to, { poll: '10m', maxPoll: '10m', batch: 7, maxBatch: 7, name: 'inline' }).start()
        for (let i = 0; i < 2; i++) {
          await relayOf(cold, to, {
            poll: 1,
            maxPoll: 1,
            batch: 7,
            maxBatch: 7,
            wake: false,
            name: `cold ${i}`,
          }).start()
        }
        const sent: string[] = []
        for (let n = 0; n < 60; n++) {
          const events = samples(10, n % 2 ? { key: `key ${n % 5}` } : {})
          sent.push(...ids(events))
          await db.withTransaction((tx) => outbox.enqueue(tx, events))
        }
        await until('all have arrived', () => arrived.length >= sent.length)
        expect(twice).toEqual([])
        expect(arrived.sort()).toEqual(sent.sort())
      })
    })

    test('shards: events are spread by key, each key in order, and people see one outbox', async () => {
      const outbox = shardedOn(() => ioredis(url()), 4)
      const events = samples(120).map((event, n) => event.with({ extensions: { partitionkey: `key ${n % 12}` } }))
      await outbox.enqueueAlone(events)
      expect(new Set(events.map(({ key }) => outbox.storeOf(key!).tag)).size).toBeGreaterThan(1)
      const listed = await outbox.admin.list({}, { limit: 1000 })
      expect(listed.map(({ eventId }) => eventId).sort()).toEqual(ids(events).sort())
      const paged: string[] = []
      for (let after: string | undefined; ; ) {
        const page = await outbox.admin.list({}, after === undefined ? { limit: 13 } : { limit: 13, after })
        paged.push(...page.map(({ eventId }) => eventId))
        if (page.length < 13) break
        after = page.at(-1)!.cursor
      }
      expect(paged).toEqual(listed.map(({ eventId }) => eventId))
      expect((await outbox.admin.stats()).states).toMatchObject({ ready: { count: 12 }, held: { count: 108 } })
      const { arrived, to } = destination()
      const relay = relayOf(outbox, to)
      await relay.start()
      await until('all have arrived', () => arrived.length === 120)
      for (let k = 0; k < 12; k++) {
        const key = `key ${k}`
        expect(ids(arrived.filter((event) => event.key === key))).toEqual(
          ids(events.filter((event) => event.key === key)),
        )
      }
      await until('all are settled', async () => (await outbox.admin.stats()).states.published.count === 120)
      await relay.stop()
      expect(await outbox.admin.replay({ key: 'key 3' }, { by: 'ada', note: 'again' })).toBe(10)
      expect(await outbox.admin.audits()).toMatchObject([{ action: 'replay', count: 10, by: 'ada' }])
      expect((await outbox.admin.stats()).states).toMatchObject({ ready: { count: 1 }, held: { count: 9 } })
      await relayOf(outbox, to).start()
      await until('again', () => arrived.length === 130)
      expect(ids(arrived.slice(120))).toEqual(ids(events.filter(({ key }) => key === 'key 3')))
    })

    test('shards: a router handles each message in the store of its key, and what it returns is in the one outbox', async () => {
      const outbox = shardedOn(() => ioredis(url()), 3)
      const Placed = event('order.placed')
      const Invoiced = event('order.invoiced')
      const tags = new Map<string, string>()
      const router = new Router('billing')
        .use(transactional((message) => outbox.storeOf(message.key ?? message.id)))
        .on(Placed, (message, { tx }) => {
          const db = outbox.storeOf(message.key!)
          tags.set(message.key!, db.tag)
          tx.incr(db.key('handled'))
          return [Invoiced({}, { extensions: { partitionkey: message.key! } })]
        })
      const broker = new InProcessBroker()
      const consumer = await router.consume(broker.source('orders')).start()
      const sent = Array.from({ length: 12 }, (_, n) => Placed({}, { extensions: { partitionkey: `order ${n}` } }))
      // Each twice: the inbox of its store lets the second pass without the handler.
      await broker.publish([...sent, ...sent].map(encodeData))
      await until('all are in the outbox', async () => (await outbox.admin.list()).length === 12)
      await until('all are settled', () => Object.values(broker.stats('orders')).every((count) => count === 0))
      await consumer.stop()
      expect(new Set(tags.values()).size).toBeGreaterThan(1)
      expect((await outbox.admin.list()).map(({ key }) => key).sort()).toEqual([...tags.keys()].sort())
      const counts = [...new Set(tags.values())].map((tag) => reader(url()).get(`{${tag}}:handled`))
      expect((await Promise.all(counts)).reduce((sum, count) => sum + Number(count), 0)).toBe(12)
    })

    test('shards: a unit of work of another slot is told before anything is sent', async () => {
      const outbox = shardedOn(() => ioredis(url()), 3)
      const [event] = samples(1, { key: 'order 7' })
      const right = outbox.storeOf('order 7')
      await right.withTransaction((tx) => outbox.enqueue(tx, event!))
      expect(await outbox.admin.list()).toHaveLength(1)
      const other = Array.from({ length: 50 }, (_, n) => outbox.storeOf(`k${n}`)).find((store) => store !== right)!
      const crossed = other.withTransaction((tx) => outbox.enqueue(tx, samples(1, { key: 'order 7' })))
      await expect(crossed).rejects.toMatchObject({ code: 'CROSSSLOT' })
      // Without a key an event goes where the unit of work is.
      await other.withTransaction((tx) => outbox.enqueue(tx, samples(2)))
      expect(await outbox.admin.list()).toHaveLength(3)
    })
  })
}

const NEVER = new AbortController().signal

describeWith(['redis'], 'redis outbox: what it refuses', () => {
  test('ways to read it does not have, and options it does not know', async () => {
    const { outbox, db } = outboxOn(ioredis(service('redis').url))
    expect(() => relayOf(outbox, async () => {}, { reader: 'owner' })).toThrow(/relays compete there/)
    expect(() => relayOf(outbox, async () => {}, { shards: 4 })).toThrow(/as many as the stores/)
    const made = (options: object) => () => outboxOn(ioredis(service('redis').url), options)
    expect(made({ nmae: 'x' })).toThrow(/did you mean "name"\?/)
    expect(made({ name: '{x}' })).toThrow(/without braces/)
    expect(made({ kind: 'strem' })).toThrow(/redis: outbox.kind: .*did you mean "stream"\?/)
    expect(() => redisOutbox({ on: [] })).toThrow(/give a list of stores/)
    expect(() => redisOutbox({ on: db as never })).toThrow(
      /for one tag it is redis\(\{ …, outbox: \{ kind: 'stored' \} \}\)/,
    )
    expect(() => redisOutbox({ on: [db, db] })).toThrow(/two stores have the tag/)
    expect(() => redisDue({ outbox: storeOf(ioredis(service('redis').url)).outbox as never })).toThrow(/kind: 'stored'/)
    expect(telemetry['outbox.enqueued'].active).toBe(false)
  })
})
