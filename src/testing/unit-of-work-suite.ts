import { deepStrictEqual, ok, rejects, strictEqual } from 'node:assert/strict'
import { WaybillError } from '../core/index.ts'
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

/** A unit of work, and what the suite needs beside it. */
export interface UnitOfWorkUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  /** Writes a word in the transaction, as a service would write its own data. */
  write(tx: Tx, word: string): Promise<void>
  /** The words that are committed, in any order. */
  words(): Promise<readonly string[]>
}

/** Makes a unit of work for the suite, fresh for each case. */
export type UnitOfWorkFactory<Tx = unknown> = StoreFactory<UnitOfWorkUnderTest<Tx>>

class WorkProbe {
  readonly work: UnitOfWork
  readonly time: Time
  readonly #under: UnitOfWorkUnderTest

  constructor(under: UnitOfWorkUnderTest, time: Time) {
    this.#under = under
    this.work = under.work
    this.time = time
  }

  write(tx: unknown, word: string): Promise<void> {
    return this.#under.write(tx, word)
  }

  async words(): Promise<string[]> {
    return [...(await this.#under.words())].sort()
  }

  /** Writes the word in the current transaction: joins it, or begins one. */
  add(word: string): Promise<void> {
    return this.work.withTransaction((tx) => this.write(tx, word))
  }
}

/** What every UnitOfWork must do: all of it or nothing, and the current transaction is the one we are in. */
export function unitOfWorkSuite<Tx>(factory: UnitOfWorkFactory<Tx>, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'unit of work',
      features: [],
      cases,
      probe: (under: UnitOfWorkUnderTest<Tx>, time) => new WorkProbe(under as UnitOfWorkUnderTest, time),
    },
    factory,
    options,
  )
}

const failure = new Error('the work failed')

async function fail(): Promise<never> {
  throw failure
}

