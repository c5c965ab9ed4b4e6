import {
  asError,
  type Clock,
  classify,
  errorSummary,
  Reject,
  RetryLater,
  telemetry,
  Unavailable,
  WaybillError,
} from '../core/index.ts'
import type { Breakers } from './breakers.ts'
import type { Calls } from './calls.ts'
import type { EndContext, StepDefinition } from './definition.ts'
import { stored } from './json.ts'
import { next } from './machine.ts'
import type { SagaDatabase } from './port.ts'
import { type Action, AT_END, type Command, find, isOver, type SagaState, type StepState, undoKey } from './state.ts'
import { type Decision, resultsOf, type Work } from './work.ts'

export interface DriveOptions {
  readonly db: SagaDatabase
  readonly clock: Clock
  readonly calls: Calls
  readonly breakers: Breakers
  /** The most bytes of a result. */
  readonly most: number
  /** Nothing new is begun any more. */
  readonly stopping: () => boolean
  /** Whether the right to what was claimed is certain at this moment. */
  readonly live: () => boolean
  /** It has ended, or is held. */
  readonly told: (work: Work) => void
}

/** The fence refused a write inside a transaction, which is rolled back for that. */
const STALE = new WaybillError('SAGA_STALE', 'somebody else has written this saga meanwhile')

/**
 * Drives one saga as far as it goes now:
 *
 * 1. asks the machine what is next, and does it: calls a step, its check or its undo;
 * 2. asks the machine what the outcome means, and writes that in one step;
 * 3. until the saga has ended, waits, is held, or is another's.
 *
 * It holds no truth. What it knows and could not write is kept with the work, and written when the flow calls again.
 */
export async function drive(work: Work, signal: AbortSignal, options: DriveOptions): Promise<void> {
  if (work.doubtful && !(await work.reload())) return tellFenced(work)
  while (!work.released && !work.lost.signal.aborted) {
    work.outcome ??= await act(work, signal, options)
    if (work.outcome !== undefined) await write(work, work.outcome, options)
    work.outcome = undefined
  }
  if (work.lost.signal.aborted) tellFenced(work)
}

/** Does what is next. `undefined`: it is written already, or the saga was given back. */
async function act(work: Work, signal: AbortSignal, options: DriveOptions): Promise<Command | undefined> {
  const action = next(work.saga.steps, work.state)
  switch (action.do) {
    case 'nothing':
      await work.giveBack(0)
      options.told(work)
      return undefined
    case 'proceed':
      return { type: 'proceed' }
    case 'wake':
      return { type: 'succeeded', step: action.step.name, output: undefined }
  }
  if (signal.aborted || options.stopping() || !options.live()) {
    await work.giveBack(0)
    return undefined
  }
  const name = `${work.message.type}.${action.step.name}${action.do === 'undo' ? ' undo' : ''}`
  const wait = options.breakers.enter(name)
  if (wait > 0) {
    await work.giveBack(wait)
    return undefined
  }
  try {
    return await call(work, action, name, signal, options)
  } finally {
    options.breakers.left(name)
  }
}

type Call = Extract<Action, { step: StepState }>

async function call(
  work: Work,
  action: Call,
  name: string,
  flow: AbortSignal,
  options: DriveOptions,
): Promise<Command | undefined> {
  const { clock, breakers } = options
  const signal = AbortSignal.any([flow, work.lost.signal])
  const step = work.saga.steps.find((one) => one.name === action.step.name)!
  const began = clock.monotonic()
  work.calling = true
  try {
    const command = await perform(work, action, step, signal, options)
    breakers.answered(name)
    tellStep(work, action, command?.type ?? 'succeeded', clock.monotonic() - began, undefined)
    return command
  } catch (thrown) {
    if (thrown === STALE) {
      await work.reload()
      return undefined
    }
    const error = asError(thrown)
    const command = failure(work, action, step, error, clock.monotonic() - began, name, signal, breakers)
    tellStep(work, action, command.type, clock.monotonic() - began, error)
    // A transaction may be committed although its answer was lost: then the fence refuses what follows from this.
    return command
  } finally {
    work.calling = false
  }
}

