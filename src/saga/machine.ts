import { WaybillError } from '../core/index.ts'
import { evolve } from './evolve.ts'
import { again, byPolicy, first, follow, followed, giveUp, held, LOST, sending, undoing } from './follow.ts'
import {
  type Action,
  AT_END,
  type Command,
  current,
  type Failure,
  find,
  isOpen,
  isOver,
  type Plan,
  planOf,
  reached,
  type SagaEvent,
  type SagaState,
  toUndo,
} from './state.ts'

/**
 * What happens to a saga, as pure functions: no clock, no store, no call of anybody's code.
 *
 *     decide(plan, state, command) → events      evolve(state, event) → state      next(plan, state) → what to do
 *
 *                      last step done
 *         ┌─────────┐ ───────────────▶ ┌───────────┐
 *  begin ▶│ running │                  │ completed │
 *         └────┬────┘                  └─────┬─────┘
 *              │ refused, gave up,           │ compensate, unless it has passed
 *              │ compensate                  │ the point of no return
 *         ┌────▼─────────┐ ◀─────────────────┘
 *         │ compensating │ ──── all undone ────▶ ┌─────────────┐
 *         └────┬───▲─────┘ ◀── a late success ── │ compensated │
 *              │   │                             └─────────────┘
 *  an undo     │   │ retry, compensate,
 *  gave up     ▼   │ a late success
 *           ┌────────┐
 *           │ failed │        `held` is a flag beside running and compensating: it waits for a person, and knows its way.
 *           └────────┘
 *
 *  a step:  pending ──▶ completed ──▶ compensating ──▶ compensated
 *              │  └───▶ failed (refused: there is nothing to undo)     └──▶ compensation_failed
 *              └──────▶ unknown (no clear answer: its policy says what follows; to be undone it counts as done)
 */

/** What a command means for this state, by the table of transitions. Throws SAGA_REFUSED for what a person may not do. */
export function decide(plan: Plan, state: SagaState, command: Command): readonly SagaEvent[] {
  switch (command.type) {
    case 'begin':
      return first(plan)
    case 'proceed':
      return state.held === undefined && !isOver(state) ? follow(plan, state) : []
    case 'succeeded':
      return onSuccess(plan, state, command.step, command.output)
    case 'refused':
      return onRefusal(plan, state, command.step, command.error)
    case 'unknown':
      return onUnknown(plan, state, command)
    case 'absent':
      return onAbsent(plan, state, command.step)
    case 'expired':
      return onExpired(plan, state, command.step, command.error)
    case 'sendFailed':
      return onSendFailed(plan, state, command)
    case 'takenOver':
      return onTakeover(plan, state, true)
    case 'interrupted':
      return onTakeover(plan, state, false)
    case 'undone':
      return onUndone(plan, state, command.step, command.undo)
    case 'undoFailed':
      return onUndoFailed(plan, state, command)
    case 'endFailed':
      return onEndFailed(state, command)
    case 'retry':
      return onRetry(plan, state)
    case 'compensate':
      return onCompensate(plan, state, command.reason)
    case 'resolve':
      return onResolve(plan, state, command)
    case 'hold':
      if (isOver(state)) refuse(state, 'hold')
      return state.held === undefined ? [{ type: 'Held', reason: command.reason }] : []
    case 'end':
      if (state.status === 'completed' || state.status === 'compensated') refuse(state, 'end')
      return [{ type: 'Ended', status: 'failed', reason: command.reason }]
  }
}

function onSuccess(plan: Plan, state: SagaState, name: string, output: unknown): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined) return onEarly(plan, state, name, output)
  if (step.executed || state.status === 'completed') return []
  const done: SagaEvent = { type: 'Done', step: name, output }
  if (state.held !== undefined) return [done]
  if (!isOver(state)) return followed(plan, state, [done])
  if (hasPassed(plan, state)) return []
  // It was given up, and undone or not: its work has happened after all.
  return followed(plan, state, [done, { type: 'Turned', reason: `${name} succeeded late` }])
}

/** Only a message from outside can come before its step: it is kept until then. If that never comes, it is undone too. */
function onEarly(plan: Plan, state: SagaState, name: string, output: unknown): readonly SagaEvent[] {
  const { kind, sends, undo } = planOf(plan, name)
  if (kind !== 'request' || sends || state.status === 'completed') return []
  const early: SagaEvent = { type: 'Early', step: name, output }
  if (state.status === 'running' || state.held !== undefined) return [early]
  if (!isOver(state)) return followed(plan, state, [early])
  if (!undo || hasPassed(plan, state)) return []
  return followed(plan, state, [early, { type: 'Turned', reason: `${name} succeeded late` }])
}

function onRefusal(plan: Plan, state: SagaState, name: string, error: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined || step.executed || isOver(state) || !isOpen(step)) return []
  const refused: SagaEvent = { type: 'Refused', step: name, error }
  if (state.held !== undefined) return [refused]
  return followed(plan, state, [refused])
}

