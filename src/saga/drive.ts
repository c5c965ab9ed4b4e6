import {
  asError,
  type Clock,
  classify,
  errorSummary,
  inSpan,
  Reject,
  untilAborted,
  WaybillError,
  withDeadline,
} from '../core/index.ts'
import type { Breakers } from './breakers.ts'
import type { StepCalls } from './calls.ts'
import { EndFailed, failure, shown } from './failure.ts'
import { stored } from './json.ts'
import { decide, next } from './machine.ts'
import { beforeUndoing, contextOf, deadMessage, enqueue, type Outgoing, outgoing, undoContext } from './outgoing.ts'
import type { SagaDatabase } from './port.ts'
import { AT_END, type Command, find, isOver, type SagaState, type StepAction, undoKey } from './state.ts'
import type { EndContext, StepDefinition } from './step.ts'
import { publishFenced, publishOutcome, publishStep, spanOf } from './telemetry.ts'
import { beforeSending, type Decision, resultsOf, type Work } from './work.ts'

export interface DriveOptions {
  readonly db: SagaDatabase
  readonly clock: Clock
  readonly calls: StepCalls
  readonly breakers: Breakers
  /** The most bytes of a result. */
  readonly most: number
  /** Nothing new is begun any more. */
  readonly stopping: () => boolean
  /** Whether the right to what was claimed is certain at this moment. */
  readonly live: () => boolean
  /** It has ended, or is held. */
  readonly onOutcome: (work: Work) => void
}

/** The fence refused a write inside a transaction, which is rolled back for that. */
const STALE = new WaybillError('SAGA_STALE', 'an operator or another runner has written this saga meanwhile')

/**
 * Drives one saga as far as it goes now:
 *
 * 1. asks the machine what is next, and does it: calls a step, its check or its undo;
 * 2. asks the machine what the outcome means, and writes that in one step;
 * 3. until the saga has ended, waits, is held, or is another's.
 *
 * It holds no truth. What it knows and could not write is kept with the work, and written when the flow calls again.
 */
export async function drive(work: Work, flow: AbortSignal, options: DriveOptions): Promise<void> {
  if (work.doubtful && !(await work.reload())) return publishFenced(work)
  const signal = AbortSignal.any([flow, work.lost.signal])
  while (!work.released && !work.lost.signal.aborted) {
    work.outcome ??= await act(work, signal, options)
    if (work.outcome !== undefined) await write(work, work.outcome, options)
    work.outcome = undefined
  }
  if (work.lost.signal.aborted && !work.released) publishFenced(work)
}

