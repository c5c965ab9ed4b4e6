import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { OutboxReader } from '../../src/adapter.ts'
import type { Source } from '../../src/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { until } from './faults/support.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

/** How often a relay looks at the table, and how much it takes, as it is told: on a real table, by an injected clock. */

let t: TestOutbox
const takes: { asked: number; given: number }[] = []
const waits: number[] = []

beforeEach(async () => {
  t = await outboxOn()
  takes.length = 0
  waits.length = 0
})
afterEach(() => t.end())

/**
 * The outbox, writing down what its sessions are asked. `inTurn`: what was taken is settled before the next take. A session
 * that is told of a settlement while it waits may look again at once, and then waits longer.
 */
function watched(inTurn = false): OutboxReader {
  const sources = new Map<Source, Source>()
  const watch = ({ name, features, open }: Source): Source => ({
    name,
    features,
    async open(signal) {
      const session = await open(signal)
      if (session === undefined) return undefined
      const take = session.take.bind(session)
      const settle = session.settle.bind(session)
      const wait = session.wait!.bind(session)
      let settled = Promise.resolve()
      let tell = () => {}
      session.take = async (demand, over) => {
        if (inTurn) await settled
        const taken = await take(demand, over)
        if (taken.length > 0) settled = new Promise((resolve) => (tell = resolve))
        takes.push({ asked: demand.count, given: taken.length })
        return taken
      }
      session.settle = async (batch) => {
        const stale = await settle(batch)
        tell()
        return stale
      }
      session.wait = (ms, over) => {
        waits.push(ms)
        return wait(ms, over)
      }
      return session
    },
  })
  return {
    name: t.outbox.name,
    reader(options) {
      const reader = t.outbox.reader(options)
      return {
        async assignment() {
          return (await reader.assignment()).map((source) => {
            if (!sources.has(source)) sources.set(source, watch(source))
            return sources.get(source)!
          })
        },
        close: () => reader.close(),
      }
    },
  }
}

describe.each(['owner', 'lease'] as const)('read by %s', (reader) => {
  test('without wake-ups the table is looked at as often as the relay is told, and no more often', async () => {
    const clock = new FakeClock()
    const relay = t.relay({ from: watched(true), reader, wake: false, poll: '1s', maxPoll: '3s', lease: '1h', clock })
    await relay.start()
    /** The session asleep for so long: what else sleeps does so for longer. */
    const asleep = (ms: number) => until(() => waits.at(-1) === ms && clock.nextIn === ms)
    await asleep(1000)
    await t.enqueue(Placed({ n: 1 }))
    for (const ms of [1000, 1000, 2000, 3000, 3000]) {
      await asleep(ms)
      const [looked, waited] = [takes.length, waits.length]
      await clock.advance(ms - 1)
      expect(takes.length).toBe(looked)
      await clock.advance(1)
      // The first look finds the event, and looks once more.
      await until(() => waits.length > waited)
      expect(takes.length).toBeGreaterThan(looked)
    }
    expect(t.sink.messages.map(number)).toEqual([1])
    const stopping = relay.stop()
    await clock.advance(1000)
    await stopping
  })

  test('no more are taken at once than the relay is told, and not less while there are', async () => {
    await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n })))
    const relay = t.relay({
      from: watched(),
      reader,
      batch: 7,
      maxBatch: 7,
      concurrency: 1,
      poll: '20ms',
      maxPoll: '20ms',
    })
    await relay.start()
    await t.sink.arrived(40)
    await relay.stop()
    expect(Math.max(...takes.map(({ asked }) => asked))).toBe(7)
    expect(Math.max(...t.sink.calls.map((call) => call.length))).toBe(7)
    expect(takes[0]).toEqual({ asked: 7, given: 7 })
  })
})
