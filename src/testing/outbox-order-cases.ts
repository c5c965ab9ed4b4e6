import { deepStrictEqual, strictEqual } from 'node:assert/strict'
import { RELEASE } from '../flow/index.ts'
import { dead, ids, type OutboxProbe, retry, sample } from './outbox-probe.ts'
import type { StoreCase } from './store-probe.ts'

const keyed = (key: string, ...numbers: number[]) => numbers.map((n) => sample(n, { key }))

/** Order per key, whoever keeps it. */
export const orderCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'order: events of a key come in the order they were written',
    needs: ['order'],
    async run(probe) {
      const [a, b] = [keyed('a', 1, 2, 3), keyed('b', 1, 2, 3)]
      for (const n of [0, 1, 2]) await probe.enqueue([a[n]!, b[n]!])
      const relay = probe.relay()
      const order = await relay.inOrder(await relay.open(), 6)
      for (const events of [a, b]) {
        deepStrictEqual(
          order.filter((id) => ids(events).includes(id)),
          ids(events),
        )
      }
    },
  },
  {
    name: 'order: while one of a key waits for its retry, later ones wait too and other keys do not',
    needs: ['order'],
    async run(probe) {
      const [first, second, third] = keyed('a', 1, 2, 3)
      const [other] = keyed('b', 1)
      await probe.enqueue([first!, second!])
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, retry(3_600_000), ...(await relay.receive(session, 1)))
      await probe.enqueue([third!, other!])
      deepStrictEqual(await relay.inOrder(session, 1), [other!.id])
      await relay.nothing(session, 'the others wait')
      strictEqual((await probe.entry(second!)).state, 'held')
    },
  },
  {
    name: 'order: what is written while its key waits joins the end of the key',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events.slice(0, 2))
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, retry(300), ...(await relay.receive(session, 1)))
      await probe.enqueue(events.slice(2))
      deepStrictEqual(await relay.inOrder(session, 3), ids(events))
      deepStrictEqual(await probe.states(), { published: 3 })
    },
  },
  {
    name: 'order: of a key, what is retried comes before what was released after it',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events)
      const relay = probe.relay()
      const session = await relay.open()
      // As a flow does when the first of a run fails.
      for (let failures = 0; failures < 3; failures++) {
        const taken = [...(await relay.receive(session, 1)), ...(await relay.take(session))]
        strictEqual(taken[0]!.message.id, events[0]!.id)
        await session.settle(taken.map((delivery, i) => [delivery, i === 0 ? retry(30) : RELEASE] as const))
      }
      deepStrictEqual(await relay.inOrder(session, 3), ids(events))
    },
  },
  {
    name: 'order: a retry keeps its place when the relay is another',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events)
      const first = probe.relay()
      const session = await first.open()
      await first.settle(session, retry(1500), ...(await first.receive(session, 1)))
      deepStrictEqual(ids(await first.take(session)), [], 'the others wait')
      await first.close()
      const second = probe.relay()
      deepStrictEqual(await second.inOrder(await second.open(), 3), ids(events))
    },
  },
  {
    name: 'order: a dead event blocks its key, also for another relay, until a person decides',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      const [other] = keyed('b', 1)
      await probe.enqueue([...events, other!])
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, dead(), ...(await relay.receive(session, 1)))
      deepStrictEqual(await relay.inOrder(session, 1), [other!.id])
      await relay.nothing(session, 'its key waits')
      await relay.close()
      const next = probe.relay()
      const nextSession = await next.open()
      await next.nothing(nextSession, 'its key waits for another relay too')
      await probe.outbox.admin.discardDead({ key: 'a' }, { by: 'case', note: 'let the key go on' })
      deepStrictEqual(await next.inOrder(nextSession, 2), ids(events.slice(1)))
    },
  },
  {
    name: 'order: a re-armed event comes before the later ones of its key',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events)
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, dead(), ...(await relay.receive(session, 1)))
      await relay.nothing(session, 'its key waits', 50)
      strictEqual(await probe.outbox.admin.rearm({ key: 'a' }), 1)
      deepStrictEqual(await relay.inOrder(session, 3), ids(events))
    },
  },
  {
    name: 'order: a key goes on without its dead event, where the options say so',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events)
      const relay = probe.relay({ deadKey: 'continue' })
      const session = await relay.open()
      await relay.settle(session, retry(1500), ...(await relay.receive(session, 1)))
      deepStrictEqual(ids(await relay.take(session)), [], 'the others wait')
      const again = await relay.receive(session, 1)
      strictEqual(again[0]!.message.id, events[0]!.id)
      await relay.settle(session, dead(), ...again)
      deepStrictEqual(await relay.inOrder(session, 2), ids(events.slice(1)))
      deepStrictEqual(await probe.states(), { dead: 1, published: 2 })
    },
  },
  {
    name: 'order: a relay that goes on without dead events finds what one that did not has left waiting',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3)
      await probe.enqueue(events)
      const strict = probe.relay()
      const session = await strict.open()
      await strict.settle(session, dead(), ...(await strict.receive(session, 1)))
      await strict.nothing(session, 'its key waits')
      await strict.close()
      const lenient = probe.relay({ deadKey: 'continue' })
      deepStrictEqual(await lenient.inOrder(await lenient.open(), 2), ids(events.slice(1)))
    },
  },
  {
    name: 'order: a scheduled event does not hold up its key, and goes with it when it is due',
    needs: ['order'],
    async run(probe) {
      const [later, now, due] = keyed('a', 1, 2, 3)
      await probe.enqueue([later!], { availableAt: new Date(probe.time.now() + 3_600_000) })
      await probe.enqueue([now!])
      await probe.enqueue([due!], { availableAt: new Date(probe.time.now() - 1000) })
      const relay = probe.relay()
      const session = await relay.open()
      deepStrictEqual(await relay.inOrder(session, 2), ids([now!, due!]))
      await relay.nothing(session, 'one is not due', 20)
    },
  },
  {
    name: 'order: a scheduled event that is due comes between the earlier and the later ones of its key',
    needs: ['order'],
    async run(probe) {
      const events = keyed('a', 1, 2, 3, 4, 5)
      const due = { availableAt: new Date(probe.time.now() - 1000) }
      for (const [n, event] of events.entries()) await probe.enqueue([event], n % 2 === 1 ? due : {})
      const relay = probe.relay()
      const session = await relay.open()
      deepStrictEqual(await relay.inOrder(session, 5), ids(events))
    },
  },
  {
    name: 'order: events without a key wait for nobody',
    needs: ['order'],
    async run(probe) {
      const [failing, ...others] = [1, 2, 3].map((n) => sample(n))
      await probe.enqueue([failing!])
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, retry(3_600_000), ...(await relay.receive(session, 1)))
      await probe.enqueue(others)
      deepStrictEqual(ids(await relay.receive(session, 2)), ids(others))
    },
  },
]