/** Does what is next. `undefined`: it is written already, or the saga was given back. */
async function act(work: Work, signal: AbortSignal, options: DriveOptions): Promise<Command | undefined> {
  const action = next(work.saga.steps, work.state)
  switch (action.do) {
    case 'nothing':
      await work.giveBack(0)
      options.onOutcome(work)
      return undefined
    case 'proceed':
      return { type: 'proceed' }
    case 'wake': {
      const left = sleepsFor(work, action)
      if (left <= 0) return { type: 'succeeded', step: action.step.name, output: undefined }
      await work.giveBack(left)
      return undefined
    }
  }
  if (signal.aborted || options.stopping() || !options.live()) {
    await work.giveBack(0)
    return undefined
  }
  if (action.do === 'expire') return expired(action, options)
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

/** One statement reads the clock more than once. */
const SAME_TIME = 20

/** What is left of a sleep, by the store's clock: whoever holds a saga and retries it does not cut its sleep short. */
function sleepsFor({ record }: Work, { step, plan }: StepAction): number {
  const began = record.steps.find(({ name }) => name === step.name)?.startedAt ?? record.updatedAt
  const left = plan.duration - (record.updatedAt.getTime() - began.getTime())
  return left > SAME_TIME ? left : 0
}

/** Nobody has answered in time. What the outbox knows about that is written down. */
async function expired({ step, plan }: StepAction, { db }: DriveOptions): Promise<Command> {
  const dead = await deadMessage(db, step)
  const error = `no answer within ${plan.duration / 1000} s${dead === undefined ? '' : `; ${dead}`}`
  return { type: 'expired', step: step.name, error }
}

async function call(
  work: Work,
  action: StepAction,
  name: string,
  signal: AbortSignal,
  options: DriveOptions,
): Promise<Command | undefined> {
  const { clock, breakers } = options
  const step = work.saga.steps.find((one) => one.name === action.step.name)!
  const began = clock.monotonic()
  if (action.do === 'run') work.unsure = step.name
  try {
    const command = await inSpan(
      () => spanOf(work, action),
      () => perform(work, action, step, signal, options),
    )
    breakers.answered(name)
    publishStep(work, action, command?.type ?? 'succeeded', clock.monotonic() - began, undefined)
    return command
  } catch (thrown) {
    if (thrown === STALE) {
      await work.reload()
      return undefined
    }
    const error = asError(thrown)
    const command = failure(work, action, step, error, clock.monotonic() - began, name, signal, breakers)
    publishStep(work, action, command.type, clock.monotonic() - began, shown(work, error))
    // A transaction may be committed although its answer was lost: then the fence refuses what follows from this.
    return command
  }
}

async function perform(
  work: Work,
  action: StepAction,
  step: StepDefinition,
  signal: AbortSignal,
  options: DriveOptions,
): Promise<Command | undefined> {
  const { calls, most } = options
  const { key, name } = action.step
  const { timeout } = step
  const context = (signal: AbortSignal) => ({ ...contextOf(work.record, work.state, action.step), signal })
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
  const inContext = (signal: AbortSignal) =>
    undoes ? { ...undoContext(work.record, work.state, action.step), signal } : context(signal)
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
  let leaving = false
  const decision = await options.db.withTransaction(
    (tx) =>
      // One that does not heed its signal must not keep the transaction open.
      untilAborted(decideIn(tx), signal, () => {
        throw signal.reason
      }),
    { signal },
  )
  async function decideIn(tx: unknown): Promise<Decision> {
    const { saga, record, state } = work
    const events = decide(saga.steps, state, await fn(tx))
    const made = await outgoing(saga, record, state, beforeUndoing(saga, events))
    leaving = options.stopping()
    if (!(await work.save(tx, made, leaving))) throw STALE
    await enqueue(options.db, tx, made.messages)
    await end(work, made, tx)
    return made
  }
  advanced(work, decision, leaving, options)
}

async function end({ saga, record }: Work, { events, state }: Decision, tx: unknown): Promise<void> {
  const ended = events.find((event) => event.type === 'Ended')
  if (ended === undefined || saga.ending === undefined) return
  const status = state.status as EndContext<unknown, unknown>['status']
  const reason = status === 'completed' ? undefined : endReason(state)
  try {
    await saga.ending({ id: record.id, input: record.input, status, results: resultsOf(state), reason }, tx)
  } catch (error) {
    throw new EndFailed(error)
  }
}

/** A refusal in its own words: whoever wrote it, and whoever reads it, knows no codes. */
export function endReason({ error }: SagaState): string | undefined {
  return error?.replace(/^[^:]*: Reject \[REJECTED\]: /, '')
}

/** A write in a transaction is committed. */
function advanced(work: Work, { events, state }: Decision, leaving: boolean, options: DriveOptions): void {
  const waits = events.some(({ type }) => type === 'Waiting')
  work.doubtful = false
  work.saved(state, waits || leaving || state.held !== undefined || isOver(state))
  publishOutcome(work, state, options)
}

/** What a command means, and the messages that go with it. */
async function decided(work: Work, command: Command, { db }: DriveOptions): Promise<Outgoing> {
  const { saga, record, state } = work
  const made = await outgoing(saga, record, state, decide(saga.steps, state, command))
  // An undo that waits behind a dead request would never arrive, and the saga would look undone.
  const undoes = made.messages.length === 0 ? undefined : made.events.find(({ type }) => type === 'Undoing')
  const step = undoes === undefined ? undefined : find(state, (undoes as { step: string }).step)
  const dead = step === undefined ? undefined : await deadMessage(db, step)
  if (dead === undefined || made.state.error?.includes(dead)) return made
  const events = [...made.events, { type: 'Noted' as const, reason: dead }]
  return { ...made, events, state: work.after(events) }
}

/** Writes what a command means, or finds that the saga is another's. */
async function write(work: Work, command: Command, options: DriveOptions): Promise<void> {
  for (;;) {
    const decision = await decided(work, command, options)
    const { events } = decision
    if (events.length === 0 && command.type === 'proceed') {
      // It was written, and only the answer was lost; or somebody else has decided meanwhile.
      if (next(work.saga.steps, work.state).do !== 'proceed') return
      throw new WaybillError(
        'SAGA_STUCK',
        `no step follows from the state of saga ${work.id}; if its rows were changed by hand, end it with SagaAdmin.end`,
      )
    }
    // What is only known better is written with what comes next.
    if (events.every(({ type }) => type === 'TakenOver' || type === 'Absent')) {
      work.keep(decision)
      return
    }
    const ends = events.some(({ type }) => type === 'Ended') && work.saga.ending !== undefined
    const joint = ends || decision.messages.length > 0
    if (joint ? await writeEnd(work, decision, options) : await work.save(undefined, decision, options.stopping())) {
      if (!joint) publishOutcome(work, decision.state, options)
      return
    }
    if (!(await work.reload())) return
  }
}

/**
 * A write with its messages, or the last one, with what the business does in it. When that fails, all but the end is
 * written, and it is tried again.
 */
async function writeEnd(work: Work, decision: Outgoing, options: DriveOptions): Promise<boolean> {
  const { clock, db } = options
  const began = clock.monotonic()
  try {
    await db.withTransaction(async (tx) => {
      if (!(await work.save(tx, decision))) throw STALE
      await enqueue(db, tx, decision.messages)
      await withDeadline(end(work, decision, tx), END_TIMEOUT, clock, tooLate)
    })
    advanced(work, decision, false, options)
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

/** As for a step. */
const END_TIMEOUT = 5000

function tooLate(): never {
  throw new EndFailed(new WaybillError('TIMEOUT', `no answer within ${END_TIMEOUT} ms`))
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
  // All that was decided but the end, and what is sent with it.
  const without = beforeSending(events)
  work.keep({ events: without, state: work.after(without) })
  const spent = took + (before === 0 ? 0 : step.backoff(before))
  const tried = {
    step: AT_END,
    error: errorSummary(shown(work, error)),
    spent,
    after: step.backoff(before + 1),
    permanent,
  }
  const failed = work.decide({ type: 'endFailed', ...tried })
  const decision = { events: [...without, ...failed.events], state: failed.state }
  const written = await work.save(undefined, decision)
  if (written) publishOutcome(work, decision.state, options)
  return written
}