function onUnknown(plan: Plan, state: SagaState, { step: name, error, spent, after, permanent }: Failure) {
  const step = find(state, name)
  if (step === undefined || isOver(state) || !isOpen(step)) return []
  const planned = planOf(plan, name)
  // What a transaction has not committed has not happened: nothing of it is unknown, or to be undone.
  const known = planned.kind === 'transaction'
  const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known }
  if (state.held !== undefined) return [tried]
  if (state.status === 'compensating') return followed(plan, state, [tried])
  const over = permanent || step.spent + spent >= planned.budget
  if (known && over) return onRefusal(plan, state, name, error)
  if (over) return followed(plan, state, [tried, ...giveUp(planned, error)])
  if (known || planned.check) return [tried, { type: 'Waiting', after }] as const
  return byPolicy(plan, state, [tried], planned, error) ?? ([tried, { type: 'Waiting', after }] as const)
}

/** The check has not found it. */
function onAbsent(plan: Plan, state: SagaState, name: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined || isOver(state) || state.held !== undefined || step.status !== 'unknown') return []
  if (state.status === 'compensating') return follow(plan, state)
  const reason = step.error ?? 'it was not found'
  const planned = planOf(plan, name)
  if (planned.kind === 'request') return again(plan, state, step, [], reason)
  return byPolicy(plan, state, [], planned, reason) ?? [{ type: 'Absent', step: name }]
}

/** No reply in time. The same transition as a refusal, unless the step's policy says otherwise; of an undo, another try. */
function onExpired(plan: Plan, state: SagaState, name: string, error: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined || isOver(state) || state.held !== undefined) return []
  const planned = planOf(plan, name)
  const spent = planned.duration
  if (state.status === 'running') {
    if (!isOpen(step)) return []
    const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known: false }
    return planned.check ? [tried] : again(plan, evolve(state, tried), step, [tried], error)
  }
  if (step.status !== 'compensating') return []
  if (!planned.confirmed) return followed(plan, state, undoing(planned))
  const tried: SagaEvent = { type: 'UndoTried', step: name, error, spent }
  if (step.spent + spent < planned.undoBudget) return [tried, ...undoing(planned)]
  return followed(plan, state, [tried, { type: 'UndoGaveUp', step: name, error }])
}

/** Its message could not be made: nothing was sent. */
function onSendFailed(plan: Plan, state: SagaState, failure: Failure): readonly SagaEvent[] {
  const { step: name, error, spent, after, permanent } = failure
  const step = find(state, name)
  if (step?.status === 'compensating') return onUndoFailed(plan, state, failure)
  if (step === undefined || !isOpen(step)) return []
  const known = step.sends === 0
  const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known }
  if (!permanent && step.spent + spent < planOf(plan, name).budget) return [tried, { type: 'Waiting', after }]
  return known
    ? onRefusal(plan, state, name, error)
    : followed(plan, state, [tried, ...giveUp(planOf(plan, name), error)])
}

/** `taken`: another had it. Otherwise this runner gives it back in the middle of a step. */
function onTakeover(plan: Plan, state: SagaState, taken: boolean): readonly SagaEvent[] {
  const step = current(plan, state)
  if (isOver(state) || step?.status !== 'pending') return []
  const planned = planOf(plan, step.name)
  if (planned.kind !== 'step') return []
  const lost: SagaEvent = { type: 'TakenOver', step: step.name, error: LOST }
  if (!taken || state.held !== undefined || state.status === 'compensating' || planned.check) return [lost]
  return byPolicy(plan, state, [lost], planned, LOST) ?? [lost]
}

function onUndone(plan: Plan, state: SagaState, name: string, undo?: number): readonly SagaEvent[] {
  const step = find(state, name)
  // One that confirms an earlier undo says nothing about the present one.
  if (undo !== undefined && step?.undos !== undo) return []
  if (step?.status !== 'compensating' && step?.status !== 'compensation_failed') return []
  const undone: SagaEvent = { type: 'Undone', step: name }
  if (state.held !== undefined) return [undone]
  if (state.status === 'compensating') return followed(plan, state, [undone])
  const left = state.steps.some((other) => other !== step && other.status === 'compensation_failed')
  return state.status === 'failed' && !left ? [undone, { type: 'Ended', status: 'compensated' }] : [undone]
}

function onUndoFailed(plan: Plan, state: SagaState, { step: name, error, spent, after, permanent }: Failure) {
  const step = find(state, name)
  if (step?.status !== 'compensating') return []
  const tried: SagaEvent = { type: 'UndoTried', step: name, error, spent }
  if (state.held !== undefined) return [tried]
  const over = permanent || step.spent + spent >= planOf(plan, name).undoBudget
  if (!over) return [tried, { type: 'Waiting', after }] as const
  return followed(plan, state, [tried, { type: 'UndoGaveUp', step: name, error }])
}

/** An hour, as for a step. */
const END_BUDGET = 3_600_000