const cases: readonly StoreCase<WorkProbe>[] = [
  {
    name: 'work that goes on after its signal was aborted loses its transaction, and nothing of it is left',
    async run(probe) {
      const controller = new AbortController()
      const reason = new Error('the time is up')
      let leaked: unknown
      let written = (): void => {}
      const begun = new Promise<void>((resolve) => {
        written = resolve
      })
      const work = probe.work.withTransaction(
        async (tx) => {
          leaked = tx
          await probe.write(tx, 'a')
          written()
          await new Promise(() => {})
        },
        { signal: controller.signal },
      )
      await begun
      controller.abort(reason)
      await probe.time.soon(rejects(work, reason), 'the transaction has ended')
      await rejects(async () => probe.write(leaked, 'b'))
      await probe.add('c')
      deepStrictEqual(await probe.words(), ['c'])
    },
  },
  {
    name: 'a signal changes nothing for work that returns or fails in time',
    async run(probe) {
      const { signal } = new AbortController()
      strictEqual(await probe.work.withTransaction(async (tx) => probe.write(tx, 'a').then(() => 1), { signal }), 1)
      await rejects(probe.work.withTransaction(fail, { signal }), failure)
      deepStrictEqual(await probe.words(), ['a'])
    },
  },
  {
    name: 'what is done commits, and its value is returned',
    async run(probe) {
      const value = await probe.work.withTransaction(async (tx) => {
        await probe.write(tx, 'a')
        await probe.write(tx, 'b')
        return 'value'
      })
      strictEqual(value, 'value')
      deepStrictEqual(await probe.words(), ['a', 'b'])
    },
  },
  {
    name: 'what throws is rolled back, and throws just that',
    async run(probe) {
      await probe.add('before')
      const failing = probe.work.withTransaction(async (tx) => {
        await probe.write(tx, 'a')
        await probe.write(tx, 'b')
        throw failure
      })
      await rejects(failing, (error) => error === failure)
      deepStrictEqual(await probe.words(), ['before'])
    },
  },
  {
    name: 'nobody sees what is not committed',
    async run(probe) {
      const open = await openTransaction(probe.work, (tx) => probe.write(tx, 'a'))
      deepStrictEqual(await probe.words(), [])
      await open.commit()
      deepStrictEqual(await probe.words(), ['a'])
    },
  },
  {
    name: 'transactions at once are separate',
    async run(probe) {
      const one = await openTransaction(probe.work, async (tx) => {
        await probe.write(tx, 'one')
        return tx
      })
      const two = await openTransaction(probe.work, async (tx) => {
        await probe.write(tx, 'two')
        return tx
      })
      ok(one.value !== two.value)
      await one.rollback()
      await two.commit()
      deepStrictEqual(await probe.words(), ['two'])
    },
  },
  {
    name: 'the transaction is current inside, however deep, and nowhere else',
    async run(probe) {
      const { work } = probe
      strictEqual(work.current(), undefined)
      await work.withTransaction(async (tx) => {
        strictEqual(work.current(), tx)
        await probe.time.pass(1)
        await Promise.all([1, 2].map(async () => strictEqual(work.current(), tx)))
      })
      strictEqual(work.current(), undefined)
      await work.withTransaction(fail).catch(() => {})
      strictEqual(work.current(), undefined)
    },
  },
  {
    name: 'an inner call joins the outer transaction',
    async run(probe) {
      const { work } = probe
      await rejects(
        work.withTransaction(async (outer) => {
          const inner = await work.withTransaction(async (tx) => {
            await probe.write(tx, 'inner')
            return tx
          })
          strictEqual(inner, outer)
          throw failure
        }),
        failure,
      )
      deepStrictEqual(await probe.words(), [], 'the inner one has committed nothing by itself')
      await work.withTransaction(() => Promise.all(['a', 'b', 'c'].map((word) => probe.add(word))))
      deepStrictEqual(await probe.words(), ['a', 'b', 'c'])
    },
  },
  {
    name: 'an inner failure rolls back the whole, even when it is caught, and is the cause of its error',
    async run(probe) {
      const { work } = probe
      const failing = work.withTransaction(async () => {
        await probe.add('before')
        await work.withTransaction(fail).catch(() => {})
        await probe.add('after')
        return 'value'
      })
      await rejects(failing, (error) => error instanceof WaybillError && error.cause === failure)
      deepStrictEqual(await probe.words(), [])
    },
  },
  {
    name: 'an inner failure that is not caught is itself the error',
    async run(probe) {
      const { work } = probe
      await rejects(
        work.withTransaction(() => work.withTransaction(() => work.withTransaction(fail))),
        (error) => error === failure,
      )
    },
  },
  {
    name: 'after a failure the next transaction is a new one',
    async run(probe) {
      for (let i = 0; i < 30; i++) await probe.work.withTransaction(fail).catch(() => {})
      await probe.add('a')
      deepStrictEqual(await probe.words(), ['a'])
    },
  },
  {
    name: 'hooks run after the commit, in their order, outside of the transaction',
    async run(probe) {
      const { work } = probe
      const ran: string[] = []
      await work.withTransaction(async (tx) => {
        work.afterCommit(() => ran.push(work.current() === undefined ? 'outer' : 'inside'))
        await work.withTransaction(async () => work.afterCommit(() => ran.push('inner')))
        await probe.write(tx, 'a')
        deepStrictEqual(ran, [])
      })
      deepStrictEqual(ran, ['outer', 'inner'])
    },
  },
  {
    name: 'hooks never run when the transaction is rolled back, by itself or by a part of it',
    async run(probe) {
      const { work } = probe
      const ran: string[] = []
      const hooked = (fn: () => Promise<unknown>) =>
        work.withTransaction(async () => {
          work.afterCommit(() => ran.push('never'))
          await fn()
        })
      await rejects(hooked(fail))
      await rejects(hooked(() => work.withTransaction(fail).catch(() => {})))
      deepStrictEqual(ran, [])
    },
  },
  {
    name: 'a hook that fails harms neither the commit nor the next hook',
    async run(probe) {
      const { work } = probe
      const ran: string[] = []
      const value = await work.withTransaction(async (tx) => {
        work.afterCommit(() => {
          throw new Error('a hook failed')
        })
        work.afterCommit(() => ran.push('next'))
        await probe.write(tx, 'a')
        return 'value'
      })
      deepStrictEqual([value, ran, await probe.words()], ['value', ['next'], ['a']])
    },
  },
  {
    name: 'a hook outside of a transaction is an error',
    async run({ work }) {
      try {
        work.afterCommit(() => {})
      } catch (error) {
        strictEqual((error as WaybillError).code, 'NO_TRANSACTION')
        return
      }
      throw new Error('it was taken, and would never have run')
    },
  },
  {
    name: 'a transaction that has ended cannot be written in, and whoever outlives it can begin another',
    async run(probe) {
      const { work } = probe
      let leaked: unknown
      let end!: () => void
      const ended = new Promise<void>((resolve) => {
        end = resolve
      })
      let late: Promise<void> | undefined
      await work.withTransaction(async (tx) => {
        leaked = tx
        late = ended.then(async () => {
          strictEqual(work.current(), undefined)
          await probe.add('second')
        })
      })
      end()
      await late
      await rejects(async () => probe.write(leaked, 'leaked'))
      deepStrictEqual(await probe.words(), ['second'])
    },
  },
]
