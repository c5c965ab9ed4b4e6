import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { decodeData } from '../core/index.ts'
import { DONE, RELEASE } from '../flow/index.ts'
import { dead, ids, type OutboxProbe, PLENTY, retry, sample, samples } from './outbox-probe.ts'
import type { StoreCase } from './store-probe.ts'

/** What becomes of an event is what was asked for, whoever reads. */
export function readerCases(reader: 'owner' | 'lease'): StoreCase<OutboxProbe>[] {
  const opened = async (probe: OutboxProbe, options = {}) => {
    const relay = probe.relay({ reader, ...options })
    return { relay, session: await relay.open() }
  }
  const cases: StoreCase<OutboxProbe>[] = [
    {
      name: 'gives what was committed, in order, and each for the first time',
      async run(probe) {
        const events = samples(20)
        await probe.enqueue(events)
        const { relay, session } = await opened(probe)
        const taken = await relay.receive(session, 20)
        deepStrictEqual(ids(taken), ids(events))
        for (const [n, { message, attempts, size }] of taken.entries()) {
          deepStrictEqual([decodeData(message), attempts, size > 0], [{ n }, 0, true])
        }
      },
    },
    {
      name: 'does not give again what is unsettled or done, in the next session neither',
      async run(probe) {
        await probe.enqueue(samples(3))
        const { relay, session } = await opened(probe)
        const taken = await relay.receive(session, 3)
        await relay.nothing(session, 'what is unsettled is not given again')
        strictEqual(await relay.settle(session, DONE, ...taken), 0)
        await relay.nothing(session, 'what is done is not given again')
        deepStrictEqual(await probe.states(), { published: 3 })
        for (const { publishedAt } of await probe.entries()) ok(publishedAt instanceof Date)
        await relay.close()
        const next = await opened(probe)
        await next.relay.nothing(next.session, 'nor in the next session')
      },
    },
    {
      name: 'gives what was released as if it had never been taken',
      async run(probe) {
        const event = sample(1)
        await probe.enqueue([event])
        const { relay, session } = await opened(probe)
        for (let i = 0; i < 3; i++) {
          const [delivery] = await relay.receive(session, 1)
          deepStrictEqual([delivery!.message.id, delivery!.attempts], [event.id, 0])
          strictEqual(await relay.settle(session, RELEASE, delivery!), 0)
        }
        strictEqual((await probe.entry(event)).attempts, 0)
        await relay.settle(session, DONE, ...(await relay.receive(session, 1)))
      },
    },
    {
      name: 'counts a retry that is charged, and none that is not, across sessions',
      async run(probe) {
        const event = sample(1)
        await probe.enqueue([event])
        const { relay, session } = await opened(probe)
        await relay.settle(session, retry(), ...(await relay.receive(session, 1)))
        await relay.settle(session, retry(0, false), ...(await relay.receive(session, 1)))
        const [third] = await relay.receive(session, 1)
        strictEqual(third!.attempts, 1)
        await relay.settle(session, retry(), third!)
        const { attempts, lastError } = await probe.entry(event)
        strictEqual(attempts, 2)
        ok(lastError?.includes('the case asked for a retry'), `the error is kept: ${lastError}`)
        await relay.close()
        const next = await opened(probe)
        const [fourth] = await next.relay.receive(next.session, 1)
        strictEqual(fourth!.attempts, 2)
      },
    },
    {
      name: 'gives a retry after its delay and not before',
      async run(probe) {
        const event = sample(1)
        await probe.enqueue([event])
        const { relay, session } = await opened(probe)
        const taken = await relay.receive(session, 1)
        const began = probe.time.now()
        await relay.settle(session, retry(400), ...taken)
        const { state, availableAt } = await probe.entry(event)
        strictEqual(state, 'retrying')
        const said = availableAt!.getTime() - began
        ok(said > 0 && said < 10_000, `it says for when: in ${said} ms`)
        await relay.receive(session, 1)
        const took = probe.time.now() - began
        ok(took >= 380, `it came ${took} ms after a retry in 400 ms`)
      },
    },
    {
      name: 'gives others while one waits for its retry, or for its time',
      async run(probe) {
        const [failing, scheduled, other] = samples(3)
        await probe.enqueue([failing!])
        const { relay, session } = await opened(probe)
        await relay.settle(session, retry(3_600_000), ...(await relay.receive(session, 1)))
        await probe.enqueue([scheduled!], { availableAt: new Date(probe.time.now() + 3_600_000) })
        await probe.enqueue([other!])
        deepStrictEqual(ids(await relay.receive(session, 1)), [other!.id])
        await relay.nothing(session, 'the others wait', 20)
      },
    },
    {
      name: 'gives a scheduled event when its time has come and not before',
      async run(probe) {
        const { relay, session } = await opened(probe)
        const event = sample(1)
        const at = probe.time.now() + 400
        await probe.enqueue([event], { availableAt: new Date(at) })
        deepStrictEqual(ids(await relay.receive(session, 1)), [event.id])
        ok(probe.time.now() >= at - 20, `it came ${at - probe.time.now()} ms too early`)
      },
    },
    {
      name: 'keeps what is dead, with the reason, and never gives it',
      async run(probe) {
        const event = sample(1)
        await probe.enqueue([event])
        const { relay, session } = await opened(probe)
        await relay.settle(session, retry(), ...(await relay.receive(session, 1)))
        await relay.settle(session, dead('the total is negative'), ...(await relay.receive(session, 1)))
        const { state, attempts, lastError } = await probe.entry(event)
        deepStrictEqual([state, attempts], ['dead', 2])
        ok(lastError?.includes('the total is negative'), `the reason is kept: ${lastError}`)
        await relay.nothing(session, 'what is dead is not given')
      },
    },
    {
      name: 'settles several kinds in one batch, each as it says',
      async run(probe) {
        const events = samples(4)
        await probe.enqueue(events)
        const { relay, session } = await opened(probe)
        const [a, b, c, d] = await relay.receive(session, 4)
        const stale = await session.settle([
          [a!, DONE],
          [b!, retry(3_600_000)],
          [c!, RELEASE],
          [d!, dead()],
        ])
        strictEqual(stale, 0)
        deepStrictEqual(ids(await relay.receive(session, 1)), [events[2]!.id])
        const states = await Promise.all(events.map(async (event) => (await probe.entry(event)).state))
        deepStrictEqual([states[0], states[1], states[3]], ['published', 'retrying', 'dead'])
      },
    },
    {
      name: 'takes the same settlements twice without harm, and returns that they were stale',
      async run(probe) {
        const events = samples(2)
        await probe.enqueue(events)
        const { relay, session } = await opened(probe)
        const taken = await relay.receive(session, 2)
        const batch = [
          [taken[0]!, DONE],
          [taken[1]!, dead()],
        ] as const
        strictEqual(await session.settle(batch), 0)
        const before = await probe.entries()
        strictEqual(await session.settle(batch), 2)
        deepStrictEqual(await probe.entries(), before)
      },
    },
    {
      name: 'gives what a closed session has left, as if it had never been taken',
      async run(probe) {
        const events = samples(3)
        await probe.enqueue(events)
        const { relay, session } = await opened(probe)
        const taken = await relay.receive(session, 3)
        await relay.settle(session, DONE, taken[0]!)
        await relay.close()
        const next = await opened(probe)
        const again = await next.relay.receive(next.session, 2)
        deepStrictEqual(ids(again), ids(events.slice(1)))
        deepStrictEqual(
          again.map(({ attempts }) => attempts),
          [0, 0],
        )
        const late = await relay.settle(session, DONE, taken[1]!).catch(() => 1)
        strictEqual(late, 1, 'a settlement after the close is stale, or refused')
        strictEqual(await next.relay.settle(next.session, DONE, ...again), 0)
      },
    },
    {
      name: 'gives no more than asked for, by count and by bytes, and at least one',
      async run(probe) {
        const events = Array.from({ length: 6 }, (_, n) => sample(n).withData({ n, text: 'x'.repeat(4000) }))
        await probe.enqueue(events)
        const { relay, session } = await opened(probe)
        const two = await relay.take(session, { ...PLENTY, count: 2 })
        strictEqual(two.length, 2)
        const one = await relay.take(session, { count: 10, bytes: 1 })
        strictEqual(one.length, 1, 'one that alone is too large')
        const bounded = await relay.take(session, { count: 10, bytes: 9000 })
        ok(bounded.length >= 1 && bounded.length <= 2, `${bounded.length} of 4 kB each in 9000 bytes`)
        const rest = await relay.receive(session, 3 - bounded.length)
        deepStrictEqual(ids([...two, ...one, ...bounded, ...rest]), ids(events))
        deepStrictEqual(
          rest.map(({ attempts }) => attempts),
          rest.map(() => 0),
          'what did not fit has cost nothing',
        )
      },
    },
    {
      name: 'removes what is published, where its options say so',
      async run(probe) {
        const [done, again] = samples(2)
        await probe.enqueue([done!, again!])
        const { relay, session } = await opened(probe, { deletes: true })
        const taken = await relay.receive(session, 2)
        await session.settle([
          [taken[0]!, DONE],
          [taken[1]!, retry()],
        ])
        strictEqual(await relay.settle(session, DONE, ...(await relay.receive(session, 1))), 0)
        deepStrictEqual(await probe.entries(), [])
      },
    },
    {
      name: 'gives everything, once, while more is being written',
      async run(probe) {
        const { relay, session } = await opened(probe)
        const sent: string[] = []
        const got: string[] = []
        for (let round = 0; round < 10; round++) {
          const events = samples(17)
          sent.push(...ids(events))
          await probe.enqueue(events)
          const taken = await relay.take(session, { ...PLENTY, count: 10 })
          got.push(...ids(taken))
          await relay.settle(session, DONE, ...taken)
        }
        const rest = await relay.receive(session, sent.length - got.length)
        await relay.settle(session, DONE, ...rest)
        deepStrictEqual([...got, ...ids(rest)].sort(), sent.sort())
        deepStrictEqual(await probe.states(), { published: sent.length })
      },
    },
  ]
  return cases.map((one) => ({ ...one, name: `${reader}: ${one.name}`, needs: [reader] }))
}