function onEndFailed(state: SagaState, { error, spent, after, permanent }: Failure): readonly SagaEvent[] {
  const before = find(state, AT_END)
  const tried: SagaEvent = { type: 'Tried', step: AT_END, error, spent, known: false }
  const over = permanent || (before?.spent ?? 0) + spent >= END_BUDGET
  return [tried, over ? held(AT_END, `failed: ${error}`) : { type: 'Waiting', after }]
}

function onRetry(plan: Plan, state: SagaState): readonly SagaEvent[] {
  if (state.status === 'completed' || state.status === 'compensated') refuse(state, 'retry')
  if (state.status === 'failed') return reopen(plan, state, 'retry')
  return resume(plan, state)
}

/** It goes on as its status says. A request that waits is sent again. */
function resume(plan: Plan, state: SagaState): readonly SagaEvent[] {
  const resumed: SagaEvent = { type: 'Resumed' }
  if (state.status === 'compensating') return [resumed, ...undoAgain(plan, evolve(state, resumed))]
  const step = current(plan, state)
  if (step === undefined) return [resumed]
  const planned = planOf(plan, step.name)
  // Refused behind the point of no return: there is no way but forward.
  const refused = step.status === 'failed' && planned.final
  const events: SagaEvent[] = refused ? [resumed, { type: 'Again', step: step.name }] : [resumed]
  return planned.kind === 'request' && (refused || isOpen(step)) ? [...events, ...sending(planned)] : events
}

function undoAgain(plan: Plan, state: SagaState): readonly SagaEvent[] {
  const step = toUndo(plan, state)
  if (step?.status !== 'compensating') return []
  const planned = planOf(plan, step.name)
  return planned.kind === 'request' ? followed(plan, state, undoing(planned)) : []
}

function onCompensate(plan: Plan, state: SagaState, reason: string): readonly SagaEvent[] {
  if (state.status === 'compensated') return []
  if (state.status === 'failed') return reopen(plan, state, 'compensate')
  if (state.status === 'compensating') return state.held === undefined ? [] : resume(plan, state)
  if (hasPassed(plan, state)) refuse(state, 'compensate', PASSED)
  return [...(state.held === undefined ? [] : [{ type: 'Resumed' as const }]), { type: 'Turned', reason }]
}

function reopen(plan: Plan, state: SagaState, what: string): readonly SagaEvent[] {
  if (hasPassed(plan, state)) refuse(state, what, PASSED)
  const reopened: SagaEvent = { type: 'Reopened' }
  return [reopened, ...undoAgain(plan, evolve(state, reopened))]
}

const PASSED = 'it has passed the point of no return'

function hasPassed(plan: Plan, state: SagaState): boolean {
  return reached(plan, state).some(({ name }) => planOf(plan, name).final)
}

function onResolve(plan: Plan, state: SagaState, command: Extract<Command, { type: 'resolve' }>): readonly SagaEvent[] {
  const { step: name, done, output } = command
  const step = find(state, name)
  if (step === undefined) refuse(state, `resolve ${name}`, 'that step has not begun')
  if (state.status === 'completed' || state.status === 'compensated') refuse(state, 'resolve')
  if (state.status === 'failed') {
    if (step.status !== 'compensation_failed' || done) refuse(state, `resolve ${name}`, 'only its undo is open')
    return onUndone(plan, state, name)
  }
  if (done) return onSuccess(plan, state, name, output)
  if (isOpen(step)) return onRefusal(plan, state, name, 'resolved as not done')
  // What is being undone, or would be: its work is not there any more.
  if (step.status === 'compensating') return onUndone(plan, state, name)
  return refuse(state, `resolve ${name}`, `it is ${step.status}`)
}

/** What a runner does with a saga that is due and its own. */
export function next(plan: Plan, state: SagaState): Action {
  if (state.held !== undefined || isOver(state)) return { do: 'nothing' }
  if (state.status === 'compensating') {
    const step = toUndo(plan, state)
    if (step?.status !== 'compensating') return { do: 'proceed' }
    const planned = planOf(plan, step.name)
    return { do: planned.kind === 'request' ? 'expire' : 'undo', step, plan: planned }
  }
  const step = current(plan, state)
  if (step === undefined || !isOpen(step)) return { do: 'proceed' }
  const planned = planOf(plan, step.name)
  if (planned.kind === 'request') {
    if (step.status === 'unknown') return planned.check ? { do: 'check', step, plan: planned } : { do: 'proceed' }
    // A runner has it only when it is due: nobody answered.
    return step.sends === 0 && planned.sends ? { do: 'proceed' } : { do: 'expire', step, plan: planned }
  }
  if (planned.kind === 'sleep') return { do: 'wake', step, plan: planned }
  if (step.status === 'unknown' && planned.unknown !== 'retry') {
    // Without a check it was given back in the middle: its policy has not been heard yet.
    return planned.check ? { do: 'check', step, plan: planned } : { do: 'proceed' }
  }
  return { do: 'run', step, plan: planned }
}

function refuse(state: SagaState, what: string, why = `it is ${state.status}`): never {
  throw new WaybillError('SAGA_REFUSED', `saga ${state.id}: ${what} is refused, because ${why}`)
}