async function perform(
  work: Work,
  action: Call,
  step: StepDefinition,
  signal: AbortSignal,
  options: DriveOptions,
): Promise<Command | undefined> {
  const { calls, most } = options
  const { key, name } = action.step
  const { timeout } = step
  const context = (inner: AbortSignal) => contextOf(work, action.step, inner)
  const result = (value: unknown) => stored(value, `the result of ${name}`, most).value
  if (action.do === 'check') {
    const found = await calls.call(`${key} check`, timeout, signal, (inner) => step.checking!(context(inner)))
    return found === undefined
      ? { type: 'absent', step: name }
      : { type: 'succeeded', step: name, output: result(found) }
  }
  if (action.do === 'run' && step.kind === 'step') {
    const value = await calls.call(key, timeout, signal, (inner) => step.run(context(inner)))
    return { type: 'succeeded', step: name, output: result(value) }
  }
  // Its run may still be going on here, and do its work after all.
  if (action.do === 'undo') await calls.ended(key, timeout, signal)
  const undoes = action.do === 'undo'
  const fn = undoes ? step.undoing! : step.run
  const inContext = (inner: AbortSignal) => (undoes ? undoContext(work, action.step, inner) : context(inner))
  const callKey = undoes ? undoKey(action.step) : key
  if (step.kind !== 'transaction') {
    await calls.call(callKey, timeout, signal, (inner) => fn(inContext(inner)))
    return { type: 'undone', step: name }
  }
  // Effect and result are one commit.
  await calls.call(callKey, timeout, signal, (inner) =>
    inTransaction(work, options, inner, async (tx) => {
      const value = await fn(inContext(inner), tx)
      return undoes ? { type: 'undone', step: name } : { type: 'succeeded', step: name, output: result(value) }
    }),
  )
  return undefined
}

/** Runs `fn` and writes what it says, with the end of the saga if that is one, in one transaction. */
async function inTransaction(
  work: Work,
  options: DriveOptions,
  signal: AbortSignal,
  fn: (tx: unknown) => Promise<Command>,
): Promise<void> {
  const decision = await options.db.withTransaction(
    async (tx) => {
      const made = work.decide(await fn(tx))
      if (!(await work.save(tx, made, options.stopping()))) throw STALE
      await end(work, made, tx)
      return made
    },
    { signal },
  )
  advanced(work, decision, options)
}

async function end({ saga, record }: Work, { events, state }: Decision, tx: unknown): Promise<void> {
  const ended = events.find((event) => event.type === 'Ended')
  if (ended === undefined || saga.ending === undefined) return
  const status = state.status as EndContext<unknown, unknown>['status']
  await saga.ending({ id: record.id, input: record.input, status, results: resultsOf(state) }, tx)
}

/** A write in a transaction is committed. */
function advanced(work: Work, { events, state }: Decision, options: DriveOptions): void {
  const waits = events.some(({ type }) => type === 'Waiting')
  work.doubtful = false
  work.saved(state, waits || options.stopping() || state.held !== undefined || isOver(state))
  tell(work, state, options)
}

/** Writes what a command means, or finds that the saga is another's. */
async function write(work: Work, command: Command, options: DriveOptions): Promise<void> {
  for (;;) {
    const decision = work.decide(command)
    const { events } = decision
    if (events.length === 0 && command.type === 'proceed') {
      throw new WaybillError('SAGA_STUCK', `nothing follows from the state of saga ${work.id}`)
    }
    // What is only known better is written with what comes next.
    if (events.every(({ type }) => type === 'TakenOver' || type === 'Absent')) {
      work.keep(decision)
      return
    }
    const ends = events.some(({ type }) => type === 'Ended') && work.saga.ending !== undefined
    if (ends ? await writeEnd(work, decision, options) : await work.save(undefined, decision, options.stopping())) {
      if (!ends) tell(work, decision.state, options)
      return
    }
    if (!(await work.reload())) return
  }
}

/** The last write, with what the business does in it. When that fails, all but the end is written, and it is tried again. */
async function writeEnd(work: Work, decision: Decision, options: DriveOptions): Promise<boolean> {
  const { clock, db } = options
  const began = clock.monotonic()
  try {
    await db.withTransaction(async (tx) => {
      if (!(await work.save(tx, decision))) throw STALE
      await end(work, decision, tx).catch((error) => {
        throw new EndFailed(error)
      })
    })
    advanced(work, decision, options)
    return true
  } catch (thrown) {
    if (thrown === STALE) return false
    // The commit may have failed, or only its answer.
    work.doubtful = true
    if (!(thrown instanceof EndFailed) || classify(thrown.cause) === 'down') throw thrown
    if (!(await work.reload())) return true
    return retryEnd(work, decision, asError(thrown.cause), clock.monotonic() - began, options)
  }
}

class EndFailed extends WaybillError {
  constructor(cause: unknown) {
    super('END_FAILED', 'onEnd failed', { cause })
  }
}

