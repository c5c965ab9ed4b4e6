import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Reject, Unavailable } from '../../src/core/index.ts'
import { OK, type Outcome, type Settlement, type Step } from '../../src/flow/index.ts'
import { FakeClock, seededRandom } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { flowOf, type Held, Store, stop } from './support.ts'

const runs = scale({ test: 25, full: 300, torture: 10_000 })

/** How the flow is set up, and how the world behaves. */
const shape = fc.record({
  seed: fc.integer(),
  count: fc.integer({ min: 1, max: 40 }),
  keys: fc.integer({ min: 1, max: 8 }),
  concurrency: fc.integer({ min: 1, max: 8 }),
  buffer: fc.integer({ min: 1, max: 40 }),
  batch: fc.option(fc.record({ size: fc.integer({ min: 1, max: 7 }), ordered: fc.boolean() }), { nil: undefined }),
  redelivers: fc.boolean(),
  failing: fc.double({ min: 0, max: 0.5, noNaN: true }),
})
type Shape = typeof shape extends fc.Arbitrary<infer T> ? T : never

/** One was refused while its key was held, and the next take brought what stood behind it. */
const REFUSED_AND_OVERTAKEN: Shape = {
  seed: -730478081,
  count: 32,
  keys: 1,
  concurrency: 2,
  buffer: 3,
  batch: { size: 3, ordered: false },
  redelivers: true,
  failing: 0.4980812072753907,
}

/** What one message comes to: waits a while, and throws or answers an outcome. */
type Handle = (delivery: Held) => Promise<Outcome>

/** A step of the shape, which checks that a key is in one call at a time. */
function stepOf({ batch }: Shape, handle: Handle, started: (id: string, key: string | undefined) => void): Step<Held> {
  const busy = new Set<string>()
  const enter = (deliveries: readonly Held[]) => {
    const keys = new Set<string>()
    for (const { message, key } of deliveries) {
      if (key !== undefined) {
        const repeated = keys.has(key) && !batch?.ordered
        if (busy.has(key) || repeated) throw new Error(`two of ${key} are in flight`)
        keys.add(key)
      }
      started(message.id, key)
    }
    for (const key of keys) busy.add(key)
    return () => {
      for (const key of keys) busy.delete(key)
    }
  }
  if (batch === undefined) {
    return {
      async each(delivery) {
        const leave = enter([delivery])
        try {
          const outcome = await handle(delivery)
          if (outcome.kind !== 'ok') throw outcome.error
        } finally {
          leave()
        }
      },
    }
  }
  return {
    ...batch,
    async batch(deliveries) {
      const leave = enter(deliveries)
      try {
        const outcomes: Outcome[] = []
        const stopped = new Map<string, Outcome>()
        for (const delivery of deliveries) {
          const before = delivery.key === undefined ? undefined : stopped.get(delivery.key)
          const outcome = before ?? (await handle(delivery))
          if (outcome.kind !== 'ok' && delivery.key !== undefined) stopped.set(delivery.key, outcome)
          outcomes.push(outcome)
        }
        return outcomes
      } finally {
        leave()
      }
    },
  }
}

function world(given: Shape) {
  const clock = new FakeClock()
  const random = seededRandom(given.seed)
  const store = new Store(clock, { features: given.redelivers ? { redelivers: true, holdsKeys: true } : {} })
  for (let i = 0; i < given.count; i++)
    store.add(`m${i}`, random.next() < 0.8 ? `k${random.integer(given.keys)}` : undefined)
  const options = { concurrency: given.concurrency, buffer: { count: given.buffer }, take: 1 + random.integer(20) }
  return { clock, random, store, options }
}

