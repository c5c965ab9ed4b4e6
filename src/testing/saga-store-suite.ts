import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { uuidv7 } from '../core/index.ts'
import { decide, evolve, type NewSaga, type SagaChange, type SagaState, type SagaStore, saga } from '../saga/index.ts'
import type { UnitOfWork } from '../store/index.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import {
  openTransaction,
  type StoreCase,
  type StoreFactory,
  type StoreUnderTest,
  storeSuite,
  type Time,
} from './store-probe.ts'

/** A store of sagas, and what the suite needs beside it. */
export interface SagaStoreUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  readonly sagas: SagaStore<Tx>
}

/** Makes a store of sagas for the suite, fresh for each case. */
export type SagaStoreFactory<Tx = unknown> = StoreFactory<SagaStoreUnderTest<Tx>>

const LEASE = 60_000
const two = saga('order', { version: 1 })
  .step('reserve', () => 1)
  .step('charge', () => 2)
const { definition, steps: plan } = two

class SagaProbe {
  readonly work: UnitOfWork
  readonly sagas: SagaStore
  readonly time: Time

  constructor({ work, sagas }: SagaStoreUnderTest, time: Time) {
    this.work = work
    this.sagas = sagas
    this.time = time
  }

  new(changes: Partial<NewSaga> = {}): NewSaga {
    const id = changes.id ?? uuidv7()
    const begun: SagaState = { id, status: 'running', held: undefined, error: undefined, steps: [] }
    const state = decide(plan, begun, { type: 'begin' }).reduce(evolve, begun)
    const about = { type: 'order', definition, aggregate: undefined, tenant: undefined, traceparent: undefined }
    return { id, ...about, input: '{"n":1}', state, wakeIn: 0, runner: undefined, ...changes }
  }

  async inserted(changes: Partial<NewSaga> = {}): Promise<NewSaga> {
    const made = this.new(changes)
    strictEqual(await this.sagas.insert(undefined, made), true)
    return made
  }

  async claim(changes: { count?: number; takeovers?: number; lease?: number; definitions?: string[] } = {}) {
    const runner = uuidv7()
    const options = { definitions: [definition], count: 10, takeovers: 10, runner, lease: LEASE, ...changes }
    return { runner, claimed: await this.sagas.claim(options) }
  }

  async ids(changes: Parameters<SagaProbe['claim']>[0] = {}): Promise<string[]> {
    return (await this.claim(changes)).claimed.map(({ saga: { id } }) => id)
  }

  /** The first step is done, and the second intended. */
  change(id: string, version: number, changes: Partial<SagaChange> = {}): SagaChange {
    const { state } = this.new({ id })
    const after = decide(plan, state, { type: 'succeeded', step: 'reserve', output: { a: null } }).reduce(evolve, state)
    const rest = { claim: 'keep', wakeIn: undefined, lease: LEASE, progress: true } as const
    return { id, version, runner: undefined, state: after, steps: after.steps, ...rest, ...changes }
  }

  async load(id: string) {
    const found = await this.sagas.load(undefined, id)
    ok(found, 'the saga is there')
    return found
  }
}

/** What every SagaStore must do, so that a saga is driven by one runner at a time and none is forgotten. */
export function sagaStoreSuite<Tx>(factory: SagaStoreFactory<Tx>, options: SuiteOptions = {}): Suite {
  const probe = (under: SagaStoreUnderTest<Tx>, time: Time) => new SagaProbe(under as SagaStoreUnderTest, time)
  return storeSuite({ kind: 'saga store', features: [], cases, probe }, factory, options)
}

const held = (state: SagaState): SagaState => ({ ...state, held: 'look' })

