import { nameUuid, WaybillError } from '../core/index.ts'
import {
  type Action,
  AT_END,
  type Command,
  type Failure,
  find,
  isOver,
  type Plan,
  type SagaEvent,
  type SagaState,
  type StepPlan,
  type StepState,
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

type Events = readonly SagaEvent[]

/** What a command means for this state, by the table of transitions. Throws SAGA_REFUSED for what a person may not do. */
export function decide(plan: Plan, state: SagaState, command: Command): Events {
  switch (command.type) {
    case 'begin':
      return first(plan)
    case 'proceed':
      return followed(plan, state, [])
    case 'succeeded':
      return onSuccess(plan, state, command.step, command.output)
    case 'refused':
      return onRefusal(plan, state, command.step, command.error)
    case 'unknown':
    case 'sendFailed':
    case 'undoFailed':
      return onFailure(plan, state, command)
    case 'absent':
      return onAbsent(plan, state, command.step)
    case 'expired':
      return onExpired(plan, state, command.step, command.error)
    case 'takenOver':
    case 'interrupted':
      return onLost(plan, state, command.type)
    case 'undone':
      return onUndone(plan, state, command.step, command.undo)
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

// Answers of a step.

function onSuccess(plan: Plan, state: SagaState, name: string, output: unknown): Events {
  const step = find(state, name)
  if (step?.executed || state.status === 'completed') return []
  if (step === undefined) return onEarly(plan, state, name, output)
  return late(plan, state, { type: 'Done', step: name, output })
}

/** Only a message from outside can come before its step: it is kept until then. If that never comes, it is undone too. */
function onEarly(plan: Plan, state: SagaState, name: string, output: unknown): Events {
  const { kind, sends, undo } = planOf(plan, name)
  if (kind !== 'request' || sends || (isOver(state) && !undo)) return []
  const early: SagaEvent = { type: 'Early', step: name, output }
  return state.status === 'running' ? [early] : late(plan, state, early)
}

/** Of a saga that was given up, and undone or not: the work has happened after all, and is undone. */
function late(plan: Plan, state: SagaState, seen: Extract<SagaEvent, { output: unknown }>): Events {
  if (!isOver(state)) return followed(plan, state, [seen])
  if (hasPassed(plan, state)) return []
  return followed(plan, state, [seen, { type: 'Turned', reason: `${seen.step} succeeded late` }])
}

function onRefusal(plan: Plan, state: SagaState, name: string, error: string): Events {
  if (openStep(state, name) === undefined) return []
  return followed(plan, state, [{ type: 'Refused', step: name, error }])
}

/** A try without an answer, of a step or its undo; or a message that could not be made, so that nothing was sent. */
function onFailure(plan: Plan, state: SagaState, failure: Failure & { readonly type: Command['type'] }): Events {
  const { type, step: name, error, spent, after, permanent } = failure
  const waiting: SagaEvent = { type: 'Waiting', after }
  if (type !== 'unknown' && find(state, name)?.status === 'compensating')
    return onUndoFailed(plan, state, failure, [waiting])
  const step = openStep(state, name)
  if (step === undefined || type === 'undoFailed') return []
  const planned = planOf(plan, name)
  const unsent = type === 'sendFailed'
  // What a transaction has not committed has not happened: nothing of it is unknown, or to be undone.
  const known = unsent ? step.sends === 0 : planned.kind === 'transaction'
  const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known }
  if (state.held !== undefined || state.status === 'compensating') return followed(plan, state, [tried])
  if (permanent || step.spent + spent >= planned.budget) {
    return known ? onRefusal(plan, state, name, error) : followed(plan, state, [tried, ...giveUp(planned, error)])
  }
  const policy = known || unsent || planned.check ? undefined : byPolicy(plan, state, [tried], planned, error)
  return policy ?? [tried, waiting]
}

/** The check has not found it. */
function onAbsent(plan: Plan, state: SagaState, name: string): Events {
  const step = openStep(state, name)
  if (step?.status !== 'unknown' || state.held !== undefined) return []
  if (state.status === 'compensating') return follow(plan, state)
  const reason = step.error ?? 'it was not found'
  const planned = planOf(plan, name)
  if (planned.kind === 'request') return again(plan, state, [], planned, reason)
  return byPolicy(plan, state, [], planned, reason) ?? [{ type: 'Absent', step: name }]
}

/** No reply in time. The same transition as a refusal, unless the step's policy says otherwise; of an undo, another try. */
function onExpired(plan: Plan, state: SagaState, name: string, error: string): Events {
  if (state.held !== undefined) return []
  const planned = planOf(plan, name)
  const spent = planned.duration
  if (state.status === 'running') {
    if (openStep(state, name) === undefined) return []
    const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known: false }
    return planned.check ? [tried] : again(plan, state, [tried], planned, error)
  }
  if (isOver(state) || find(state, name)?.status !== 'compensating') return []
  if (!planned.confirmed) return followed(plan, state, undoing(planned))
  return onUndoFailed(plan, state, { step: name, error, spent, permanent: false }, undoing(planned))
}

/** `takenOver`: another had it. `interrupted`: this runner gives it back in the middle of a step. */
function onLost(plan: Plan, state: SagaState, how: 'takenOver' | 'interrupted'): Events {
  const step = current(plan, state)
  if (isOver(state) || step?.status !== 'pending') return []
  const planned = planOf(plan, step.name)
  if (planned.kind !== 'step') return []
  const error = how === 'interrupted' ? INTERRUPTED : LOST
  const lost: SagaEvent = { type: 'TakenOver', step: step.name, error }
  const later = how === 'interrupted' || state.held !== undefined || state.status === 'compensating' || planned.check
  return (later ? undefined : byPolicy(plan, state, [lost], planned, LOST)) ?? [lost]
}

// Answers of an undo, and of the end.

function onUndone(plan: Plan, state: SagaState, name: string, undo?: number): Events {
  const step = find(state, name)
  // One that confirms an earlier undo says nothing about the present one.
  if (undo !== undefined && step?.undos !== undo) return []
  if (step?.status !== 'compensating' && step?.status !== 'compensation_failed') return []
  const undone: SagaEvent = { type: 'Undone', step: name }
  if (!isOver(state)) return followed(plan, state, [undone])
  const left = state.steps.some((other) => other !== step && other.status === 'compensation_failed')
  return state.status === 'failed' && !left ? [undone, { type: 'Ended', status: 'compensated' }] : [undone]
}

/** `otherwise`: what follows while there is time left. */
function onUndoFailed(plan: Plan, state: SagaState, failure: Omit<Failure, 'after'>, otherwise: Events): Events {
  const { step: name, error, spent, permanent } = failure
  const tried: SagaEvent = { type: 'UndoTried', step: name, error, spent }
  if (state.held !== undefined) return [tried]
  const over = permanent || find(state, name)!.spent + spent >= planOf(plan, name).undoBudget
  return over ? followed(plan, state, [tried, { type: 'UndoGaveUp', step: name, error }]) : [tried, ...otherwise]
}

/** An hour, as for a step. */
const END_BUDGET = 3_600_000

function onEndFailed(state: SagaState, { error, spent, after, permanent }: Failure): Events {
  const before = find(state, AT_END)
  const tried: SagaEvent = { type: 'Tried', step: AT_END, error, spent, known: false }
  const over = permanent || (before?.spent ?? 0) + spent >= END_BUDGET
  return [tried, over ? held(AT_END, `failed: ${error}`) : { type: 'Waiting', after }]
}

// What people do, and the business.

function onRetry(plan: Plan, state: SagaState): Events {
  if (state.status === 'completed' || state.status === 'compensated') refuse(state, 'retry')
  return state.status === 'failed' ? reopen(plan, state, 'retry') : resume(plan, state)
}

function onCompensate(plan: Plan, state: SagaState, reason: string): Events {
  if (state.status === 'compensated') return []
  if (state.status === 'failed') return reopen(plan, state, 'compensate')
  if (state.status === 'compensating') return state.held === undefined ? [] : resume(plan, state)
  if (hasPassed(plan, state)) refuse(state, 'compensate', PASSED)
  return [...(state.held === undefined ? [] : [{ type: 'Resumed' as const }]), { type: 'Turned', reason }]
}

function onResolve(plan: Plan, state: SagaState, command: Extract<Command, { type: 'resolve' }>): Events {
  const { step: name, done, output } = command
  const step = find(state, name)
  if (step === undefined) refuse(state, `resolve ${name}`, notBegun(plan, name))
  if (name === AT_END) refuse(state, `resolve ${name}`, 'it is no step: retry, or end it')
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

function notBegun(plan: Plan, name: string): string {
  const names = plan.map((step) => step.name)
  return names.includes(name) ? 'that step has not begun' : `there is no such step; its steps are ${names.join(', ')}`
}

/** It goes on as its status says. A request that waits is sent again. */
function resume(plan: Plan, state: SagaState): Events {
  const resumed: SagaEvent = { type: 'Resumed' }
  if (state.status === 'compensating') return undoAgain(plan, state, resumed)
  const step = current(plan, state)
  if (step === undefined) return [resumed]
  const planned = planOf(plan, step.name)
  // Refused behind the point of no return: there is no way but forward.
  const refused = step.status === 'failed' && planned.final
  const events: Events = refused ? [resumed, { type: 'Again', step: step.name }] : [resumed]
  return planned.kind === 'request' && (refused || isOpen(step)) ? [...events, ...sending(planned)] : events
}

function reopen(plan: Plan, state: SagaState, what: string): Events {
  if (hasPassed(plan, state)) refuse(state, what, PASSED)
  return undoAgain(plan, state, { type: 'Reopened' })
}

/** A runner undoes steps; the undo of a request is sent again with this write. */
function undoAgain(plan: Plan, state: SagaState, event: SagaEvent): Events {
  const step = toUndo(plan, evolve(state, event))
  const planned = step?.status === 'compensating' ? planOf(plan, step.name) : undefined
  return planned?.kind === 'request' ? followed(plan, state, [event, ...undoing(planned)]) : [event]
}

const PASSED = 'it has passed the point of no return'

function hasPassed(plan: Plan, state: SagaState): boolean {
  return reached(plan, state).some(({ name }) => planOf(plan, name).final)
}

function refuse(state: SagaState, what: string, why = `it is ${state.status}`): never {
  throw new WaybillError('SAGA_REFUSED', `saga ${state.id}: ${what} is refused, because ${why}`)
}

// What is written next, once it is known what has happened: an intent, an undo, a message, a hold or the end.

const LOST = 'its runner stopped without a word'
const INTERRUPTED = 'its runner was stopped before it returned'

/** The events, and what follows from the state they lead to. */
function followed(plan: Plan, state: SagaState, events: Events): Events {
  const after = events.reduce(evolve, state)
  return after.held === undefined && !isOver(after) ? [...events, ...follow(plan, after)] : events
}

/** What to write next where nothing is open: the intent of the next step or undo, or the end. */
function follow(plan: Plan, state: SagaState): Events {
  if (state.status === 'compensating') return followBack(plan, state)
  const step = current(plan, state)
  if (step === undefined) return first(plan)
  const planned = planOf(plan, step.name)
  switch (step.status) {
    case 'pending':
      return planned.kind === 'request' && planned.sends && step.sends === 0 ? sending(planned) : []
    case 'unknown': {
      const error = step.error ?? LOST
      if (planned.kind === 'request') return again(plan, state, [], planned, error)
      return byPolicy(plan, state, [], planned, error) ?? []
    }
    case 'failed': {
      const why = step.error ?? 'refused'
      if (planned.final) return [held(step.name, `was refused behind the point of no return: ${why}`)]
      return followed(plan, state, [{ type: 'Turned', reason: `${step.name}: ${why}` }])
    }
    case 'completed': {
      const following = plan[plan.indexOf(planned) + 1]
      return following === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(following)
    }
    default:
      return []
  }
}

function followBack(plan: Plan, state: SagaState): Events {
  const step = toUndo(plan, state)
  if (step === undefined) {
    const failed = state.steps.some(({ status }) => status === 'compensation_failed')
    return [{ type: 'Ended', status: failed ? 'failed' : 'compensated' }]
  }
  if (step.status === 'compensating') return []
  const planned = planOf(plan, step.name)
  const begins: SagaEvent = { type: 'Undoing', step: step.name }
  return planned.kind === 'request' ? followed(plan, state, [begins, ...undoing(planned)]) : [begins]
}

function first([step]: Plan): Events {
  return step === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(step)
}

function intent(planned: StepPlan): Events {
  const { name, kind, duration } = planned
  const intended: SagaEvent = { type: 'Intended', step: name }
  if (kind === 'request') return [intended, ...sending(planned)]
  return kind === 'sleep' ? [intended, { type: 'Waiting', after: duration }] : [intended]
}

/** The message goes with this write; then its reply has time. */
function sending({ name, sends, duration }: StepPlan): Events {
  return [...(sends ? [{ type: 'Sent' as const, step: name }] : []), { type: 'Waiting', after: duration }]
}

/** The undo of a request: over when it is sent, or when that is confirmed. */
function undoing({ name, confirmed, duration }: StepPlan): Events {
  const sent: SagaEvent = { type: 'Sent', step: name }
  return [sent, confirmed ? { type: 'Waiting', after: duration } : { type: 'Undone', step: name }]
}

/** What follows when a request was sent in vain: as its policy says, or it is sent again. */
function again(plan: Plan, state: SagaState, events: Events, planned: StepPlan, error: string): Events {
  const policy = byPolicy(plan, state, events, planned, error)
  if (policy !== undefined) return policy
  const over = find(events.reduce(evolve, state), planned.name)!.spent >= planned.budget
  return over ? followed(plan, state, [...events, ...giveUp(planned, error)]) : [...events, ...sending(planned)]
}

/** What the policy says at once; `undefined`: it is tried again. */
function byPolicy(plan: Plan, state: SagaState, events: Events, planned: StepPlan, error: string): Events | undefined {
  if (planned.unknown === 'undo') return followed(plan, state, [...events, ...giveUp(planned, error)])
  if (planned.unknown === 'hold') return [...events, held(planned.name, `is unknown: ${error}`)]
  return undefined
}

function giveUp(planned: StepPlan, error: string): Events {
  if (planned.final) return [held(planned.name, `gave up behind the point of no return: ${error}`)]
  return [{ type: 'Turned', reason: `${planned.name}: ${error}` }]
}

function held(name: string, why: string): SagaEvent {
  return { type: 'Held', reason: `${name} ${why}` }
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

/** The state after an event. */
export function evolve(state: SagaState, event: SagaEvent): SagaState {
  switch (event.type) {
    case 'Intended':
      return change(state, event.step, {})
    case 'Done':
    case 'Early':
      return change(state, event.step, { status: 'completed', executed: true, output: event.output, error: undefined })
    case 'Refused':
      return change(state, event.step, { status: 'failed', error: event.error })
    case 'Tried':
      return change(state, event.step, { status: event.known ? 'pending' : 'unknown', ...triedAgain(state, event) })
    case 'TakenOver':
      return change(state, event.step, { status: 'unknown', ...triedAgain(state, { ...event, spent: 0 }) })
    case 'Absent':
      return change(state, event.step, { status: 'pending' })
    case 'Again':
      return change(state, event.step, { status: 'pending', spent: 0, error: undefined })
    case 'Sent': {
      const { status, sends } = find(state, event.step)!
      return change(state, event.step, { status: status === 'unknown' ? 'pending' : status, sends: sends + 1 })
    }
    case 'Undoing': {
      const { undos } = find(state, event.step)!
      return change(state, event.step, { status: 'compensating', undos: undos + 1, attempts: 0, spent: 0 })
    }
    case 'UndoTried':
      return change(state, event.step, triedAgain(state, event))
    case 'Undone':
      return change(state, event.step, { status: 'compensated', error: undefined })
    case 'UndoGaveUp':
      return change(state, event.step, { status: 'compensation_failed', error: event.error })
    case 'Turned':
      return { ...state, status: 'compensating', error: event.reason }
    case 'Noted':
      return { ...state, error: state.error === undefined ? event.reason : `${state.error}; ${event.reason}` }
    case 'Held':
      return { ...state, held: event.reason }
    case 'Resumed': {
      const steps = state.steps.map((step) => (isOpen(step) || step.status === 'compensating' ? rested(step) : step))
      return { ...state, held: undefined, steps }
    }
    case 'Reopened': {
      const steps = state.steps.map((step) =>
        step.status === 'compensation_failed' ? { ...rested(step), status: 'compensating' as const } : step,
      )
      return { ...state, status: 'compensating', held: undefined, steps }
    }
    case 'Ended':
      return { ...state, status: event.status, held: undefined, error: event.reason ?? state.error }
    case 'Waiting':
      return state
  }
}

/** A step that changes; one that was not there begins. */
function change(state: SagaState, name: string, changes: Partial<StepState>): SagaState {
  if (find(state, name) === undefined)
    return { ...state, steps: [...state.steps, { ...newStep(state, name), ...changes }] }
  return { ...state, steps: state.steps.map((step) => (step.name === name ? { ...step, ...changes } : step)) }
}

function newStep({ id, type }: SagaState, name: string): StepState {
  const key = nameUuid(5, id, `${type}\0${name}`)
  const counts = { attempts: 0, spent: 0, undos: 0, sends: 0 }
  return { name, key, status: 'pending', output: undefined, executed: false, ...counts, error: undefined }
}

function triedAgain(state: SagaState, { step: name, error, spent }: Pick<Failure, 'step' | 'error' | 'spent'>) {
  const step = find(state, name)
  return { attempts: (step?.attempts ?? 0) + 1, spent: (step?.spent ?? 0) + spent, error }
}

/** With its whole budget before it. */
function rested(step: StepState): StepState {
  return step.spent === 0 ? step : { ...step, spent: 0 }
}

// A reading of the state.

function planOf(plan: Plan, name: string): StepPlan {
  const found = plan.find((step) => step.name === name)
  if (found === undefined) throw new WaybillError('SAGA_CHANGED', `the definition has no step ${name}`)
  return found
}

/** Those that were begun in their turn, in order. An early one counts when all before it are done. */
function reached(plan: Plan, state: SagaState): readonly StepState[] {
  const steps: StepState[] = []
  for (const { name } of plan) {
    const step = find(state, name)
    if (step === undefined) break
    steps.push(step)
    if (step.status !== 'completed') break
  }
  return steps
}

/** The last of them: the one that is open, if any is. */
function current(plan: Plan, state: SagaState): StepState | undefined {
  return reached(plan, state).at(-1)
}

function isOpen({ status }: StepState): boolean {
  return status === 'pending' || status === 'unknown'
}

/** The last one begun whose work may be there. One that is pending and was never tried has not run. */
function toUndo(plan: Plan, state: SagaState): StepState | undefined {
  return state.steps.findLast(({ name, status, attempts, sends }) => {
    if (name === AT_END || !planOf(plan, name).undo) return false
    if (status === 'pending') return sends > 0 || (attempts > 0 && planOf(plan, name).kind === 'step')
    return status === 'completed' || status === 'unknown' || status === 'compensating'
  })
}

/** One whose answer is awaited. */
function openStep(state: SagaState, name: string): StepState | undefined {
  const step = find(state, name)
  return step !== undefined && isOpen(step) && !isOver(state) ? step : undefined
}
