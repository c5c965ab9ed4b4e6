import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { systemClock } from '../core/index.ts'
import { DONE } from '../flow/index.ts'
import { ids, message, NEVER } from './broker-probe.ts'
import { within } from './conformance.ts'
import type { BrokerCase } from './publisher-source-suite.ts'

/** Who gets what, how much, and what becomes of it when the session ends. */
export const sessionCases: readonly BrokerCase[] = [
  {
    name: 'messages wait for a group that has nobody at the moment',
    async run(probe) {
      await probe.close(await probe.open())
      const sent = [message(), message()]
      await probe.send(...sent)
      const received = await probe.receive(await probe.open(), 2)
      deepStrictEqual(ids(received).sort(), sent.map(({ id }) => id).sort())
    },
  },
  {
    name: 'what a session leaves unsettled comes again to the next',
    async run(probe, { quiet }) {
      const first = await probe.open()
      const sent = [message(), message(), message()]
      await probe.send(...sent)
      const received = await probe.receive(first, 3)
      const [done, ...left] = received
      await probe.settle(first, DONE, done!)
      await probe.close(first)
      const second = await probe.open()
      const again = await probe.receive(second, 2)
      deepStrictEqual(ids(again).sort(), ids(left).sort())
      await probe.settle(second, DONE, ...again)
      await probe.nothing(second, quiet, 'only what was left')
    },
  },
  {
    name: 'a settlement after the session was closed changes nothing',
    async run(probe) {
      const first = await probe.open()
      const sent = message()
      await probe.send(sent)
      const received = await probe.receive(first, 1)
      await probe.close(first)
      const stale = await probe.settle(first, DONE, ...received).catch(() => 1)
      strictEqual(stale, 1, 'it is returned as stale, or refused')
      deepStrictEqual(ids(await probe.receive(await probe.open(), 1)), [sent.id])
    },
  },
  {
    name: 'a late settlement does not take a message from the session that has it now',
    async run(probe, { quiet }) {
      const first = await probe.open()
      const sent = message()
      await probe.send(sent)
      const late = await probe.receive(first, 1)
      await probe.close(first)
      const second = await probe.open()
      const [current] = await probe.receive(second, 1)
      strictEqual(await probe.settle(first, DONE, ...late).catch(() => 1), 1)
      await probe.close(second)
      const third = await probe.open()
      deepStrictEqual(ids(await probe.receive(third, 1)), [current!.message.id], 'it was not settled by the first')
      await probe.nothing(third, quiet, 'and it came once')
    },
  },
  {
    name: 'closing twice is harmless',
    async run(probe) {
      const session = await probe.open()
      await probe.close(session)
      await probe.close(session)
    },
  },
  {
    name: 'two sessions of one group share its messages: each goes to one of them',
    needs: ['competing'],
    async run(probe, { quiet }) {
      const sessions = [await probe.open(), await probe.open()]
      const sent = Array.from({ length: 60 }, () => message())
      await probe.send(...sent)
      const seen: string[] = []
      await probe.eventually('all of them come', async () => {
        for (const session of sessions) {
          const taken = await session.take({ count: 5, bytes: 1e6 }, AbortSignal.timeout(100))
          seen.push(...ids(taken))
          await probe.settle(session, DONE, ...taken)
        }
        return seen.length >= sent.length
      })
      deepStrictEqual(seen.sort(), sent.map(({ id }) => id).sort())
      for (const session of sessions) await probe.nothing(session, quiet / 2, 'each comes once')
    },
  },
  {
    name: 'two groups each get every message',
    needs: ['groups'],
    async run(probe) {
      const [one, two] = [await probe.open('one'), await probe.open('two')]
      const sent = Array.from({ length: 20 }, () => message())
      await probe.send(...sent)
      const expected = sent.map(({ id }) => id).sort()
      const first = await probe.receive(one, 20)
      await probe.settle(one, DONE, ...first)
      deepStrictEqual(ids(first).sort(), expected)
      deepStrictEqual(ids(await probe.receive(two, 20)).sort(), expected)
    },
  },
  {
    name: 'a take gives no more than was asked for',
    async run(probe) {
      const session = await probe.open()
      await probe.send(...Array.from({ length: 10 }, () => message()))
      let received = 0
      await probe.eventually('all of them come', async () => {
        const taken = await probe.takeOnce(session, 3)
        ok(taken.length <= 3, `${taken.length} were given where 3 were asked for`)
        received += taken.length
        return received === 10
      })
    },
  },
  {
    name: 'a take is bounded by bytes, and gives at least one',
    async run(probe) {
      const session = await probe.open()
      const large = JSON.stringify('x'.repeat(50_000))
      await probe.send(...Array.from({ length: 6 }, () => message(large)))
      let received = 0
      await probe.eventually('all of them come', async () => {
        const taken = await probe.takeOnce(session, 10, received === 0 ? 1000 : 120_000)
        const most = received === 0 ? 1 : 3
        ok(taken.length <= most, `${taken.length} of 50 kB were given`)
        for (const { size } of taken) ok(size >= 50_000 && size < 80_000, `its size is given as ${size}`)
        received += taken.length
        await probe.settle(session, DONE, ...taken)
        return received === 6
      })
    },
  },
  {
    name: 'takes at the same time give each message once',
    async run(probe) {
      const session = await probe.open()
      const sent = Array.from({ length: 40 }, () => message())
      await probe.send(...sent)
      const seen: string[] = []
      await probe.eventually('all of them come', async () => {
        const takes = Array.from({ length: 4 }, () => probe.takeOnce(session, 5))
        for (const taken of await Promise.all(takes)) seen.push(...ids(taken))
        return seen.length >= sent.length
      })
      deepStrictEqual(seen.sort(), sent.map(({ id }) => id).sort())
    },
  },
  {
    name: 'a take whose signal is aborted returns, and takes nothing with it',
    async run(probe) {
      const session = await probe.open()
      const stop = new AbortController()
      const taking = session.take({ count: 10, bytes: 1e6 }, stop.signal).catch(() => [])
      stop.abort()
      deepStrictEqual(await within(5000, taking, () => 'the take goes on'), [])
      const sent = message()
      await probe.send(sent)
      const aborted = await session.take({ count: 10, bytes: 1e6 }, stop.signal).catch(() => [])
      const received = aborted.length > 0 ? aborted : await probe.receive(session, 1)
      deepStrictEqual(ids(received), [sent.id])
    },
  },
  {
    name: 'whoever waits is woken by a message',
    async run(probe) {
      const session = await probe.open()
      if (session.wait === undefined) return
      const began = systemClock.monotonic()
      const waiting = session.wait(60_000, NEVER)
      await probe.send(message())
      await within(10_000, waiting, () => 'nobody was woken')
      ok(systemClock.monotonic() - began < 10_000)
      await probe.receive(session, 1)
    },
  },
  {
    name: 'a wait ends with its signal and with its time',
    async run(probe) {
      const session = await probe.open()
      if (session.wait === undefined) return
      const stop = new AbortController()
      const waiting = session.wait(60_000, stop.signal)
      stop.abort()
      await within(5000, waiting, () => 'the wait goes on after its signal')
      await within(5000, session.wait(20, NEVER), () => 'the wait goes on after its time')
    },
  },
]
