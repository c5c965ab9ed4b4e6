import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { QueueHolder } from '../../../src/brokers/in-process/key-messages.ts'
import { type InProcessDelivery, Queue } from '../../../src/brokers/in-process/queue.ts'
import { Message } from '../../../src/core/index.ts'
import { DONE, RELEASE, type Settlement } from '../../../src/flow/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'

const runs = scale({ test: 300, full: 3000, torture: 30_000 })

type Action =
  | { do: 'add'; key: string | undefined }
  | { do: 'take'; holder: number; count: number }
  | { do: 'settle'; holder: number; at: number; how: 'done' | 'release' | 'retry' | 'dead' }
  | { do: 'lose'; holder: number }
  | { do: 'rearm' }
  | { do: 'pass'; ms: number }

const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('add'), key: fc.constantFrom('a', 'b', 'c', undefined) }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('take'), holder: fc.nat(1), count: fc.integer({ min: 1, max: 4 }) }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('settle'),
      holder: fc.nat(1),
      at: fc.nat(5),
      how: fc.constantFrom('done', 'release', 'retry', 'dead'),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('lose'), holder: fc.nat(1) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('rearm') }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pass'), ms: fc.constantFrom(1, 100) }) },
) as fc.Arbitrary<Action>

interface Tracked {
  order: number
  key: string | undefined
  state: 'ready' | 'unsettled' | 'retrying' | 'dead' | 'done'
  attempts: number
  due: number
  holder: number
  delivery: InProcessDelivery | undefined
}

const settlements: Record<'done' | 'release' | 'retry' | 'dead', Settlement> = {
  done: DONE,
  release: RELEASE,
  retry: { kind: 'retry', after: 50, charged: true, error: undefined },
  dead: { kind: 'dead', reason: 'r', error: undefined },
}

/** The rules, told the slow way: look at every message each time. */
class Model {
  readonly all: Tracked[] = []
  now = 1000
  readonly blocks: boolean

  constructor(blocks: boolean) {
    this.blocks = blocks
  }

  promote(): void {
    for (const one of this.all) if (one.state === 'retrying' && one.due <= this.now) one.state = 'ready'
  }

  next(holder: number): Tracked | undefined {
    this.promote()
    return this.all.find((one) => {
      if (one.state !== 'ready') return false
      if (one.key === undefined) return true
      const same = this.all.filter((other) => other.key === one.key)
      if (same.some(({ state }) => state === 'retrying' || (this.blocks && state === 'dead'))) return false
      return !same.some((other) => other.state === 'unsettled' && other.holder !== holder)
    })
  }
}

describe('in-process queue', () => {
  test('does the same as looking at every message each time, whatever happens', () => {
    fc.assert(
      fc.property(fc.array(action, { maxLength: 80, size: 'max' }), fc.boolean(), (actions, blocks) => {
        const clock = new FakeClock()
        const queue = new Queue(clock, blocks, () => {})
        const holders = [new QueueHolder(), new QueueHolder()] as const
        const model = new Model(blocks)
        for (const step of actions) {
          switch (step.do) {
            case 'add': {
              const order = model.all.length
              const extensions = step.key === undefined ? {} : { partitionkey: step.key }
              queue.add(new Message({ id: String(order), source: 's', type: 't', extensions }, ''), 1)
              const fresh = { state: 'ready', attempts: 0, due: 0, holder: 0, delivery: undefined } as const
              model.all.push({ order, key: step.key, ...fresh })
              break
            }
            case 'take': {
              const expected: Tracked[] = []
              for (let i = 0; i < step.count; i++) {
                const next = model.next(step.holder)
                if (next === undefined) break
                next.state = 'unsettled'
                next.holder = step.holder
                expected.push(next)
              }
              const taken = queue.take(holders[step.holder]!, { count: step.count, bytes: 1e9 })
              expect(taken.map(({ message, attempts }) => [message.id, attempts])).toEqual(
                expected.map(({ order, attempts }) => [String(order), attempts]),
              )
              expected.forEach((one, i) => {
                one.delivery = taken[i]!
              })
              break
            }
            case 'settle': {
              const unsettled = model.all.filter(({ state, holder }) => state === 'unsettled' && holder === step.holder)
              const one = unsettled[step.at % Math.max(1, unsettled.length)]
              if (one === undefined) break
              const stranger = holders[1 - step.holder]!
              expect(queue.settle(stranger, one.delivery!, settlements[step.how])).toBe(false)
              expect(queue.settle(holders[step.holder]!, one.delivery!, settlements[step.how])).toBe(true)
              expect(queue.settle(holders[step.holder]!, one.delivery!, settlements[step.how])).toBe(false)
              if (step.how === 'retry') {
                one.attempts++
                one.due = model.now + 50
              }
              one.state = ({ done: 'done', release: 'ready', retry: 'retrying', dead: 'dead' } as const)[step.how]
              break
            }
            case 'lose':
              queue.returnAll(holders[step.holder]!)
              for (const one of model.all) {
                if (one.state === 'unsettled' && one.holder === step.holder) one.state = 'ready'
              }
              break
            case 'rearm':
              queue.resolveDead(() => true, true)
              for (const one of model.all) {
                if (one.state === 'dead') Object.assign(one, { state: 'ready', attempts: 0 })
              }
              break
            case 'pass':
              clock.suspend(step.ms)
              model.now += step.ms
              break
          }
          for (const [i, holder] of holders.entries()) {
            expect(queue.available(holder)).toBe(model.next(i) !== undefined)
          }
          const count = (state: Tracked['state']) => model.all.filter((one) => one.state === state).length
          expect(queue.stats).toEqual({
            ready: count('ready'),
            unsettled: count('unsettled'),
            retrying: count('retrying'),
            dead: count('dead'),
          })
        }
      }),
      { numRuns: runs },
    )
  })

  test('stays fast with many messages: one hot key, two who compete for it, releases and retries', () => {
    const count = scale({ test: 200_000, full: 1_000_000, torture: 3_000_000 })
    const clock = new FakeClock()
    const queue = new Queue(clock, true, () => {})
    const holders = [new QueueHolder(), new QueueHolder()] as const
    for (let i = 0; i < count; i++) {
      const key = i % 3 === 0 ? 'hot' : i % 3 === 1 ? `k${i}` : undefined
      const extensions = key === undefined ? {} : { partitionkey: key }
      queue.add(new Message({ id: String(i), source: 's', type: 't', extensions }, ''), 1)
    }
    const began = performance.now()
    let round = 0
    while (queue.size > 0) {
      const holder = holders[round++ % 2]!
      const taken = queue.take(holder, { count: 100, bytes: 1e9 })
      taken.forEach((delivery, i) => {
        const how = round % 10 === 0 && i % 20 === 0 ? settlements.retry : round % 7 === 0 ? RELEASE : DONE
        queue.settle(holder, delivery, how)
      })
      if (round % 10 === 0) clock.suspend(100)
    }
    // A few seconds where each step looked at the rest of the queue would be hours.
    expect(performance.now() - began).toBeLessThan(count / 10)
    expect(queue.stats).toEqual({ ready: 0, unsettled: 0, retrying: 0, dead: 0 })
  })
})
