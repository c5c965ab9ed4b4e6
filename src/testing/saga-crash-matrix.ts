import { type Message, onAbort, Reject, WaybillError } from '../core/index.ts'
import { memory } from '../memory/index.ts'
import { transactionOf } from '../memory/transaction.ts'
import type { Outputs } from '../router/index.ts'
import {
  type AnySaga,
  type SagaDatabase,
  type SagaRecord,
  SagaRunner,
  type StepDefinition,
  sagaReplies,
} from '../saga/index.ts'
import { FakeClock } from './fake-clock.ts'
import { DISTURBANCES, type Disturbance, SagaNetwork } from './saga-network.ts'

/** What a crash matrix is run with. */
export interface CrashMatrixOptions<Deps> {
  /** The services a saga calls, fresh for each run. They outlive every crash. */
  setup: () => Deps | Promise<Deps>
  input: unknown
  /** Must hold when the saga has ended and all late work has arrived. Throws when it does not. */
  invariant: (deps: Deps, ended: SagaRecord) => unknown
  /** For sagas with requests: what their participants do about a message, and what they reply. */
  participant?: (message: Message, deps: Deps) => Outputs | Promise<Outputs>
}

/** One thing that goes wrong at one place of a run. */
interface Fault {
  readonly name: string
  /** The name of a step that is refused, so that what came before it is undone. */
  readonly refuses?: string
  /** Where the process dies. */
  readonly crash?: string
  /** What the first call of this step does. */
  readonly step?: string
  readonly does?: 'fail' | 'permanent' | 'time out' | 'late' | 'later' | 'twice'
  /** Which message, and what happens to it on its way. */
  readonly message?: string
  readonly travels?: Disturbance
}

/** The places a run came by, and the messages it sent. */
interface Seen {
  readonly points: readonly string[]
  readonly messages: readonly string[]
}

const LEASE = 600_000
/** So long after its time-out work is done that comes late: before the next try, or after all is over. */
const LATE = { late: 100, later: 3_000_000 } as const
const MOST_ROUNDS = 500

/**
 * Runs a saga against everything that can go wrong, one thing at a time, in memory and with time that passes when told:
 *
 * - its process dies before and after each call of a step or an undo, and before and after each write;
 * - each step is refused, fails, fails for good, takes too long, does its work late or very late, or does it twice;
 * - each request, reply and undo is lost, comes twice, late, very late, or after the one behind it: an undo before its request;
 * - all of that also on the way back, for each step that may be refused.
 *
 * Each run must end, and the invariant must hold then. Returns the names of the runs; throws with those that failed.
 */