const cases: readonly StoreCase<SagaProbe>[] = [
  {
    name: 'a saga comes back as it was inserted, with the intent of its first step',
    async run(probe) {
      const about = { aggregate: 'order-1', tenant: 'shop', traceparent: '00-a-b-01', input: '{"n":1,"t":"ä\\"😀"}' }
      const { id, state } = await probe.inserted(about)
      const found = await probe.load(id)
      const { aggregate, tenant, traceparent, status, version, runner, takeovers, held, currentStep } = found
      deepStrictEqual(
        { aggregate, tenant, traceparent, status, version, runner, takeovers, held, currentStep, input: found.input },
        {
          ...{ aggregate: 'order-1', tenant: 'shop', traceparent: '00-a-b-01', status: 'running', version: 1 },
          ...{ runner: undefined, takeovers: 0, held: undefined, currentStep: 'reserve', input: { n: 1, t: 'ä"😀' } },
        },
      )
      const [{ startedAt, executedAt, compensatedAt, ...step }] = found.steps as [(typeof found.steps)[0]]
      deepStrictEqual(step, state.steps[0])
      deepStrictEqual([startedAt instanceof Date, executedAt, compensatedAt], [true, undefined, undefined])
      strictEqual(await probe.sagas.load(undefined, uuidv7()), undefined)
    },
  },
  {
    name: 'the same id again changes nothing',
    async run(probe) {
      const { id } = await probe.inserted()
      strictEqual(await probe.sagas.insert(undefined, probe.new({ id, input: '{"n":2}' })), false)
      deepStrictEqual((await probe.load(id)).input, { n: 1 })
    },
  },
  {
    name: 'a rollback forgets what was inserted, and what was saved',
    async run(probe) {
      const made = probe.new()
      const inserting = await openTransaction(probe.work, (tx) => probe.sagas.insert(tx, made))
      await inserting.rollback()
      strictEqual(await probe.sagas.load(undefined, made.id), undefined)
      strictEqual(await probe.sagas.insert(undefined, made), true)
      const saving = await openTransaction(probe.work, (tx) => probe.sagas.save(tx, probe.change(made.id, 1)))
      strictEqual(saving.value, true)
      await saving.rollback()
      strictEqual((await probe.load(made.id)).version, 1)
    },
  },
  {
    name: 'a write is fenced by the version, and by the runner where one is given',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim()
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 1, { runner })), false)
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 2, { runner: uuidv7() })), false)
      strictEqual((await probe.load(id)).steps.length, 1)
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 2, { runner })), true)
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 2, { runner })), false)
      // A person has no token.
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 3)), true)
      strictEqual((await probe.load(id)).version, 4)
    },
  },
  {
    name: 'steps come back as they were written, in order, with the times of what happened to them',
    async run(probe) {
      const { id } = await probe.inserted()
      await probe.sagas.save(undefined, probe.change(id, 1))
      const [reserve, charge] = (await probe.load(id)).steps
      deepStrictEqual([reserve?.status, reserve?.output, reserve?.executed], ['completed', { a: null }, true])
      deepStrictEqual([charge?.name, charge?.status, charge?.executedAt], ['charge', 'pending', undefined])
      const state = probe.change(id, 2).state
      const undone = {
        ...state.steps[0]!,
        status: 'compensated' as const,
        undos: 2,
        attempts: 3,
        spent: 40,
        error: 'e',
      }
      const after = { ...state, status: 'compensating' as const, steps: [undone, state.steps[1]!] }
      await probe.sagas.save(undefined, probe.change(id, 2, { state: after, steps: [undone] }))
      const [again] = (await probe.load(id)).steps
      const { attempts, spent, undos, error, executedAt, compensatedAt } = again!
      deepStrictEqual([attempts, spent, undos, error, executedAt], [3, 40, 2, 'e', reserve!.executedAt])
      ok(compensatedAt instanceof Date)
    },
  },
  {
    name: 'an output may be null, or nothing at all',
    async run(probe) {
      const { id } = await probe.inserted()
      const { state } = probe.change(id, 1)
      for (const [version, output] of [null, undefined, 0, ''].entries()) {
        const steps = [{ ...state.steps[0]!, output }, state.steps[1]!]
        await probe.sagas.save(undefined, probe.change(id, version + 1, { state: { ...state, steps }, steps }))
        strictEqual((await probe.load(id)).steps[0]!.output, output)
      }
    },
  },
  {
    name: 'a claim gives what is due of the definitions asked for, once, with a token and a new version',
    async run(probe) {
      const first = await probe.inserted()
      const second = await probe.inserted()
      await probe.inserted({ wakeIn: LEASE })
      await probe.inserted({ definition: 'order@2#other' })
      const { runner, claimed } = await probe.claim({ count: 1 })
      deepStrictEqual([claimed[0]!.saga.id, claimed[0]!.takenOver, claimed.length], [first.id, false, 1])
      deepStrictEqual([claimed[0]!.saga.version, claimed[0]!.saga.runner], [2, runner])
      deepStrictEqual(claimed[0]!.saga, await probe.load(first.id))
      deepStrictEqual(await probe.ids(), [second.id])
      deepStrictEqual(await probe.ids(), [])
    },
  },
  {
    name: 'many claims at once give each saga to one',
    async run(probe) {
      const made = await Promise.all(Array.from({ length: 40 }, () => probe.inserted()))
      const claims = await Promise.all(Array.from({ length: 10 }, () => probe.ids({ count: 10 })))
      for (let left = await probe.ids(); left.length > 0; left = await probe.ids()) claims.push(left)
      deepStrictEqual(claims.flat().sort(), made.map(({ id }) => id).sort())
    },
  },
  {
    name: 'what was inserted by its runner is not due before its lease has run out',
    async run(probe) {
      const { id } = await probe.inserted({ runner: uuidv7(), wakeIn: 300 })
      deepStrictEqual(await probe.ids(), [])
      await probe.time.pass(400)
      const { claimed } = await probe.claim()
      deepStrictEqual(
        claimed.map(({ saga, takenOver }) => [saga.id, takenOver, saga.takeovers]),
        [[id, true, 1]],
      )
    },
  },
  {
    name: 'what was taken over comes apart: some for the first time, one alone after that, and others only without them',
    async run(probe) {
      const silent = [await probe.inserted(), await probe.inserted(), await probe.inserted()]
      strictEqual((await probe.ids({ lease: 100 })).length, 3)
      const other = await probe.inserted()
      await probe.time.pass(200)
      deepStrictEqual(await probe.ids({ takeovers: 0 }), [other.id])
      strictEqual((await probe.ids({ takeovers: 2, lease: 100 })).length, 2)
      await probe.time.pass(200)
      // One is left of the first time; then those of the second, one by one.
      const sizes = []
      for (let i = 0; i < 4; i++) sizes.push((await probe.ids({ takeovers: 2 })).length)
      deepStrictEqual(sizes, [1, 1, 1, 0])
      const takeovers = await Promise.all(silent.map(async ({ id }) => (await probe.load(id)).takeovers))
      deepStrictEqual(takeovers.sort(), [1, 2, 2])
    },
  },
  {
    name: 'progress forgets takeovers, and other writes do not',
    async run(probe) {
      const { id } = await probe.inserted({ runner: uuidv7(), wakeIn: 50 })
      await probe.time.pass(100)
      const { runner } = await probe.claim()
      await probe.sagas.save(undefined, probe.change(id, 2, { runner, progress: false }))
      strictEqual((await probe.load(id)).takeovers, 1)
      await probe.sagas.save(undefined, probe.change(id, 3, { runner }))
      strictEqual((await probe.load(id)).takeovers, 0)
    },
  },
  {
    name: 'a write keeps the lease as it is while more than half of it is left, and renews it then',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim({ lease: 1000 })
      const before = (await probe.load(id)).wakeAt!
      await probe.sagas.save(undefined, probe.change(id, 2, { runner, lease: 1000 }))
      deepStrictEqual((await probe.load(id)).wakeAt, before)
      await probe.time.pass(600)
      await probe.sagas.save(undefined, probe.change(id, 3, { runner, lease: 1000 }))
      ok((await probe.load(id)).wakeAt! > before)
    },
  },
  {
    name: 'what is released has no runner, and is due when it was said, or never',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim()
      const release = { runner, claim: 'release' as const, wakeIn: 200 }
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 2, release)), true)
      strictEqual((await probe.load(id)).runner, undefined)
      deepStrictEqual(await probe.ids(), [])
      await probe.time.pass(300)
      const again = await probe.claim()
      deepStrictEqual([again.claimed[0]?.saga.id, again.claimed[0]?.takenOver], [id, false])
      const never = { runner: again.runner, claim: 'release' as const, wakeIn: undefined }
      await probe.sagas.save(undefined, probe.change(id, 4, never))
      strictEqual((await probe.load(id)).wakeAt, undefined)
      deepStrictEqual(await probe.ids(), [])
    },
  },
  {
    name: 'a person’s write leaves a claim with whoever has it, and wakes what nobody has',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim()
      const before = await probe.load(id)
      await probe.sagas.save(undefined, probe.change(id, 2, { claim: 'leave', wakeIn: 0 }))
      const after = await probe.load(id)
      deepStrictEqual([after.runner, after.wakeAt], [runner, before.wakeAt])
      await probe.sagas.save(undefined, probe.change(id, 3, { runner, claim: 'release', wakeIn: LEASE }))
      await probe.sagas.save(undefined, probe.change(id, 4, { claim: 'leave', wakeIn: 0 }))
      deepStrictEqual(await probe.ids(), [id])
    },
  },
  {
    name: 'what is held is not claimed, whoever had it',
    async run(probe) {
      const { id } = await probe.inserted()
      await probe.claim({ lease: 100 })
      const { state } = probe.change(id, 2)
      await probe.sagas.save(undefined, probe.change(id, 2, { state: held(state), claim: 'leave' }))
      await probe.time.pass(200)
      deepStrictEqual(await probe.ids(), [])
      strictEqual((await probe.load(id)).held, 'look')
      deepStrictEqual(
        (await probe.sagas.list({ attention: true }, {})).map((found) => found.id),
        [id],
      )
      // It goes on, and its runner had stopped without a word.
      await probe.sagas.save(undefined, probe.change(id, 3, { state, claim: 'leave', wakeIn: 0 }))
      const { claimed } = await probe.claim()
      deepStrictEqual(
        claimed.map(({ takenOver }) => takenOver),
        [true],
      )
      deepStrictEqual(await probe.sagas.list({ attention: true }, {}), [])
    },
  },
  {
    name: 'renewing returns those that are still one’s own',
    async run(probe) {
      const [first, second] = [await probe.inserted(), await probe.inserted()]
      const { runner } = await probe.claim({ lease: 300 })
      const claims = [first, second].map(({ id }) => ({ id, runner }))
      deepStrictEqual([...(await probe.sagas.extend(claims, LEASE))].sort(), [first.id, second.id].sort())
      await probe.time.pass(400)
      deepStrictEqual(await probe.ids(), [])
      await probe.sagas.save(undefined, probe.change(second.id, 2, { runner, claim: 'release', wakeIn: 0 }))
      deepStrictEqual(await probe.sagas.extend([...claims, { id: uuidv7(), runner }], LEASE), [first.id])
      deepStrictEqual(await probe.sagas.extend([{ id: first.id, runner: uuidv7() }], LEASE), [])
    },
  },
  {
    name: 'it knows when the next one is due',
    async run(probe) {
      strictEqual(await probe.sagas.nextDue([definition]), undefined)
      await probe.inserted({ wakeIn: 50_000 })
      await probe.inserted({ wakeIn: 1000, definition: 'order@2#other' })
      const next = await probe.sagas.nextDue([definition])
      ok(next !== undefined && next > 40_000 && next <= 50_000, `${next}`)
      await probe.inserted({ wakeIn: 20_000, runner: uuidv7() })
      ok((await probe.sagas.nextDue([definition]))! <= 20_000)
      await probe.inserted()
      const since = await probe.sagas.nextDue([definition])
      ok(since !== undefined && since <= 0 && since > -30_000, `${since}`)
    },
  },
  {
    name: 'sagas are found by type, aggregate and status, newest first, page by page',
    async run(probe) {
      const made = []
      for (let i = 0; i < 5; i++) made.unshift(await probe.inserted({ aggregate: `order-${i % 2}` }))
      await probe.inserted({ type: 'other' })
      // Those of one millisecond are in any order.
      made.sort((a, b) => (a.id < b.id ? 1 : -1))
      const ids = made.map(({ id }) => id)
      const find = async (...args: Parameters<SagaStore['list']>) =>
        (await probe.sagas.list(...args)).map(({ id }) => id)
      deepStrictEqual(await find({ type: 'order' }, {}), ids)
      deepStrictEqual(await find({ type: 'order' }, { limit: 2 }), ids.slice(0, 2))
      deepStrictEqual(await find({ type: 'order' }, { limit: 2, after: ids[1]! }), ids.slice(2, 4))
      const odd = made.filter(({ aggregate }) => aggregate === 'order-1').map(({ id }) => id)
      deepStrictEqual(await find({ type: 'order', aggregate: 'order-1' }, {}), odd)
      const ended = { ...probe.change(ids[0]!, 1).state, status: 'compensated' as const }
      await probe.sagas.save(undefined, probe.change(ids[0]!, 1, { state: ended, claim: 'release' }))
      deepStrictEqual(await find({ status: ['compensated', 'failed'] }, {}), [ids[0]])
      deepStrictEqual(await find({ type: 'order', status: 'running' }, {}), ids.slice(1))
    },
  },
  {
    name: 'those that have been due for long are counted by definition',
    async run(probe) {
      await probe.inserted({ definition: 'order@7#gone' })
      await probe.inserted({ definition: 'order@7#gone' })
      await probe.inserted({ wakeIn: LEASE })
      deepStrictEqual(await probe.sagas.overdue(LEASE), [])
      await probe.time.pass(200)
      deepStrictEqual(await probe.sagas.overdue(100), [{ definition: 'order@7#gone', count: 2 }])
    },
  },
  {
    name: 'what people do is written down, with their transaction',
    async run(probe) {
      const { id } = await probe.inserted()
      const open = await openTransaction(probe.work, (tx) =>
        probe.sagas.audit(tx, { sagaId: id, by: 'ann', action: 'hold', note: 'never' }),
      )
      await open.rollback()
      await probe.sagas.audit(undefined, { sagaId: id, by: 'ann', action: 'retry', note: 'again' })
      const [{ at, ...entry }, ...more] = (await probe.sagas.audits(id)) as [
        Awaited<ReturnType<SagaStore['audits']>>[0],
      ]
      deepStrictEqual(
        [entry, more, at instanceof Date],
        [{ sagaId: id, by: 'ann', action: 'retry', note: 'again' }, [], true],
      )
    },
  },
  {
    name: 'what has ended is cleaned after its time; what is alive or waits for a person stays',
    async run(probe) {
      const [done, failed, alive] = [await probe.inserted(), await probe.inserted(), await probe.inserted()]
      for (const [{ id }, status] of [
        [done, 'completed'],
        [failed, 'failed'],
      ] as const) {
        const state = { ...probe.change(id, 1).state, status }
        await probe.sagas.save(undefined, probe.change(id, 1, { state, claim: 'release' }))
      }
      strictEqual(await probe.sagas.clean(), 0)
      await probe.time.pass(100)
      strictEqual(await probe.sagas.clean({ retention: 10 }), 1)
      strictEqual(await probe.sagas.load(undefined, done.id), undefined)
      deepStrictEqual((await probe.sagas.list({}, {})).map(({ id }) => id).sort(), [alive.id, failed.id].sort())
      const state = { ...probe.change(failed.id, 2).state, status: 'failed' as const }
      await probe.sagas.save(undefined, probe.change(failed.id, 2, { state, claim: 'release', acknowledged: true }))
      await probe.time.pass(100)
      strictEqual(await probe.sagas.clean({ retention: 10 }), 1)
    },
  },
  {
    name: 'a claim leaves out what another is writing, and a second writer waits for the first',
    async run(probe) {
      const { id } = await probe.inserted()
      const open = await openTransaction(probe.work, async (tx) => {
        await probe.sagas.load(tx, id, true)
        return probe.sagas.save(tx, probe.change(id, 1, { claim: 'leave', wakeIn: 0 }))
      })
      deepStrictEqual(await probe.ids(), [])
      const second = probe.sagas.save(undefined, probe.change(id, 1))
      await open.commit()
      strictEqual(await second, false)
      deepStrictEqual(await probe.ids(), [id])
    },
  },
  {
    name: 'who listens is told of a saga that was started',
    async run(probe) {
      const listener = await probe.sagas.listen?.()
      if (listener === undefined) return
      const never = new AbortController().signal
      try {
        // The first wait may end at once: it was not listening before.
        const waits = async () => {
          for (;;) {
            await listener.wait(probe.time.patience * 10, never)
            if ((await probe.ids()).length > 0) return
          }
        }
        const told = waits()
        await probe.time.pass(50)
        await probe.inserted()
        await probe.time.soon(told, 'it is told')
      } finally {
        await listener.close()
      }
    },
  },
]
