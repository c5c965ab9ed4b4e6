import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { uuidv7 } from '../core/index.ts'
import type { SagaState, SagaStore } from '../saga/index.ts'
import { held, LEASE, type SagaProbe } from './saga-probe.ts'
import { openTransaction, type StoreCase } from './store-probe.ts'

/** What is written comes back, once, fenced by its version, and can be found, counted and cleaned. */
export const ROW_CASES: readonly StoreCase<SagaProbe>[] = [
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
    name: 'those who wait are shown each saga that is there, and what is stored of it once it has ended or is held',
    async run(probe) {
      const [alive, done, waits] = [
        await probe.inserted(),
        await probe.inserted(),
        await probe.inserted({ type: 'other' }),
      ]
      const completed = { ...probe.change(done.id, 1).state, status: 'completed' as const }
      await probe.sagas.save(undefined, probe.change(done.id, 1, { state: completed, claim: 'release' }))
      const state = held(probe.change(waits.id, 1).state)
      await probe.sagas.save(undefined, probe.change(waits.id, 1, { state, claim: 'release' }))
      const found = await probe.sagas.ended([alive.id, uuidv7(), done.id, waits.id])
      const of = (id: string) => found.find((one) => one.id === id)
      deepStrictEqual([found.length, of(alive.id)], [3, { id: alive.id, type: 'order', saga: undefined }])
      deepStrictEqual(of(done.id)?.saga, await probe.load(done.id))
      deepStrictEqual([of(waits.id)?.type, of(waits.id)?.saga], ['other', await probe.load(waits.id)])
      deepStrictEqual(await probe.sagas.ended([]), [])
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
        sends: 5,
        attempts: 3,
        spent: 40,
        error: 'e',
      }
      const after = { ...state, status: 'compensating' as const, steps: [undone, state.steps[1]!] }
      await probe.sagas.save(undefined, probe.change(id, 2, { state: after, steps: [undone] }))
      const [again] = (await probe.load(id)).steps
      const { attempts, spent, undos, sends, error, executedAt, compensatedAt } = again!
      deepStrictEqual([attempts, spent, undos, sends, error, executedAt], [3, 40, 2, 5, 'e', reserve!.executedAt])
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
    name: 'those that are alive or wait for a person are counted by type and state',
    async run(probe) {
      if (probe.sagas.stats === undefined) return
      deepStrictEqual(await probe.sagas.stats(), [])
      const made = await Promise.all(Array.from({ length: 6 }, () => probe.inserted({ wakeIn: LEASE })))
      await probe.inserted({ type: 'refund', definition: 'refund@1#a' })
      await probe.inserted({ runner: uuidv7(), wakeIn: LEASE })
      const become = async (at: number, state: Partial<SagaState>) => {
        const { id } = made[at]!
        const change = probe.change(id, 1)
        const claim =
          state.status === 'compensating'
            ? ({ claim: 'release', wakeIn: LEASE } as const)
            : { claim: 'release' as const }
        ok(await probe.sagas.save(undefined, { ...change, state: { ...change.state, ...state }, ...claim }))
      }
      await become(0, { status: 'completed' })
      await become(1, { status: 'compensated' })
      await become(2, { status: 'failed' })
      await become(3, { status: 'compensating' })
      await become(4, { held: 'nobody knows' })
      await probe.time.pass(200)
      const stats = await probe.sagas.stats()
      const seen = stats.map(({ type, counts }) => [
        type,
        ...Object.entries(counts).map(([state, { count }]) => `${state} ${count}`),
      ])
      deepStrictEqual(seen.sort(), [
        ['order', 'running 2', 'compensating 1', 'held 1', 'failed 1'],
        ['refund', 'running 1', 'compensating 0', 'held 0', 'failed 0'],
      ])
      const of = (name: string) => stats.find(({ type }) => type === name)!
      strictEqual(of('order').dueSeconds, 0)
      ok(of('refund').dueSeconds >= 0.2, `due for ${of('refund').dueSeconds} s`)
      ok(of('order').waitingSeconds >= 0.2, `waits for ${of('order').waitingSeconds} s`)
      strictEqual(of('refund').waitingSeconds, 0)
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
]
