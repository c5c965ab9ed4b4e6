import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { DONE } from '../flow/index.ts'
import { dead, ids, type OutboxProbe, PLENTY, retry, sample, samples } from './outbox-probe.ts'
import type { StoreCase } from './store-probe.ts'

const SHORT = 800

/** Relays that compete. */
export const leaseCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'lease: two relays read at once, and no event goes to both',
    needs: ['lease'],
    async run(probe) {
      const events = samples(200)
      await probe.enqueue(events)
      const relays = [probe.relay({ reader: 'lease' }), probe.relay({ reader: 'lease' })]
      const sessions = await Promise.all(relays.map((relay) => relay.open()))
      const got: string[] = []
      await probe.time.until('all are given', async () => {
        const batches = await Promise.all(
          [0, 1, 0, 1].map((i) => relays[i]!.take(sessions[i]!, { ...PLENTY, count: 13 })),
        )
        for (const batch of batches) got.push(...ids(batch))
        return got.length >= events.length
      })
      deepStrictEqual(got.sort(), ids(events).sort())
      deepStrictEqual(await probe.states(), { leased: 200 })
    },
  },
  {
    name: 'lease: what one relay has, another cannot settle',
    needs: ['lease'],
    async run(probe) {
      const event = sample(1)
      await probe.enqueue([event])
      const [one, other] = [probe.relay({ reader: 'lease' }), probe.relay({ reader: 'lease' })]
      const session = await one.open()
      const taken = await one.receive(session, 1)
      const stranger = await other.open()
      strictEqual(await other.settle(stranger, DONE, ...taken), 1)
      strictEqual((await probe.entry(event)).state, 'leased')
      strictEqual(await one.settle(session, DONE, ...taken), 0)
    },
  },
  {
    name: 'lease: what a relay lets run out goes to another, and counts as an attempt',
    needs: ['lease'],
    async run(probe) {
      const events = samples(3)
      await probe.enqueue(events)
      const zombie = probe.relay({ reader: 'lease', lease: SHORT })
      const lost = await zombie.open()
      const taken = await zombie.receive(lost, 3)
      zombie.clock.stop()
      const relay = probe.relay({ reader: 'lease' })
      const session = await relay.open()
      // They may come one by one: any of them may have killed the relay before.
      const [first] = await relay.receive(session, 1)
      const stale = await lost.settle(taken.map((delivery, i) => [delivery, [DONE, retry(), dead()][i]!] as const))
      strictEqual(stale, 3, 'what the first settles now changes nothing, and is counted')
      strictEqual((await probe.entry(first!.message)).state, 'leased')
      const again = [first!]
      strictEqual(await relay.settle(session, DONE, first!), 0)
      while (again.length < 3) {
        const [next] = await relay.receive(session, 1)
        again.push(next!)
        strictEqual(await relay.settle(session, DONE, next!), 0)
      }
      deepStrictEqual(ids(again).sort(), ids(events).sort())
      deepStrictEqual(
        again.map(({ attempts }) => attempts),
        [1, 1, 1],
      )
      for (const { attempts, state } of await probe.entries()) deepStrictEqual([state, attempts], ['published', 1])
    },
  },
  {
    name: 'lease: what is settled after the lease ran out is stale, though nobody has taken it',
    needs: ['lease'],
    async run(probe) {
      await probe.enqueue([sample(1)])
      const zombie = probe.relay({ reader: 'lease', lease: SHORT })
      const lost = await zombie.open()
      const taken = await zombie.receive(lost, 1)
      zombie.clock.stop()
      await probe.time.pass(SHORT + 100)
      strictEqual(await zombie.settle(lost, DONE, ...taken), 1)
      deepStrictEqual(await probe.states(), { leased: 1 })
    },
  },
  {
    name: 'lease: a relay that wakes up past its lease knows before it dispatches',
    needs: ['lease'],
    async run(probe) {
      await probe.enqueue([sample(1)])
      const zombie = probe.relay({ reader: 'lease', lease: SHORT })
      const lost = await zombie.open()
      await zombie.receive(lost, 1)
      zombie.clock.stop()
      await probe.time.pass(SHORT + 100)
      zombie.clock.wake()
      strictEqual(lost.live?.() ?? !lost.lost.aborted, false)
    },
  },
  {
    name: 'lease: what is renewed while it is worked on stays with its relay',
    needs: ['lease'],
    async run(probe) {
      const event = sample(1)
      await probe.enqueue([event])
      const [one, other] = [probe.relay({ reader: 'lease', lease: 1000 }), probe.relay({ reader: 'lease' })]
      const session = await one.open()
      const taken = await one.receive(session, 1)
      const stranger = await other.open()
      await probe.time.throughout(1700, async () => {
        await session.extend!(taken)
        deepStrictEqual(ids(await other.take(stranger)), [])
      })
      strictEqual(session.lost.aborted, false)
      strictEqual(await one.settle(session, DONE, ...taken), 0)
      strictEqual((await probe.entry(event)).attempts, 0)
    },
  },
  {
    name: 'lease: an event under which leases ran out too often is dead',
    needs: ['lease'],
    async run(probe) {
      const [fatal, other] = samples(2)
      await probe.enqueue([fatal!])
      const options = { reader: 'lease', lease: SHORT, attempts: 2 } as const
      for (let deaths = 0; deaths < 2; deaths++) {
        const zombie = probe.relay(options)
        const [delivery] = await zombie.receive(await zombie.open(), 1)
        strictEqual(delivery!.attempts, deaths)
        zombie.clock.stop()
      }
      const relay = probe.relay(options)
      const session = await relay.open()
      await probe.time.until('it is dead', async () => {
        deepStrictEqual(ids(await relay.take(session)), [])
        return (await probe.entry(fatal!)).state === 'dead'
      })
      strictEqual((await probe.entry(fatal!)).attempts, 2)
      await probe.enqueue([other!])
      deepStrictEqual(ids(await relay.receive(session, 1)), [other!.id], 'others flow')
    },
  },
  {
    name: 'lease: many events that wait for a later time are in nobody’s way',
    needs: ['lease'],
    async run(probe) {
      await probe.enqueue(samples(50), { availableAt: new Date(probe.time.now() + 3_600_000) })
      const [event] = samples(1)
      await probe.enqueue([event!])
      const relay = probe.relay({ reader: 'lease' })
      const taken = await relay.take(await relay.open())
      deepStrictEqual(ids(taken), [event!.id])
      ok(taken[0]!.size > 0)
    },
  },
]
