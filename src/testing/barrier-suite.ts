import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { uuidv7 } from '../core/index.ts'
import type { BarrierAnswer, BarrierOperation, Barriers, UnitOfWork } from '../store/index.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import {
  openTransaction,
  type StoreCase,
  type StoreFactory,
  type StoreUnderTest,
  storeSuite,
  type Time,
} from './store-probe.ts'

/** The barrier of participants in sagas, and what the suite needs beside it. */
export interface BarriersUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  readonly barriers: Barriers<Tx>
}

/** Makes a barrier for the suite, fresh for each case. */
export type BarriersFactory<Tx = unknown> = StoreFactory<BarriersUnderTest<Tx>>

class BarrierProbe {
  readonly work: UnitOfWork
  readonly barriers: Barriers
  readonly time: Time

  constructor({ work, barriers }: BarriersUnderTest, time: Time) {
    this.work = work
    this.barriers = barriers
    this.time = time
  }

  /** Asks only, in a transaction of its own. */
  enter(key: string, operation: BarrierOperation): Promise<BarrierAnswer> {
    return this.work.withTransaction((tx) => this.barriers.enter(tx, key, operation))
  }

  /** Asks, and stores an output where the work is to be done, in one transaction. */
  done(key: string, operation: BarrierOperation, output: unknown): Promise<BarrierAnswer> {
    return this.work.withTransaction(async (tx) => {
      const answer = await this.barriers.enter(tx, key, operation)
      if (answer.go) await this.barriers.leave(tx, key, operation, output)
      return answer
    })
  }

  /** Asks, stays open. */
  open(key: string, operation: BarrierOperation) {
    return openTransaction(this.work, async (tx) => {
      const answer = await this.barriers.enter(tx, key, operation)
      if (answer.go) await this.barriers.leave(tx, key, operation, 'open')
      return answer
    })
  }
}

/** What every Barriers must do, so that a participant does the work of a step once, and undoes it once. */
export function barrierSuite<Tx>(factory: BarriersFactory<Tx>, options: SuiteOptions = {}): Suite {
  const probe = (under: BarriersUnderTest<Tx>, time: Time) => new BarrierProbe(under as BarriersUnderTest, time)
  return storeSuite({ kind: 'barrier', features: [], cases, probe }, factory, options)
}

const GO = { go: true, ran: false, output: undefined }
const AFTER_RUN = { go: true, ran: true, output: undefined }

