import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { systemClock } from '../core/index.ts'
import { DONE, RELEASE, type Settlement } from '../flow/index.ts'
import { ids, message, NEVER } from './broker-probe.ts'
import type { BrokerCase } from './publisher-source-suite.ts'

function retry(after: number, charged = true): Settlement {
  return { kind: 'retry', after, charged, error: new Error('the case asked for a retry') }
}

function dead(reason: string): Settlement {
  return { kind: 'dead', reason, error: new Error(reason) }
}

/** The delay of a retry that others go past: on a busy machine it takes them a while. In milliseconds. */
const LATER = 2000

/** What becomes of a message is what was asked for. */
export const settlementCases: readonly BrokerCase[] = [
  {
    name: 'what is done does not come again, to a new session neither',
    async run(probe, { quiet }) {
      const first = await probe.open()
      await probe.send(message(), message())
      await probe.settle(first, DONE, ...(await probe.receive(first, 2)))
      await probe.nothing(first, quiet, 'what is done does not come again')
      await probe.close(first)
      const second = await probe.open()
      await probe.nothing(second, quiet, 'what is done does not come again in a new session')
      const later = message()
      await probe.send(later)
      deepStrictEqual(ids(await probe.receive(second, 1)), [later.id])
    },
  },
  {
    name: 'what is unsettled is not given a second time',
    async run(probe, { quiet }) {
      const session = await probe.open()
      await probe.send(message(), message())
      const received = await probe.receive(session, 2)
      await probe.nothing(session, quiet, 'what is unsettled is not given again')
      await probe.settle(session, DONE, ...received)
    },
  },
  {
    name: 'what is released comes again as if it had never been taken',
    async run(probe) {
      const session = await probe.open()
      const sent = message()
      await probe.send(sent)
      for (let i = 0; i < 3; i++) {
        const [delivery] = await probe.receive(session, 1)
        deepStrictEqual([delivery!.message.id, delivery!.attempts], [sent.id, 0])
        await probe.settle(session, RELEASE, delivery!)
      }
      await probe.settle(session, DONE, ...(await probe.receive(session, 1)))
    },
  },
  {
    name: 'a charged retry comes again, and the attempt is counted',
    needs: ['redelivers', 'attempts'],
    async run(probe, { quiet }) {
      const session = await probe.open()
      const sent = message()
      await probe.send(sent)
      for (let attempts = 0; attempts < 4; attempts++) {
        const [delivery] = await probe.receive(session, 1)
        deepStrictEqual([delivery!.message.id, delivery!.attempts], [sent.id, attempts])
        await probe.settle(session, attempts < 3 ? retry(0) : DONE, delivery!)
      }
      await probe.nothing(session, quiet, 'it is done')
    },
  },
  {
    name: 'an uncharged retry comes again, and costs no attempt',
    needs: ['redelivers', 'attempts'],
    async run(probe) {
      const session = await probe.open()
      await probe.send(message())
      await probe.settle(session, retry(0), ...(await probe.receive(session, 1)))
      await probe.settle(session, retry(0, false), ...(await probe.receive(session, 1)))
      const [third] = await probe.receive(session, 1)
      strictEqual(third!.attempts, 1, 'one of the two retries was charged')
    },
  },
  {
    name: 'attempts are remembered when the session is another',
    needs: ['redelivers', 'attempts'],
    async run(probe) {
      const first = await probe.open()
      await probe.send(message())
      await probe.settle(first, retry(0), ...(await probe.receive(first, 1)))
      await probe.close(first)
      const second = await probe.open()
      const [delivery] = await probe.receive(second, 1)
      strictEqual(delivery!.attempts, 1)
    },
  },
  {
    name: 'a retry comes after its delay and not before, and others go past it',
    needs: ['redelivers', 'delays'],
    async run(probe, { tolerance }) {
      const session = await probe.open()
      const [late, other] = [message(), message()]
      await probe.send(late)
      const [delivery] = await probe.receive(session, 1)
      const began = systemClock.monotonic()
      await probe.settle(session, retry(LATER), delivery!)
      await probe.send(other)
      deepStrictEqual(ids(await probe.receive(session, 1)), [other.id], 'others go past it')
      deepStrictEqual(ids(await probe.receive(session, 1)), [late.id])
      const took = systemClock.monotonic() - began
      ok(took >= LATER - tolerance, `it came ${took} ms after a retry in ${LATER} ms`)
    },
  },
  {
    name: 'what is dead does not come again, and is found with its reason',
    needs: ['deadLetters'],
    async run(probe, { quiet }) {
      const session = await probe.open()
      const [bad, good] = [message('{"n":"bad"}'), message()]
      await probe.send(bad)
      await probe.settle(session, dead('the total is negative'), ...(await probe.receive(session, 1)))
      await probe.send(good)
      const [next] = await probe.receive(session, 1)
      strictEqual(next!.message.id, good.id)
      await probe.settle(session, DONE, next!)
      await probe.nothing(session, quiet, 'what is dead does not come again')
      await probe.eventually('the dead letter is found', async () => {
        const letters = await probe.broker.deadLetters!('one')
        return letters.length === 1
      })
      const [letter] = await probe.broker.deadLetters!('one')
      strictEqual(letter!.message.id, bad.id)
      strictEqual(Buffer.from(letter!.message.data as string).toString(), '{"n":"bad"}', 'its data is kept')
      ok(letter!.reason.includes('the total is negative'), `the reason is kept: ${letter!.reason}`)
    },
  },
  {
    name: 'settlements of several kinds in one batch each do what they say',
    needs: ['redelivers', 'deadLetters'],
    async run(probe) {
      const session = await probe.open()
      const sent = [message(), message(), message(), message()]
      await probe.send(...sent)
      const received = await probe.receive(session, 4)
      const by = (at: number) => received.find((delivery) => delivery.message.id === sent[at]!.id)!
      await session.settle([
        [by(0), DONE],
        [by(1), retry(0)],
        [by(2), RELEASE],
        [by(3), dead('one of four')],
      ])
      const again = await probe.receive(session, 2)
      deepStrictEqual(ids(again).sort(), [sent[1]!.id, sent[2]!.id].sort())
      await probe.settle(session, DONE, ...again)
      await probe.eventually('one dead letter', async () => (await probe.broker.deadLetters!('one')).length === 1)
    },
  },
  {
    name: 'while one of a key waits for its retry, later ones wait too and other keys do not',
    needs: ['holdsKeys', 'redelivers', 'delays'],
    async run(probe) {
      const session = await probe.open()
      const [a1, a2, b1, a3] = ['a', 'a', 'b', 'a'].map((key, i) => message(`{"n":${i}}`, { key })) as [
        ReturnType<typeof message>,
        ReturnType<typeof message>,
        ReturnType<typeof message>,
        ReturnType<typeof message>,
      ]
      await probe.send(a1)
      await probe.settle(session, retry(LATER), ...(await probe.receive(session, 1)))
      await probe.send(a2, b1, a3)
      const [next] = await probe.receive(session, 1)
      strictEqual(next!.message.id, b1.id, 'another key goes on')
      const order: string[] = []
      while (order.length < 3) {
        const taken = await probe.receive(session, 1)
        order.push(...ids(taken))
        await probe.settle(session, DONE, ...taken)
      }
      deepStrictEqual(order, [a1.id, a2.id, a3.id])
    },
  },
  {
    name: 'of a key, what is retried comes before what is released after it',
    needs: ['holdsKeys', 'redelivers'],
    async run(probe) {
      const session = await probe.open()
      const sent = [1, 2, 3].map((n) => message(`{"n":${n}}`, { key: 'a' }))
      await probe.send(...sent)
      const taken = [...(await probe.receive(session, 1))]
      taken.push(...(await session.take({ count: 2, bytes: 1e6 }, NEVER)))
      // As a flow does when the first of a run fails.
      await session.settle(taken.map((delivery, i) => [delivery, i === 0 ? retry(50) : RELEASE] as const))
      const order: string[] = []
      while (order.length < 3) {
        const next = await probe.receive(session, 1)
        order.push(...ids(next))
        await probe.settle(session, DONE, ...next)
      }
      deepStrictEqual(
        order,
        sent.map(({ id }) => id),
      )
    },
  },
  {
    name: 'settling twice is harmless',
    async run(probe, { quiet }) {
      const session = await probe.open()
      await probe.send(message(), message())
      const received = await probe.receive(session, 2)
      await probe.settle(session, DONE, ...received)
      // A flow that does not know whether its settle was written writes it again.
      await probe.settle(session, DONE, ...received).catch(() => {})
      await probe.nothing(session, quiet, 'it stays done')
      const later = message()
      await probe.send(later)
      deepStrictEqual(ids(await probe.receive(session, 1)), [later.id], 'and the session goes on')
    },
  },
]