async function retryEnd(
  work: Work,
  { events }: Decision,
  error: Error,
  took: number,
  options: DriveOptions,
): Promise<boolean> {
  const before = find(work.state, AT_END)?.attempts ?? 0
  const step = work.saga.steps.at(-1)!
  const permanent = error instanceof Reject || classify(error) === 'permanent'
  // All that was decided but the end.
  const without = events.filter(({ type }) => type !== 'Ended')
  work.keep({ events: without, state: work.after(without) })
  const spent = took + (before === 0 ? 0 : step.backoff(before))
  const tried = { step: AT_END, error: errorSummary(error), spent, after: step.backoff(before + 1), permanent }
  const failed = work.decide({ type: 'endFailed', ...tried })
  const decision = { events: [...without, ...failed.events], state: failed.state }
  const written = await work.save(undefined, decision)
  if (written) tell(work, decision.state, options)
  return written
}

/** What an error of a step means. */
function failure(
  work: Work,
  action: Call,
  step: StepDefinition,
  error: Error,
  took: number,
  name: string,
  signal: AbortSignal,
  breakers: Breakers,
): Command {
  if (signal.aborted) return { type: 'interrupted' }
  const text = errorSummary(error)
  const undoes = action.do === 'undo'
  const kind = classify(error)
  const refused = error instanceof Reject
  const unstorable = error instanceof WaybillError && (error.code === 'NOT_SERIALISABLE' || error.code === 'TOO_LARGE')
  if (refused || unstorable || kind === 'permanent') breakers.answered(name)
  if (refused && action.do === 'run') {
    work.refusal = error
    return { type: 'refused', step: step.name, error: text }
  }
  const permanent = kind === 'permanent' || unstorable
  const { attempts } = action.step
  const after = error instanceof RetryLater ? error.delay : step.backoff(attempts + 1)
  const counts = permanent || breakers.failed(name, work.id, kind === 'down', error)
  const spent = counts ? took + (attempts === 0 ? 0 : step.backoff(attempts)) : 0
  // A check that is refused is asked again, like one that throws anything else.
  const type = undoes ? 'undoFailed' : 'unknown'
  return { type, step: step.name, error: text, spent, after, permanent: permanent && action.do !== 'check' }
}

function contextOf(work: Work, step: StepState, signal: AbortSignal) {
  const { id, input, traceparent } = work.record
  const { key, attempts } = step
  // Each call gets its own: what a step changes in them is nobody else's.
  const results = structuredClone(resultsOf(work.state))
  return { id, input: structuredClone(input), results, key, attempt: attempts, signal, traceparent }
}

function undoContext(work: Work, step: StepState, signal: AbortSignal) {
  return { ...contextOf(work, step, signal), undoKey: undoKey(step), output: structuredClone(step.output) }
}

function tell(work: Work, state: SagaState, { told, clock }: DriveOptions): void {
  const { id, type, tenant, traceparent, createdAt } = work.record
  const about = { type, id, tenant, traceparent }
  if (state.held !== undefined) {
    telemetry['saga.held'].publish({ ...about, reason: state.held })
    told(work)
  } else if (isOver(state)) {
    const took = Math.max(0, clock.now() - createdAt.getTime())
    telemetry['saga.ended'].publish({ ...about, status: state.status, took })
    told(work)
  }
}

function tellStep(work: Work, action: Call, result: string, took: number, error: unknown): void {
  if (!telemetry['saga.step'].active) return
  const { id, type, tenant, traceparent } = work.record
  const { name: step, attempts } = action.step
  const about = { type, id, tenant, traceparent, step, call: action.do as 'run' | 'check' | 'undo' }
  telemetry['saga.step'].publish({ ...about, result, took, attempt: attempts + 1, error })
}

function tellFenced({ id, message }: Work): void {
  telemetry['saga.fenced'].publish({ type: message.type, id })
}

/**
 * What a flow makes of an error here: a store that is away is nobody's fault, and anything else is tried again later. What
 * the store will never take is held for a person, without the outcome that it refused.
 */
export async function driveError(work: Work, error: unknown): Promise<Error> {
  if (classify(error) === 'down') {
    return error instanceof Unavailable ? error : new Unavailable('the store of sagas is away', { cause: error })
  }
  const summary = errorSummary(error)
  const refused = classify(error) === 'permanent' || (error instanceof WaybillError && error.code.startsWith('SAGA_'))
  if (refused && (await hold(work, summary))) return new RetryLater(0, 'it is held', { charged: false })
  return new RetryLater(refused ? '60s' : '1s', `the saga could not be written: ${summary}`, {
    cause: error,
    charged: false,
  })
}

async function hold(work: Work, summary: string): Promise<boolean> {
  try {
    if (!(await work.reload())) return true
    work.outcome = undefined
    return await work.save(undefined, work.decide({ type: 'hold', reason: `it could not be written: ${summary}` }))
  } catch {
    return false
  }
}