const cases: readonly StoreCase<BarrierProbe>[] = [
  {
    name: 'a run happens once; asked again, it gets what was stored',
    async run(probe) {
      const key = uuidv7()
      const output = [{ type: 'done', text: 'ä"\u{1f600}', none: null }]
      deepStrictEqual(await probe.done(key, 'run', output), GO)
      for (let i = 0; i < 2; i++) deepStrictEqual(await probe.enter(key, 'run'), { go: false, ran: true, output })
      deepStrictEqual(await probe.enter(uuidv7(), 'run'), GO)
    },
  },
  {
    name: 'an undo after its run happens once, learns that it ran, and has an output of its own',
    async run(probe) {
      const key = uuidv7()
      await probe.done(key, 'run', 'ran')
      deepStrictEqual(await probe.done(key, 'undo', 'undone'), AFTER_RUN)
      deepStrictEqual(await probe.enter(key, 'undo'), { go: false, ran: true, output: 'undone' })
    },
  },
  {
    name: 'an undo without a run goes on and leaves a tombstone: the run after it is refused, without an output',
    async run(probe) {
      const key = uuidv7()
      deepStrictEqual(await probe.done(key, 'undo', 'undone'), GO)
      deepStrictEqual(await probe.enter(key, 'run'), { go: false, ran: false, output: undefined })
      deepStrictEqual(await probe.enter(key, 'undo'), { go: false, ran: false, output: 'undone' })
    },
  },
  {
    name: 'a run after it was undone is refused, and its old output is not given out',
    async run(probe) {
      const key = uuidv7()
      await probe.done(key, 'run', 'ran')
      await probe.done(key, 'undo', 'undone')
      const { go, output } = await probe.enter(key, 'run')
      deepStrictEqual([go, output], [false, undefined])
    },
  },
  {
    name: 'a run that was rolled back leaves no record: it may run again, and an undo has not seen it',
    async run(probe) {
      const [first, second] = [uuidv7(), uuidv7()]
      for (const key of [first, second]) await (await probe.open(key, 'run')).rollback()
      deepStrictEqual(await probe.enter(first, 'run'), GO)
      deepStrictEqual(await probe.enter(second, 'undo'), GO)
    },
  },
  {
    name: 'an undo that was rolled back leaves the run as it was',
    async run(probe) {
      const key = uuidv7()
      await probe.done(key, 'run', 'ran')
      await (await probe.open(key, 'undo')).rollback()
      deepStrictEqual(await probe.enter(key, 'run'), { go: false, ran: true, output: 'ran' })
      deepStrictEqual(await probe.enter(key, 'undo'), AFTER_RUN)
    },
  },
  {
    name: 'an undo waits for a run that is open, and sees how it ended',
    async run(probe) {
      for (const ends of ['commit', 'rollback'] as const) {
        const key = uuidv7()
        const open = await probe.open(key, 'run')
        let answered = false
        const undo = probe.enter(key, 'undo').finally(() => {
          answered = true
        })
        await probe.time.pass(50)
        strictEqual(answered, false, 'it waits')
        await open[ends]()
        deepStrictEqual(await probe.time.soon(undo, 'the undo'), {
          go: true,
          ran: ends === 'commit',
          output: undefined,
        })
      }
    },
  },
  {
    name: 'a repeat waits for a run that is open, and gets its output',
    async run(probe) {
      const key = uuidv7()
      const open = await probe.open(key, 'run')
      const repeat = probe.enter(key, 'run')
      await probe.time.pass(50)
      await open.commit()
      deepStrictEqual(await probe.time.soon(repeat, 'the repeat'), { go: false, ran: true, output: 'open' })
    },
  },
  {
    name: 'of many runs at once one goes on',
    async run(probe) {
      const key = uuidv7()
      const answers = await Promise.all(Array.from({ length: 8 }, () => probe.done(key, 'run', 'ran')))
      strictEqual(answers.filter(({ go }) => go).length, 1)
      ok(answers.every(({ go, output }) => go || output === 'ran'))
    },
  },
  {
    name: 'a second undo waits for one that is open, after a run as without one, and does not go on',
    async run(probe) {
      const [ran, never] = [uuidv7(), uuidv7()]
      await probe.done(ran, 'run', 'ran')
      for (const key of [ran, never]) {
        const open = await probe.open(key, 'undo')
        const second = probe.enter(key, 'undo')
        await probe.time.pass(50)
        await open.commit()
        const answer = await probe.time.soon(second, 'the second undo')
        deepStrictEqual(answer, { go: false, ran: key === ran, output: 'open' })
      }
    },
  },
  {
    name: 'cleaning forgets what is older than the retention, and nothing else',
    async run(probe) {
      const [first, second, third] = [uuidv7(), uuidv7(), uuidv7()]
      await probe.done(first, 'run', 1)
      await probe.done(second, 'undo', 2)
      strictEqual(await probe.barriers.clean(), 0)
      // So long that what is younger is still younger when it is looked at, on a busy machine too.
      const retention = 2000
      await probe.time.pass(retention + 100)
      await probe.done(third, 'run', 3)
      strictEqual(await probe.barriers.clean({ retention, limit: 1 }), 1)
      strictEqual(await probe.barriers.clean({ retention }), 1)
      strictEqual((await probe.enter(third, 'run')).output, 3)
      deepStrictEqual(await probe.enter(first, 'run'), GO)
    },
  },
]