describe('any keys, latencies and failures', () => {
  it('never two of a key in flight, never reordered, every message exactly one final settlement', async () => {
    await fc.assert(
      fc.asyncProperty(shape, async (given) => {
        const { clock, random, store, options } = world(given)
        const done: Held[] = []
        let broken: unknown
        const handle: Handle = async (delivery) => {
          await clock.sleep(1 + random.integer(20))
          if (random.next() >= given.failing) {
            done.push(delivery)
            return OK
          }
          return { kind: 'failed', error: new Error('by chance') }
        }
        const step = stepOf(given, handle, () => {})
        const checked = watch(step, (error) => {
          broken = error
        })
        store.before.settle = () => clock.sleep(1 + random.integer(10))
        const retry = { attempts: 1000, backoff: { min: 1, max: 50, jitter: 0 } }
        const flow = flowOf(clock, store, checked, { ...options, retry, poll: 5, maxPoll: 20 })
        await flow.start()
        await clock.until(() => broken !== undefined || store.in('done').length === given.count)
        await stop(clock, flow)
        if (broken !== undefined) throw broken
        expect(store.settlements.filter(({ settlement }) => settlement.kind === 'done')).toHaveLength(given.count)
        expect(done).toHaveLength(given.count)
        for (const { key } of done) {
          if (key === undefined) continue
          const order = done.filter((delivery) => delivery.key === key).map(({ row }) => row.sequence)
          expect(order).toEqual([...order].sort((a, b) => a - b))
        }
      }),
      { numRuns: runs, examples: [[REFUSED_AND_OVERTAKEN]] },
    )
  })

  it('some dead: each is settled for good once, and a blocked key lets nothing past its dead one', async () => {
    await fc.assert(
      fc.asyncProperty(shape, fc.boolean(), async (given, block) => {
        const { clock, random, store, options } = world({ ...given, redelivers: true })
        const deadKey = block ? 'block' : 'continue'
        const rejected = new Set(store.rows.filter(() => random.next() < 0.1).map((row) => row.message.id))
        const table = new Store(clock, { deadKey })
        table.rows.push(...store.rows)
        let broken: unknown
        const handle: Handle = async ({ message }) => {
          await clock.sleep(1 + random.integer(10))
          return rejected.has(message.id) ? { kind: 'rejected', error: new Reject('never') } : OK
        }
        const step = watch(
          stepOf(given, handle, (id, key) => {
            const { sequence } = table.row(id)
            const before = table.rows.find((row) => row.state === 'dead' && row.message.key === key)
            if (block && key !== undefined && before !== undefined && before.sequence < sequence) {
              throw new Error(`${id} went out past ${before.message.id}`)
            }
          }),
          (error) => {
            broken = error
          },
        )
        const flow = flowOf(clock, table, step, { ...options, retry: { deadKey }, poll: 5, maxPoll: 20 })
        await flow.start()
        await clock.advance(5000)
        await stop(clock, flow)
        if (broken !== undefined) throw broken
        const blocked = (row: (typeof table.rows)[number]) =>
          block &&
          table.rows.some(
            (other) =>
              other.sequence < row.sequence &&
              other.message.key === row.message.key &&
              row.message.key &&
              rejected.has(other.message.id),
          )
        for (const row of table.rows) {
          const expected = blocked(row) ? 'ready' : rejected.has(row.message.id) ? 'dead' : 'done'
          expect([row.message.id, row.state]).toEqual([row.message.id, expected])
          const finals = table.of(row.message.id).filter((kind) => kind === 'done' || kind === 'dead')
          expect(finals).toHaveLength(expected === 'ready' ? 0 : 1)
        }
      }),
      { numRuns: runs },
    )
  })
})

describe('a stop at any moment', () => {
  it('each message was settled once, or given back, or never taken; nothing goes out after', async () => {
    await fc.assert(
      fc.asyncProperty(
        shape,
        fc.integer({ min: 0, max: 200 }),
        fc.constantFrom<'5ms' | '1s' | 0>('5ms', '1s', 0),
        async (given, moment, grace) => {
          const { clock, random, store, options } = world(given)
          let broken: unknown
          let stopped = false
          const done = new Set<string>()
          const handle: Handle = async ({ message }) => {
            await clock.sleep(1 + random.integer(40))
            if (random.next() < given.failing) return { kind: 'failed', error: new Error('by chance') }
            done.add(message.id)
            return OK
          }
          const step = watch(
            stepOf(given, handle, (id) => {
              if (stopped) throw new Error(`${id} went out after the stop`)
            }),
            (error) => {
              broken = error
            },
          )
          store.before.settle = () => clock.sleep(1 + random.integer(10))
          store.before.take = () => clock.sleep(1 + random.integer(10))
          const retry = { attempts: 1000, backoff: { min: 1, max: 50, jitter: 0 } }
          const flow = flowOf(clock, store, step, { ...options, grace, retry, poll: 5, maxPoll: 20 })
          await flow.start()
          await clock.advance(moment)
          await stop(clock, flow)
          stopped = true
          await clock.advance(10_000)
          if (broken !== undefined) throw broken
          expect(store.unsettled).toBe(0)
          expect(store.in('taken')).toEqual([])
          for (const row of store.rows) {
            const kinds = store.of(row.message.id)
            expect(kinds.filter((kind) => kind === 'done').length).toBe(row.state === 'done' ? 1 : 0)
            if (row.state === 'done') expect(done.has(row.message.id)).toBe(true)
          }
        },
      ),
      { numRuns: runs },
    )
  })
})