export async function crashMatrix<Deps>(
  define: (deps: Deps) => AnySaga,
  options: CrashMatrixOptions<Deps>,
): Promise<readonly string[]> {
  const run = async (fault: Fault) => new Run(fault).end(define, options)
  const { steps } = define(await options.setup())
  const calls = steps.filter(({ kind }) => kind === 'step' || kind === 'transaction')
  const refusals = calls.filter(({ final }) => !final).map(({ name }) => name)
  const faults: Fault[] = []
  for (const refuses of [undefined, ...refusals]) {
    const way = refuses === undefined ? {} : { refuses }
    const name = refuses === undefined ? 'all goes well' : `${refuses} is refused`
    faults.push({ name, ...way })
    const { points, messages } = await run({ name, ...way })
    for (const message of messages) {
      // An outbox loses nothing. What is lost behind it is made good where somebody waits for an answer.
      const unanswered = steps.some(({ name, confirmed }) => !confirmed && message.startsWith(`undo ${name} #`))
      for (const travels of DISTURBANCES) {
        if (travels === 'lost' && unanswered) continue
        faults.push({ name: `${name}, ${message} is ${travels}`, ...way, message, travels })
      }
    }
    for (const crash of points) faults.push({ name: `${name}, dies ${crash}`, ...way, crash })
    for (const step of calls) {
      if (step.name === refuses) continue
      for (const does of ['fail', 'permanent', 'time out', 'late', 'later', 'twice'] as const) {
        if (step.kind === 'transaction' && (does === 'late' || does === 'later')) continue
        faults.push({ name: `${name}, ${step.name} does: ${does}`, ...way, step: step.name, does })
      }
    }
  }
  const failed: string[] = []
  let cause: unknown
  for (const fault of faults) {
    try {
      await run(fault)
    } catch (error) {
      cause ??= error
      failed.push(`${fault.name}: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
  if (failed.length === 0) return faults.map(({ name }) => name)
  const list = failed.slice(0, 20).join('\n  ')
  throw new WaybillError('CRASH_MATRIX', `${failed.length} of ${faults.length} runs failed:\n  ${list}`, { cause })
}

/** A process: when it is dead, nothing that it has begun comes to anything. */
class Process {
  dead = false
  readonly #points: string[]
  readonly #at: string | undefined

  /** `points`: where this process and those before it came by. At `at` it dies. */
  constructor(points: string[], at: string | undefined) {
    this.#points = points
    this.#at = at
  }

  /** A place where it may die. */
  async reach(point: string): Promise<void> {
    if (this.dead) await new Promise(() => {})
    const times = this.#points.filter((one) => one.startsWith(`${point} #`)).length + 1
    this.#points.push(`${point} #${times}`)
    if (this.#points.at(-1) !== this.#at) return
    this.dead = true
    await new Promise(() => {})
  }
}

class Run {
  readonly #clock = new FakeClock()
  readonly #db = memory({ clock: this.#clock })
  readonly #fault: Fault
  readonly #calls = new Map<string, number>()

  constructor(fault: Fault) {
    this.#fault = fault
  }

  /** To the end of the saga. Returns the places it came by. */
  async end<Deps>(define: (deps: Deps) => AnySaga, options: CrashMatrixOptions<Deps>): Promise<Seen> {
    const deps = await options.setup()
    const network = this.#network((message) => options.participant?.(message, deps))
    const points: string[] = []
    let id: string | undefined
    for (let round = 0; round < MOST_ROUNDS; round++) {
      const process = new Process(points, this.#fault.crash)
      const saga = define(deps).wrapped((step) => this.#disturbed(step, process))
      const store = this.#store(process) as never
      const runner = new SagaRunner({ store, sagas: [saga], clock: this.#clock, lease: LEASE })
      id ??= await this.#db.withTransaction((tx) => runner.client(saga).start(tx as never, options.input))
      if (options.participant !== undefined) await this.#deliver(network, saga, store, process)
      if (!process.dead) await this.#round(runner, process)
      const saved = await this.#db.sagas.load(undefined, id)
      if (saved!.endedAt !== undefined || saved!.held !== undefined) {
        if (!network.isEmpty) {
          network.release()
          await this.#clock.advance(network.nextIn)
          continue
        }
        // What comes very late has come by then.
        await this.#clock.advance(2 * LATE.later)
        await options.invariant(deps, saved!)
        const { crash } = this.#fault
        if (crash === undefined || points.includes(crash)) return { points, messages: network.names }
        throw new WaybillError('CRASH_MATRIX', 'it did not come by the place where it was to die')
      }
    }
    throw new WaybillError('CRASH_MATRIX', `it has not ended after ${MOST_ROUNDS} rounds`)
  }

  #network(participant: (message: Message) => Outputs | Promise<Outputs>): SagaNetwork {
    const { message: disturbed, travels: does } = this.#fault
    const network = new SagaNetwork({
      clock: this.#clock,
      disturbed,
      does,
      late: LEASE,
      veryLate: LATE.later,
      participant,
    })
    const { outbox } = this.#db
    const enqueue = outbox.enqueue.bind(outbox) as (tx: unknown, messages: readonly Message[]) => Promise<unknown>
    const watched = async (tx: unknown, messages: readonly Message[]) => {
      const result = await enqueue(tx, messages)
      transactionOf(tx).atCommit(() => {
        for (const message of messages) network.request(message)
      })
      return result
    }
    Object.assign(outbox, { enqueue: watched })
    return network
  }

  /** What has arrived, to participants and to this process. When it dies with a reply, that comes again. */
  async #deliver(network: SagaNetwork, saga: AnySaga, store: never, process: Process): Promise<void> {
    const router = sagaReplies({ store, sagas: [saga] })
    await network.deliver(async (message) => {
      let over = false
      const about = { signal: new AbortController().signal, attempt: 1, router: router.name }
      const handled = Promise.resolve(router.handle(message, { ...about, ack: () => true, nack: () => true }))
      handled.then(
        () => {
          over = true
        },
        () => {
          over = true
        },
      )
      await this.#clock.until(() => over || process.dead, 24 * LEASE)
      if (over) await handled
      else await this.#clock.advance(LEASE + 1)
      return over
    })
  }

  /** One look of a runner; then its process dies, or sleeps until something is due. */
  async #round(runner: SagaRunner, process: Process): Promise<void> {
    let over = false
    const round = runner.runOnce().finally(() => {
      over = true
    })
    round.catch(() => {})
    await this.#clock.until(() => over || process.dead, 24 * LEASE)
    if (process.dead) await this.#clock.advance(LEASE + 1)
    else {
      await round
      const stopping = runner.stop()
      await this.#clock.advance(60_000)
      await stopping
    }
  }

  #store(process: Process): SagaDatabase {
    const { sagas } = this.#db
    const watched = (name: 'save' | 'claim') => {
      const call = sagas[name].bind(sagas) as (...args: unknown[]) => Promise<unknown>
      return async (...args: unknown[]) => {
        // In a transaction its commit is the write.
        if (name === 'save' && args[0] !== undefined) return call(...args)
        await process.reach(`before ${name}`)
        const result = await call(...args)
        await process.reach(`after ${name}`)
        return result
      }
    }
    const passed = (name: 'load' | 'extend') => {
      const call = sagas[name].bind(sagas) as (...args: unknown[]) => Promise<unknown>
      return async (...args: unknown[]) => {
        if (process.dead) await new Promise(() => {})
        return call(...args)
      }
    }
    const rest = {
      name: sagas.name,
      insert: sagas.insert.bind(sagas),
      ended: sagas.ended.bind(sagas),
      nextDue: sagas.nextDue.bind(sagas),
      overdue: async () => [],
      list: sagas.list.bind(sagas),
    }
    return {
      sagas: {
        ...rest,
        save: watched('save'),
        claim: watched('claim'),
        load: passed('load'),
        extend: passed('extend'),
      },
      outbox: { enqueue: this.#db.outbox.enqueue },
      inbox: this.#db.inbox,
      withTransaction: (fn: (tx: never) => Promise<unknown>) => this.#transaction(process, fn),
    } as unknown as SagaDatabase
  }

  /** A transaction of a process that dies is rolled back by its server. */
  async #transaction(process: Process, fn: (tx: never) => Promise<unknown>): Promise<unknown> {
    await process.reach('before transaction')
    const died = new Error('the process died in its transaction')
    const value = await this.#db
      .withTransaction(async (tx) => {
        const result = await fn(tx as never)
        const reached = process.reach('before commit')
        // Not a deadline: a process that dies here never goes on, and the clock says when it would have.
        await Promise.race([reached, this.#clock.settle()])
        if (process.dead) throw died
        return result
      })
      .catch((error) => {
        if (error !== died) throw error
        return new Promise(() => {})
      })
    await process.reach('after commit')
    return value
  }

  #disturbed(step: StepDefinition, process: Process): StepDefinition {
    const watched =
      (what: string, fn: StepDefinition['run']): StepDefinition['run'] =>
      async (c, tx) => {
        // In a transaction, its commit is the place.
        if (tx === undefined) await process.reach(`before ${what} ${step.name}`)
        const value = await fn(c, tx)
        if (tx === undefined) await process.reach(`after ${what} ${step.name}`)
        return value
      }
    // A request only makes messages: what happens to those is the network's.
    if (step.kind === 'request') return step
    return {
      ...step,
      run: watched('run', (c, tx) => this.#run(step, c, tx)),
      undoing: step.undoing === undefined ? undefined : watched('undo', step.undoing),
      checking: step.checking === undefined ? undefined : watched('check', step.checking),
    }
  }

  async #run(step: StepDefinition, c: { readonly signal: AbortSignal }, tx: unknown): Promise<unknown> {
    const { refuses, step: disturbed, does } = this.#fault
    if (step.name === refuses) throw new Reject(`${step.name} is refused`)
    const calls = (this.#calls.get(step.name) ?? 0) + 1
    this.#calls.set(step.name, calls)
    if (step.name !== disturbed || calls > 1) return step.run(c, tx)
    switch (does) {
      case 'fail':
        await step.run(c, tx)
        throw new Error('the answer was lost')
      case 'permanent':
        await step.run(c, tx)
        throw Object.assign(new Error('duplicate key'), { code: '23505', severity: 'ERROR' })
      case 'twice':
        if (tx === undefined) await step.run(c, tx)
        return step.run(c, tx)
      case 'late':
      case 'later':
        this.#clock
          .sleep(step.timeout + LATE[does])
          .then(() => step.run({ ...c, signal: new AbortController().signal }))
          .catch(() => {})
    }
    return new Promise((_, reject) => {
      onAbort(c.signal, () => reject(c.signal.reason))
    })
  }
}
