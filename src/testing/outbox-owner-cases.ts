import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import type { Delivery, Session } from '../flow/index.ts'
import { DONE, RELEASE } from '../flow/index.ts'
import { dead, ids, type OutboxProbe, type RelayProbe, retry, sample, samples } from './outbox-probe.ts'
import type { StoreCase } from './store-probe.ts'

/** Long enough to be used, short enough to be waited for. */
const SHORT = 800

interface Died {
  readonly zombie: RelayProbe
  readonly lost: Session
  readonly taken: readonly Delivery[]
}

/** A relay that had taken everything when it was suspended, and the one that took over when its term ran out. */
async function takenOver(probe: OutboxProbe, count: number, before?: (died: Died) => unknown) {
  const events = samples(count)
  await probe.enqueue(events)
  const zombie = probe.relay({ lease: SHORT })
  const lost = await zombie.open()
  const taken = await zombie.receive(lost, count)
  await before?.({ zombie, lost, taken })
  zombie.clock.stop()
  const relay = probe.relay()
  return { events, zombie, lost, taken, relay, session: await relay.open() }
}

/** One owner at a time, and nothing is lost between two of them. */
export const ownerCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'owner: a second relay may not read while the first does, and takes over when that is closed',
    needs: ['owner'],
    async run(probe) {
      const [done, left] = samples(2)
      await probe.enqueue([done!, left!])
      const [first, second] = [probe.relay(), probe.relay()]
      const session = await first.open()
      const taken = await first.receive(session, 2)
      strictEqual(await second.tryOpen(), undefined)
      strictEqual(await second.tryOpen(), undefined)
      await first.settle(session, DONE, taken[0]!)
      await first.close()
      const next = await second.tryOpen()
      ok(next !== undefined, 'it may read at once')
      strictEqual(next.afterCrash ?? false, false, 'nobody died')
      deepStrictEqual(ids(await second.receive(next, 1)), [left!.id])
    },
  },
  {
    name: 'owner: an assignment that did not change is the same source',
    needs: ['owner'],
    async run(probe) {
      const relay = probe.relay()
      const [source, ...others] = await relay.assignment()
      deepStrictEqual(others, [])
      strictEqual((await relay.assignment())[0], source)
      const { redelivers = false, holdsKeys = false } = source!.features
      deepStrictEqual({ redelivers, holdsKeys }, { redelivers: true, holdsKeys: true })
    },
  },
  {
    name: 'owner: an owner that works on keeps its term beyond its lease',
    needs: ['owner'],
    async run(probe) {
      const [first, second] = [probe.relay({ lease: 1500 }), probe.relay()]
      const session = await first.open()
      await probe.time.throughout(2000, async () => {
        await first.assignment()
        // As a flow does, every `extendEvery` milliseconds.
        await session.extend?.([])
        strictEqual(await second.tryOpen(), undefined)
      })
      strictEqual(session.lost.aborted, false)
      await probe.enqueue([sample(1)])
      strictEqual(await first.settle(session, DONE, ...(await first.receive(session, 1))), 0)
    },
  },
  {
    name: 'owner: when a relay dies the next gets what it had not settled, and nobody is charged',
    needs: ['owner'],
    async run(probe) {
      const { events, relay, session } = await takenOver(probe, 3)
      strictEqual(session.afterCrash, true, 'something may have killed the relay before')
      const again = await relay.receive(session, 3)
      deepStrictEqual(ids(again), ids(events))
      deepStrictEqual(
        again.map(({ attempts }) => attempts),
        [0, 0, 0],
      )
      strictEqual(await relay.settle(session, DONE, ...again), 0)
    },
  },
  {
    name: 'owner: what a relay settles after another took over changes nothing, and is counted',
    needs: ['owner'],
    async run(probe) {
      const { events, zombie, lost, taken, relay, session } = await takenOver(probe, 3)
      const stale = await lost.settle([
        [taken[0]!, DONE],
        [taken[1]!, retry()],
        [taken[2]!, dead()],
      ])
      strictEqual(stale, 3)
      ok(lost.lost.aborted, 'its session is lost')
      strictEqual(await zombie.settle(lost, DONE, taken[0]!).catch(() => 1), 1)
      for (const event of events) {
        const { state, attempts } = await probe.entry(event)
        deepStrictEqual([state, attempts], ['ready', 0])
      }
      strictEqual(await relay.settle(session, DONE, ...(await relay.receive(session, 3))), 0)
      deepStrictEqual(await probe.states(), { published: 3 })
    },
  },
  {
    name: 'owner: what a relay settles after its term ran out changes nothing, though nobody took over',
    needs: ['owner'],
    async run(probe) {
      await probe.enqueue(samples(2))
      const zombie = probe.relay({ lease: SHORT })
      const lost = await zombie.open()
      const taken = await zombie.receive(lost, 2)
      zombie.clock.stop()
      await probe.time.pass(SHORT + 100)
      strictEqual(await lost.settle(taken.map((delivery) => [delivery, DONE] as const)), 2)
      deepStrictEqual(await probe.states(), { ready: 2 })
    },
  },
  {
    name: 'owner: a relay that wakes up past its lease knows before it dispatches',
    needs: ['owner'],
    async run(probe) {
      const { zombie, lost } = await takenOver(probe, 1)
      zombie.clock.wake()
      strictEqual(lost.live?.() ?? !lost.lost.aborted, false)
      ok(lost.lost.aborted)
    },
  },
  {
    name: 'owner: what was alone in flight when a relay died is charged',
    needs: ['owner', 'probes'],
    async run(probe) {
      const { events, relay, session } = await takenOver(probe, 2, async ({ zombie, lost, taken }) => {
        await zombie.settle(lost, RELEASE, taken[1]!)
        await lost.recordProbe!(taken[0]!)
      })
      const [charged, innocent] = await Promise.all(events.map((event) => probe.entry(event)))
      deepStrictEqual([charged!.attempts, innocent!.attempts], [1, 0])
      const others = await relay.receive(session, 1)
      deepStrictEqual(ids(others), [events[1]!.id])
      deepStrictEqual(ids(await relay.receive(session, 1)), [events[0]!.id], 'it is tried again, later')
    },
  },
  {
    name: 'owner: what was alone in flight too often is dead',
    needs: ['owner', 'probes'],
    async run(probe) {
      const event = sample(1)
      await probe.enqueue([event])
      const zombie = probe.relay({ lease: SHORT })
      const lost = await zombie.open()
      const [delivery] = await zombie.receive(lost, 1)
      await lost.recordProbe!(delivery!)
      zombie.clock.stop()
      await probe.relay({ attempts: 1 }).open()
      const { state, attempts } = await probe.entry(event)
      deepStrictEqual([state, attempts], ['dead', 1])
    },
  },
  {
    name: 'owner: what was settled before the relay died is not charged',
    needs: ['owner', 'probes'],
    async run(probe) {
      const { events, session } = await takenOver(probe, 1, async ({ zombie, lost, taken }) => {
        await lost.recordProbe!(taken[0]!)
        await zombie.settle(lost, retry(60_000, false), ...taken)
      })
      strictEqual(session.afterCrash, true)
      strictEqual((await probe.entry(events[0]!)).attempts, 0)
    },
  },
  {
    name: 'owner: a session that waits is woken by a commit',
    needs: ['wakes'],
    async run(probe) {
      const relay = probe.relay({ wake: true })
      const session = await relay.open()
      const stop = new AbortController()
      for (let i = 0; i < 3; i++) {
        await relay.nothing(session, 'nothing is there', 20)
        let woken = false
        const waiting = session.wait!(3_600_000, stop.signal).then(() => {
          woken = true
        })
        await probe.time.pass(50)
        strictEqual(woken, false, 'nothing has happened yet')
        await probe.enqueue([sample(i)])
        await probe.time.soon(waiting, 'the wait is over')
        await relay.settle(session, DONE, ...(await relay.receive(session, 1)))
      }
      const waiting = session.wait!(3_600_000, stop.signal)
      stop.abort()
      await probe.time.soon(waiting, 'a wait that is called off is over')
    },
  },
  {
    name: 'owner: a session waits no longer than until the next retry is due',
    needs: ['wakes'],
    async run(probe) {
      await probe.enqueue([sample(1)])
      const relay = probe.relay()
      const session = await relay.open()
      // On a busy machine it may be due again before anybody can wait for it.
      let attempts = 0
      let given: readonly Delivery[] = await relay.receive(session, 1)
      for (; given.length > 0; given = await relay.take(session)) {
        await relay.settle(session, retry(200 * 2 ** attempts), ...given)
        attempts += 1
      }
      let over = false
      const waiting = session.wait!(3_600_000, new AbortController().signal).then(() => {
        over = true
      })
      await probe.time.until('the wait is over', async () => over)
      await waiting
      strictEqual((await relay.receive(session, 1))[0]!.attempts, attempts)
    },
  },
]