describe('the window', () => {
  it('a poison among innocents is the only one charged, dies, and all others are done', async () => {
    await fc.assert(
      fc.asyncProperty(shape, fc.nat(), async (given, where) => {
        // Others must be able to come past it: a source that cannot take it back needs room beside it.
        const buffer = given.redelivers ? given.buffer : 500
        const { clock, random, store, options } = world({ ...given, buffer })
        const poison = `m${where % store.rows.length}`
        let innocents = 0
        let broken: unknown
        const inside = new Map<Held, boolean>()
        // Whatever is in flight together with the poison fails with it.
        const handle: Handle = async (delivery) => {
          inside.set(delivery, false)
          if (delivery.message.id === poison) for (const other of inside.keys()) inside.set(other, true)
          else if ([...inside.keys()].some(({ message }) => message.id === poison)) inside.set(delivery, true)
          await clock.sleep(1 + random.integer(10))
          const failed = inside.get(delivery)
          inside.delete(delivery)
          return failed ? { kind: 'down', error: new Unavailable('connection closed') } : OK
        }
        const step = watch(wholeBatchDown(stepOf(given, handle, () => {})), (error) => {
          broken = error
        })
        const retry = { attempts: 3, backoff: { min: 1, max: 10, jitter: 0 } }
        const flow = flowOf(clock, store, step, {
          ...options,
          retry: { ...retry, deadKey: 'continue' },
          outage: { min: 5, max: 50, jitter: 0 },
          poll: 5,
          maxPoll: 10,
        })
        await flow.start()
        await clock.until(() => {
          const dead = store.row(poison).state === 'dead'
          const rest = store.rows.filter((row) => row.message.id !== poison && row.state !== 'done')
          // A trickle of others, as in life: only they prove that it is not an outage. Never a flood: each of a key
          // would wait for all of it.
          if (!dead && rest.filter(({ message }) => message.id.startsWith('i')).length < 3) store.add(`i${innocents++}`)
          const behind = rest.every(
            (row) => row.message.key !== undefined && row.message.key === store.row(poison).message.key,
          )
          return broken !== undefined || (dead && behind)
        }, 60_000)
        await stop(clock, flow)
        if (broken !== undefined) throw broken
        const charged = store.settlements.filter(({ settlement }) => isCharged(settlement))
        expect(new Set(charged.map(({ id }) => id))).toEqual(new Set([poison]))
        expect(store.of(poison).at(-1)).toBe('dead')
      }),
      { numRuns: runs },
    )
  })

  it('a total outage for a while charges nobody, and all are done after it', async () => {
    await fc.assert(
      fc.asyncProperty(
        shape,
        fc.integer({ min: 0, max: 300 }),
        fc.integer({ min: 1, max: 20_000 }),
        async (given, from, length) => {
          const { clock, random, store, options } = world(given)
          const began = clock.monotonic()
          const away = () => {
            const time = clock.monotonic() - began
            return time >= from && time < from + length
          }
          let broken: unknown
          const handle: Handle = async () => {
            await clock.sleep(1 + random.integer(20))
            return away() ? { kind: 'down', error: new Unavailable('away') } : OK
          }
          const step = watch(
            stepOf(given, handle, () => {}),
            (error) => {
              broken = error
            },
          )
          const outage = { min: 10, max: 1000, jitter: 0 }
          const flow = flowOf(clock, store, step, {
            ...options,
            retry: { attempts: 1 },
            outage,
            poll: 5,
            maxPoll: 20,
          })
          await flow.start()
          await clock.until(() => broken !== undefined || store.in('done').length === given.count)
          await stop(clock, flow)
          if (broken !== undefined) throw broken
          expect(store.settlements.filter(({ settlement }) => isCharged(settlement))).toEqual([])
          expect(store.settlements.filter(({ settlement }) => settlement.kind === 'done')).toHaveLength(given.count)
        },
      ),
      { numRuns: runs },
    )
  })
})

function isCharged(settlement: Settlement): boolean {
  return settlement.kind === 'dead' || (settlement.kind === 'retry' && settlement.charged)
}

/** Tells errors that only a broken rule can raise; the flow itself would take them for failures of the step. */
function watch(step: Step<Held>, onBroken: (error: unknown) => void): Step<Held> {
  const rule = (error: unknown) => {
    if (error instanceof Error && /in flight|went out/.test(error.message)) onBroken(error)
    throw error
  }
  if ('each' in step) return { each: (delivery, signal) => (step.each(delivery, signal) as Promise<void>).catch(rule) }
  return { ...step, batch: async (deliveries, signal) => Promise.resolve(step.batch(deliveries, signal)).catch(rule) }
}

/** A destination that closes its connection fails all of a call. */
function wholeBatchDown(step: Step<Held>): Step<Held> {
  if ('each' in step) return step
  return {
    ...step,
    async batch(deliveries, signal) {
      const outcomes = await step.batch(deliveries, signal)
      const down = outcomes.find(({ kind }) => kind === 'down')
      return down === undefined ? outcomes : outcomes.map(() => down)
    },
  }
}
