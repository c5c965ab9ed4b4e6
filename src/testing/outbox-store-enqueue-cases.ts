import { deepStrictEqual, notStrictEqual, ok, rejects, strictEqual } from 'node:assert/strict'
import { Message } from '../core/index.ts'
import { DONE } from '../flow/index.ts'
import { ids, same, sample, samples } from './outbox-probe.ts'
import type { OutboxStoreProbe } from './outbox-store-suite.ts'
import { openTransaction, refused, type StoreCase } from './store-probe.ts'

/** When an event is there, and how often. */
export const enqueueCases: readonly StoreCase<OutboxStoreProbe>[] = [
  {
    name: 'a committed event is there, once, and can be dispatched',
    async run({ work, outbox, ...probe }) {
      const event = sample(1)
      await work.withTransaction((tx) => outbox.enqueue(tx, [event]))
      const [entry, ...others] = await outbox.admin.list()
      deepStrictEqual(others, [])
      const { eventId, state, tenant, topic, key, type, version, attempts, lastError } = entry!
      deepStrictEqual(
        { eventId, state, tenant, topic, key, type, version, attempts, lastError },
        {
          eventId: event.id,
          state: 'ready',
          tenant: '',
          topic: event.type,
          key: undefined,
          type: event.type,
          version: 1,
          attempts: 0,
          lastError: undefined,
        },
      )
      const age = probe.time.now() - entry!.createdAt.getTime()
      ok(Math.abs(age) < 60_000, `it was created now, not ${age} ms ago`)
      strictEqual(entry!.publishedAt, undefined)
    },
  },
  {
    name: 'a rollback leaves nothing, and the event can be enqueued again',
    async run(probe) {
      const event = sample(1)
      const failure = new Error('no')
      const failing = probe.work.withTransaction(async (tx) => {
        await probe.outbox.enqueue(tx, [event])
        await probe.outbox.enqueue(tx, samples(3))
        throw failure
      })
      await rejects(failing, failure)
      deepStrictEqual(await probe.entries(), [])
      await probe.enqueue([event])
      deepStrictEqual(ids(await deliveries(probe, 1)), [event.id])
    },
  },
  {
    name: 'nobody sees an event before its transaction commits',
    async run(probe) {
      const open = await openTransaction(probe.work, (tx) => probe.outbox.enqueue(tx, [sample(1)]))
      const relay = probe.relay()
      const session = await relay.open()
      deepStrictEqual(await probe.entries(), [])
      deepStrictEqual(await relay.take(session), [])
      await open.commit()
      strictEqual((await probe.entries()).length, 1)
      strictEqual((await relay.receive(session, 1)).length, 1)
    },
  },
  {
    name: 'an event that commits after later ones is found',
    async run(probe) {
      const [early, late] = [sample(1), sample(2)]
      const open = await openTransaction(probe.work, (tx) => probe.outbox.enqueue(tx, [early]))
      await probe.enqueue([late])
      const relay = probe.relay()
      const session = await relay.open()
      const first = await relay.receive(session, 1)
      await relay.settle(session, DONE, ...first)
      await open.commit()
      deepStrictEqual([...ids(first), ...ids(await relay.receive(session, 1))], [late.id, early.id])
    },
  },
  {
    name: 'many events in one call: receipts in their order, and each is the number of its event',
    needs: ['receipts'],
    async run(probe) {
      const events = samples(100)
      const receipts = await probe.enqueue(events)
      strictEqual(receipts.length, events.length)
      for (let i = 1; i < receipts.length; i++) ok(BigInt(receipts[i - 1]!) < BigInt(receipts[i]!), 'they grow')
      const entries = new Map((await probe.entries()).map(({ eventId, sequence }) => [eventId, sequence]))
      deepStrictEqual(
        receipts,
        events.map(({ id }) => entries.get(id)),
      )
      const [one] = await probe.enqueue([sample(1)])
      ok(BigInt(one!) > BigInt(receipts.at(-1)!), 'one event alone has one receipt too, that is greater')
    },
  },
  {
    name: 'no events are no work: an empty list is returned',
    async run(probe) {
      deepStrictEqual(await probe.enqueue([]), [])
      deepStrictEqual(await probe.entries(), [])
    },
  },
  {
    name: 'a thousand events of one call all come, in their order',
    async run(probe) {
      const events = samples(1000)
      await probe.enqueue(events)
      deepStrictEqual(ids(await deliveries(probe, 1000)), ids(events))
    },
  },
  {
    name: 'the same event again returns the first receipt and changes nothing',
    async run(probe) {
      const event = sample(1)
      const [first] = await probe.enqueue([event], { topic: 'first' })
      const changed = event.withData({ n: 2 })
      const [again] = await probe.work.withTransaction((tx) => probe.outbox.enqueue(tx, [changed], { topic: 'second' }))
      strictEqual(again, first)
      const [entry, ...others] = await probe.entries()
      deepStrictEqual([others.length, entry!.topic], [0, 'first'])
      const mixed = await probe.enqueue([sample(2), event, sample(3)])
      strictEqual(mixed[1], first, 'among others')
      notStrictEqual(mixed[0], mixed[2])
      strictEqual((await probe.entries()).length, 3)
    },
  },
  {
    name: 'a published event that is enqueued again is not published again',
    async run(probe) {
      const event = sample(1)
      const receipts = await probe.enqueue([event])
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, DONE, ...(await relay.receive(session, 1)))
      deepStrictEqual(await probe.enqueue([event]), receipts)
      await relay.nothing(session, 'it was published before')
      deepStrictEqual(await probe.states(), { published: 1 })
    },
  },
  {
    name: 'the same event twice in one call and in one transaction is one event',
    async run(probe) {
      const [event, other] = [sample(1), sample(2)]
      await probe.work.withTransaction(async (tx) => {
        const receipts = await probe.outbox.enqueue(tx, [event, other, event])
        deepStrictEqual([receipts.length, receipts[2]], [3, receipts[0]])
        notStrictEqual(receipts[0], receipts[1])
        deepStrictEqual(await probe.outbox.enqueue(tx, [event]), [receipts[0]])
      })
      strictEqual((await probe.entries()).length, 2)
    },
  },
  {
    name: 'two transactions at once with the same event: the second returns the first receipt',
    async run(probe) {
      const event = sample(1)
      const first = await openTransaction(probe.work, (tx) => probe.outbox.enqueue(tx, [event]))
      const second = probe.enqueue([sample(2), event])
      await probe.time.pass(50)
      await first.commit()
      strictEqual((await probe.time.soon(second, 'the second has an answer'))[1], first.value[0])
      strictEqual((await probe.entries()).length, 2)
    },
  },
  {
    name: 'two transactions at once with the same event: when the first rolls back, it is the second one’s',
    async run(probe) {
      const event = sample(1)
      const first = await openTransaction(probe.work, (tx) => probe.outbox.enqueue(tx, [event], { topic: 'first' }))
      const second = probe.enqueue([event], { topic: 'second' })
      await probe.time.pass(50)
      await first.rollback()
      await probe.time.soon(second, 'the second has an answer')
      deepStrictEqual(
        (await probe.entries()).map(({ topic }) => topic),
        ['second'],
      )
    },
  },
  {
    name: 'an id may be any text; the same id of another source is another event',
    async run(probe) {
      const id = 'Bestellung 7/ü €"\\\''
      const one = new Message({ id, source: '/shop', type: 'thing.done' }, { n: 1 })
      const two = new Message({ id, source: '/other', type: 'thing.done' }, { n: 2 })
      const upper = new Message({ id: sample(3).id.toUpperCase(), source: '/shop', type: 'thing.done' }, { n: 3 })
      const receipts = await probe.enqueue([one, two, upper])
      deepStrictEqual(await probe.enqueue([upper, two, one]), receipts.toReversed())
      const arrived = await deliveries(probe, 3)
      deepStrictEqual(
        arrived.map(({ message }) => [message.source, message.id]),
        [one, two, upper].map((message) => [message.source, message.id]),
      )
    },
  },
  {
    name: 'what is no transaction is refused, and nothing is written',
    needs: ['refusesPool'],
    async run(probe) {
      await refused(probe.outbox.enqueue(probe.pool, [sample(1)]), 'NOT_A_TRANSACTION', /transaction/)
      await refused(probe.outbox.enqueue(probe.pool, samples(2)), 'NOT_A_TRANSACTION')
      deepStrictEqual(await probe.entries(), [])
    },
  },
  {
    name: 'a call with something wrong in it writes nothing, and the transaction goes on',
    async run(probe) {
      const good = sample(1)
      const after = sample(2)
      const unserialisable = sample(3).withData({ amount: 1n })
      await probe.work.withTransaction(async (tx) => {
        const enqueue = (events: readonly unknown[], options = {}) =>
          probe.outbox.enqueue(tx, events as Message[], options)
        await refused(enqueue([good, { type: 'thing.done' }]), 'INVALID_OPTION', /is not an event/)
        await refused(enqueue([good, undefined]), 'INVALID_OPTION')
        await refused(enqueue([good], { key: 42 }), 'INVALID_OPTION', /key: 42/)
        await refused(enqueue([good], { key: '' }), 'INVALID_OPTION', /key: ""/)
        await refused(enqueue([good], { topic: 42 }), 'INVALID_OPTION', /topic: 42/)
        await refused(enqueue([good], { tenant: 42 }), 'INVALID_OPTION', /tenant: 42/)
        await refused(enqueue([good, unserialisable]), 'NOT_SERIALISABLE', /amount/)
        await refused(enqueue([good], { kye: 'a' }), 'UNKNOWN_OPTION', /did you mean "key"\?/)
        await refused(enqueue([good], { key: 'k'.repeat(10_000) }), 'TOO_LARGE', /10000 bytes/)
        await refused(enqueue([good, sample(1, { key: 'k'.repeat(10_000) })]), 'TOO_LARGE')
        await probe.outbox.enqueue(tx, [after])
      })
      const arrived = await deliveries(probe, 1)
      same(arrived[0]!.message.withData(after.data), after)
      strictEqual((await probe.entries()).length, 1)
    },
  },
]

/** What a relay is given. */
async function deliveries(probe: OutboxStoreProbe, count: number) {
  const relay = probe.relay()
  return relay.receive(await relay.open(), count)
}
