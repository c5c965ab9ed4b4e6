import { expect, test } from 'vitest'
import type { Message } from '../../src/core/index.ts'
import type { OutboxReader } from '../../src/outbox/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { describeWith, service } from '../support/services.ts'
import { outboxOn, READER } from './outbox-support.ts'
import { ioredis, reader, until } from './support.ts'

const NOTHING = { restored: 0, dropped: 0, released: 0, headed: 0 }

for (const server of ['redis', 'redis6']) {
  describeWith([server], `repair of a redis outbox on ${server}`, () => {
    const setup = () => {
      const { db, outbox } = outboxOn(ioredis(service(server).url))
      const raw = reader(service(server).url)
      const base = `{${db.tag}}:outbox`
      const member = async (event: Message, set = 'pending') => {
        const members = await raw.zrange(`${base}:${set}`, '0', '-1')
        return members.find((one) => one.endsWith(event.id))!
      }
      const drain = async (count: number) => {
        const arrived: string[] = []
        const to = async ({ id }: Message) => void arrived.push(id)
        const relay = new Relay({ from: outbox as OutboxReader, to, lease: '1s' })
        await until(`${count} have arrived`, async () => {
          await relay.runOnce()
          return arrived.length >= count
        })
        await relay.stop()
        return arrived
      }
      const repair = outbox.repair({ batch: 10, patience: 0 })
      return { outbox, raw, base, member, drain, repair }
    }

    test('what belongs together is left alone, in every state', async () => {
      const { outbox, raw, base, drain, repair } = setup()
      await outbox.enqueueAlone(samples(30, { key: 'a' }))
      await outbox.enqueueAlone(samples(30))
      await outbox.enqueueAlone(samples(5, { key: 'b' }), { availableAt: new Date(Date.now() + 3_600_000) })
      await drain(31)
      const before = await Promise.all(['states', 'heads'].map((name) => raw.hgetall(`${base}:${name}`)))
      const seen = recordTelemetry(['outbox.repaired'])
      expect(await repair.runOnce()).toEqual(NOTHING)
      seen.stop()
      expect(seen.events).toEqual([])
      expect(await Promise.all(['states', 'heads'].map((name) => raw.hgetall(`${base}:${name}`)))).toEqual(before)
    })

    test('a place without an entry: dropped, and told', async () => {
      const { outbox, raw, base, drain, repair } = setup()
      const [gone, kept] = samples(2)
      await outbox.enqueueAlone([gone!, kept!])
      await raw.hdel(`${base}:entries`, gone!.id)
      const seen = recordTelemetry(['outbox.repaired'])
      expect(await repair.runOnce()).toMatchObject({ dropped: 1, restored: 0 })
      seen.stop()
      expect(seen.of('outbox.repaired')).toMatchObject([{ table: outbox.name, dropped: 1 }])
      expect(await raw.zcard(`${base}:pending`)).toBe(1)
      expect(await raw.hlen(`${base}:states`)).toBe(1)
      expect(await drain(1)).toEqual([kept!.id])
    })

    test('a place without an entry in front of a relay: passed over, not tried for ever', async () => {
      const { outbox, raw, base, drain } = setup()
      const events = samples(3, { key: 'a' })
      await outbox.enqueueAlone(events)
      await raw.hdel(`${base}:entries`, events[0]!.id)
      expect(await drain(2)).toEqual([events[1]!.id, events[2]!.id])
    })

    test('an entry without a place: put back, whether its state is kept or not', async () => {
      const { outbox, raw, base, member, drain, repair } = setup()
      const [unplaced, stateless, bare] = samples(3)
      await outbox.enqueueAlone([unplaced!, stateless!, bare!])
      await raw.zrem(`${base}:pending`, await member(unplaced!), await member(bare!))
      await raw.hdel(`${base}:states`, stateless!.id, bare!.id)
      expect(await repair.runOnce()).toMatchObject({ restored: 3, dropped: 0 })
      expect((await drain(3)).sort()).toEqual([unplaced!.id, stateless!.id, bare!.id].sort())
      expect(await repair.runOnce()).toEqual(NOTHING)
    })

    test('a script stopped halfway: the entry alone is enough', async () => {
      const { outbox, raw, base, drain, repair } = setup()
      const [event, other] = samples(2, { key: 'a' })
      await outbox.enqueueAlone([event!, other!])
      await raw.del(`${base}:states`, `${base}:pending`, `${base}:held`, `${base}:heads`)
      expect(await repair.runOnce()).toMatchObject({ restored: 2 })
      expect((await drain(2)).sort()).toEqual([event!.id, other!.id].sort())
    })

    test('a lease that nobody holds: given up after its end, an attempt spent; without a place it is placed', async () => {
      const { outbox, raw, base, member, repair } = setup()
      const events = samples(2)
      await outbox.enqueueAlone(events)
      const [source] = await outbox.reader({ ...READER, lease: 1500 }).assignment()
      const session = await source!.open(new AbortController().signal)
      expect(await session!.take({ count: 2, bytes: 1e6 }, new AbortController().signal)).toHaveLength(2)
      await raw.zrem(`${base}:leased`, await member(events[0]!, 'leased'))
      expect(await repair.runOnce()).toMatchObject({ restored: 1, released: 0 })
      let released = 0
      await until('the leases have ended', async () => {
        released += (await repair.runOnce()).released
        return released === 2
      })
      const entries = await outbox.admin.list()
      expect(entries.map(({ state, attempts }) => [state, attempts])).toEqual([
        ['retrying', 1],
        ['retrying', 1],
      ])
      expect(entries[0]!.lastError).toMatch(/lease/)
    })

    test('a key whose head is missing gets the next; one that waits for nothing goes on', async () => {
      const { outbox, raw, base, drain, repair } = setup()
      const events = samples(4, { key: 'a' })
      await outbox.enqueueAlone(events)
      await raw.hdel(`${base}:entries`, events[0]!.id)
      await raw.hdel(`${base}:states`, events[0]!.id)
      await raw.del(`${base}:pending`)
      expect(await repair.runOnce()).toMatchObject({ headed: 1 })
      expect(await drain(3)).toEqual(events.slice(1).map(({ id }) => id))
      const more = samples(2, { key: 'b' })
      await outbox.enqueueAlone(more)
      await raw.hdel(`${base}:heads`, 'b')
      await repair.runOnce()
      expect(await drain(2)).toEqual(more.map(({ id }) => id))
      expect(await repair.runOnce()).toEqual(NOTHING)
    })

    test('an entry held in no place, dead in none and sent in none is found again', async () => {
      const { outbox, raw, base, drain, repair } = setup()
      const [first, held] = samples(2, { key: 'a' })
      const [dead, sent] = samples(2)
      await outbox.enqueueAlone([sent!])
      await drain(1)
      await outbox.enqueueAlone([dead!])
      const relay = new Relay({
        from: outbox as OutboxReader,
        to: async () => Promise.reject(new Error('no')),
        retry: { attempts: 1 },
      })
      await relay.runOnce()
      await relay.stop()
      await outbox.enqueueAlone([first!, held!])
      await raw.del(`${base}:held`, `${base}:dead`, `${base}:sent`)
      expect(await repair.runOnce()).toMatchObject({ restored: 3 })
      const { states } = await outbox.admin.stats()
      expect(states).toMatchObject({ held: { count: 1 }, dead: { count: 1 }, published: { count: 1 } })
    })

    test('what was scheduled, is due and was not looked at yet is nothing to repair', async () => {
      const { outbox, repair } = setup()
      const due = Date.now() + 20
      await outbox.enqueueAlone(samples(1, { key: 'a' }), { availableAt: new Date(due) })
      await until('it is due', () => Date.now() > due + 10)
      expect(await repair.runOnce()).toEqual(NOTHING)
    })

    test('the heads are lost: a dead one blocks its key as before, and so does one that waits for its retry', async () => {
      const { outbox, raw, base, repair } = setup()
      await outbox.enqueueAlone([...samples(2, { key: 'a' }), ...samples(2, { key: 'b' })])
      const [source] = await outbox.reader({ ...READER }).assignment()
      const never = new AbortController().signal
      const session = await source!.open(never)
      const taken = await session!.take({ count: 4, bytes: 1e6 }, never)
      expect(taken.map(({ key }) => key)).toEqual(['a', 'b'])
      const error = new Error('no')
      await session!.settle([
        [taken[0]!, { kind: 'dead', reason: 'no', error }],
        [taken[1]!, { kind: 'retry', after: 600_000, charged: true, error }],
      ])
      await raw.del(`${base}:heads`, `${base}:retrying`)
      expect(await repair.runOnce()).toEqual({ restored: 1, dropped: 0, released: 0, headed: 2 })
      expect(await session!.take({ count: 4, bytes: 1e6 }, never)).toEqual([])
      await session!.close()
      const { states } = await outbox.admin.stats()
      expect(states).toMatchObject({ dead: { count: 1 }, retrying: { count: 1 }, held: { count: 2 } })
      expect(await repair.runOnce()).toEqual(NOTHING)
    })

    test('beside relays and writers at work nothing is lost, doubled or reordered', async () => {
      const { outbox, repair } = setup()
      const arrived: Message[] = []
      const to = async (message: Message) => void arrived.push(message)
      const relay = new Relay({ from: outbox as OutboxReader, to, batch: 20, poll: 5, maxPoll: 5 })
      await relay.start()
      const sent: Message[] = []
      const seen = recordTelemetry(['outbox.repaired'])
      for (let round = 0; round < 15; round++) {
        const events = samples(20, round % 2 ? { key: `key ${round % 3}` } : {})
        sent.push(...events)
        await Promise.all([outbox.enqueueAlone(events), repair.runOnce()])
      }
      await until('all have arrived', () => arrived.length >= sent.length)
      await relay.stop()
      seen.stop()
      expect(seen.events).toEqual([])
      expect(arrived.map(({ id }) => id).sort()).toEqual(sent.map(({ id }) => id).sort())
      for (const key of ['key 0', 'key 1', 'key 2']) {
        const of = (list: Message[]) => list.filter((event) => event.key === key).map(({ id }) => id)
        expect(of(arrived)).toEqual(of(sent))
      }
    })
  })
}
