import { nameUuid, WaybillError } from '../core/index.ts'
import {
  type Action,
  AT_END,
  type Command,
  type Failure,
  find,
  isOver,
  type Plan,
  planOf,
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
const LOST = 'its runner stopped without a word'

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
    case 'takenOver':
      return onTakeover(plan, state, true)
    case 'interrupted':
      return onTakeover(plan, state, false)
    case 'undone':
      return onUndone(plan, state, command.step)
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
  if (step === undefined || step.executed || state.status === 'completed') return []
  const done: SagaEvent = { type: 'Done', step: name, output }
  if (state.held !== undefined) return [done]
  if (!isOver(state)) return then(plan, state, [done])
  if (hasPassed(plan, state)) return []
  // It was given up, and undone or not: its work has happened after all.
  return then(plan, state, [done, { type: 'Turned', reason: `${name} succeeded late` }])
}

function onRefusal(plan: Plan, state: SagaState, name: string, error: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined || step.executed || isOver(state) || !isOpen(step)) return []
  const refused: SagaEvent = { type: 'Refused', step: name, error }
  if (state.held !== undefined) return [refused]
  return then(plan, state, [refused])
}

function onUnknown(plan: Plan, state: SagaState, { step: name, error, spent, after, permanent }: Failure) {
  const step = find(state, name)
  if (step === undefined || isOver(state) || !isOpen(step)) return []
  const planned = planOf(plan, name)
  // What a transaction has not committed has not happened: nothing of it is unknown, or to be undone.
  const known = planned.kind === 'transaction'
  const tried: SagaEvent = { type: 'Tried', step: name, error, spent, known }
  if (state.held !== undefined) return [tried]
  if (state.status === 'compensating') return then(plan, state, [tried])
  const over = permanent || step.spent + spent >= planned.budget
  if (known && over) return onRefusal(plan, state, name, error)
  if (over) return then(plan, state, [tried, ...giveUp(planned, error)])
  if (known || planned.check) return [tried, { type: 'Waiting', after }] as const
  return byPolicy(plan, state, [tried], planned, error) ?? ([tried, { type: 'Waiting', after }] as const)
}

/** The check has not found it. */
function onAbsent(plan: Plan, state: SagaState, name: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step === undefined || isOver(state) || state.held !== undefined || step.status !== 'unknown') return []
  if (state.status === 'compensating') return follow(plan, state)
  const reason = step.error ?? 'it was not found'
  return byPolicy(plan, state, [], planOf(plan, name), reason) ?? [{ type: 'Absent', step: name }]
}

/** `taken`: another had it. Otherwise this runner gives it back in the middle of a step. */
function onTakeover(plan: Plan, state: SagaState, taken: boolean): readonly SagaEvent[] {
  const step = state.steps.at(-1)
  if (isOver(state) || step?.status !== 'pending') return []
  const planned = planOf(plan, step.name)
  if (planned.kind !== 'step') return []
  const lost: SagaEvent = { type: 'TakenOver', step: step.name, error: LOST }
  if (!taken || state.held !== undefined || state.status === 'compensating' || planned.check) return [lost]
  return byPolicy(plan, state, [lost], planned, LOST) ?? [lost]
}

/** What the policy says at once; `undefined`: it is tried again. */
function byPolicy(plan: Plan, state: SagaState, events: readonly SagaEvent[], planned: StepPlan, error: string) {
  if (planned.unknown === 'undo') return then(plan, state, [...events, ...giveUp(planned, error)])
  if (planned.unknown === 'hold') return [...events, held(planned.name, `is unknown: ${error}`)]
  return undefined
}

function giveUp(planned: StepPlan, error: string): readonly SagaEvent[] {
  if (planned.final) return [held(planned.name, `gave up behind the point of no return: ${error}`)]
  return [{ type: 'Turned', reason: `${planned.name}: ${error}` }]
}

function onUndone(plan: Plan, state: SagaState, name: string): readonly SagaEvent[] {
  const step = find(state, name)
  if (step?.status !== 'compensating' && step?.status !== 'compensation_failed') return []
  const undone: SagaEvent = { type: 'Undone', step: name }
  if (state.held !== undefined) return [undone]
  if (state.status === 'compensating') return then(plan, state, [undone])
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
  return then(plan, state, [tried, { type: 'UndoGaveUp', step: name, error }])
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
  const step = current(state)
  // Refused behind the point of no return: there is no way but forward.
  const again = state.status === 'running' && step?.status === 'failed' && planOf(plan, step.name).final
  return [{ type: 'Resumed' }, ...(again ? [{ type: 'Again' as const, step: step.name }] : [])]
}

function onCompensate(plan: Plan, state: SagaState, reason: string): readonly SagaEvent[] {
  if (state.status === 'compensated') return []
  if (state.status === 'failed') return reopen(plan, state, 'compensate')
  if (state.status === 'compensating') return state.held === undefined ? [] : [{ type: 'Resumed' }]
  if (hasPassed(plan, state)) refuse(state, 'compensate', PASSED)
  return [...(state.held === undefined ? [] : [{ type: 'Resumed' as const }]), { type: 'Turned', reason }]
}

function reopen(plan: Plan, state: SagaState, what: string): readonly SagaEvent[] {
  if (hasPassed(plan, state)) refuse(state, what, PASSED)
  return [{ type: 'Reopened' }]
}

const PASSED = 'it has passed the point of no return'

function hasPassed(plan: Plan, { steps }: SagaState): boolean {
  return steps.some(({ name }) => name !== AT_END && planOf(plan, name).final)
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

/** The events, and what follows from the state they lead to. */
function then(plan: Plan, state: SagaState, events: readonly SagaEvent[]): readonly SagaEvent[] {
  const after = events.reduce(evolve, state)
  return after.held === undefined && !isOver(after) ? [...events, ...follow(plan, after)] : events
}

/** What to write next where nothing is open: the intent of the next step or undo, or the end. */
function follow(plan: Plan, state: SagaState): readonly SagaEvent[] {
  if (state.status === 'compensating') return followBack(plan, state)
  const step = current(state)
  if (step === undefined) return first(plan)
  if (step.status === 'failed') {
    const { final } = planOf(plan, step.name)
    const why = step.error ?? 'refused'
    if (final) return [held(step.name, `was refused behind the point of no return: ${why}`)]
    return then(plan, state, [{ type: 'Turned', reason: `${step.name}: ${why}` }])
  }
  if (step.status === 'unknown') return byPolicy(plan, state, [], planOf(plan, step.name), step.error ?? LOST) ?? []
  if (step.status !== 'completed') return []
  const following = plan[plan.findIndex(({ name }) => name === step.name) + 1]
  return following === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(following)
}

function followBack(plan: Plan, state: SagaState): readonly SagaEvent[] {
  const step = toUndo(plan, state)
  if (step !== undefined) return step.status === 'compensating' ? [] : [{ type: 'Undoing', step: step.name }]
  const failed = state.steps.some(({ status }) => status === 'compensation_failed')
  return [{ type: 'Ended', status: failed ? 'failed' : 'compensated' }]
}

function first(plan: Plan): readonly SagaEvent[] {
  const [step] = plan
  return step === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(step)
}

function intent({ name, kind, duration }: StepPlan): readonly SagaEvent[] {
  const intended: SagaEvent = { type: 'Intended', step: name }
  return kind === 'sleep' ? [intended, { type: 'Waiting', after: duration }] : [intended]
}

/** The last one begun whose work may be there. One that is pending and was never tried has not run. */
function toUndo(plan: Plan, state: SagaState): StepState | undefined {
  return state.steps.findLast(({ name, status, attempts }) => {
    if (name === AT_END || !planOf(plan, name).undo) return false
    if (status === 'pending') return attempts > 0 && planOf(plan, name).kind === 'step'
    return status === 'completed' || status === 'unknown' || status === 'compensating'
  })
}

/** What a runner does with a saga that is due and its own. */
export function next(plan: Plan, state: SagaState): Action {
  if (state.held !== undefined || isOver(state)) return { do: 'nothing' }
  if (state.status === 'compensating') {
    const step = toUndo(plan, state)
    return step?.status === 'compensating' ? { do: 'undo', step, plan: planOf(plan, step.name) } : { do: 'proceed' }
  }
  const step = current(state)
  if (step === undefined || !isOpen(step)) return { do: 'proceed' }
  const planned = planOf(plan, step.name)
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
      return { ...state, steps: [...state.steps, newStep(state, event.step)] }
    case 'Absent':
      return change(state, event.step, { status: 'pending' })
    case 'Again':
      return change(state, event.step, { status: 'pending', spent: 0, error: undefined })
    case 'Done':
      return change(state, event.step, { status: 'completed', executed: true, output: event.output, error: undefined })
    case 'Refused':
      return change(state, event.step, { status: 'failed', error: event.error })
    case 'TakenOver':
      return change(state, event.step, { status: 'unknown', ...triedAgain(state, { ...event, spent: 0 }) })
    case 'Tried': {
      const status = event.known ? 'pending' : 'unknown'
      const there = find(state, event.step) === undefined ? evolve(state, { ...event, type: 'Intended' }) : state
      return change(there, event.step, { status, ...triedAgain(there, event) })
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
    case 'Held':
      return { ...state, held: event.reason }
    case 'Resumed':
      return { ...state, held: undefined, steps: state.steps.map((step) => (isSettled(step) ? step : rested(step))) }
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

function newStep({ id }: SagaState, name: string): StepState {
  const key = nameUuid(5, id, name)
  return {
    name,
    key,
    status: 'pending',
    output: undefined,
    executed: false,
    attempts: 0,
    spent: 0,
    undos: 0,
    error: undefined,
  }
}

function change(state: SagaState, name: string, changes: Partial<StepState>): SagaState {
  return { ...state, steps: state.steps.map((step) => (step.name === name ? { ...step, ...changes } : step)) }
}

function triedAgain(state: SagaState, { step: name, error, spent }: { step: string; error: string; spent: number }) {
  const step = find(state, name)!
  return { attempts: step.attempts + 1, spent: step.spent + spent, error }
}

/** With its whole budget before it. */
function rested(step: StepState): StepState {
  return step.spent === 0 ? step : { ...step, spent: 0 }
}

/** The last step that was begun. */
function current({ steps }: SagaState): StepState | undefined {
  return steps.findLast(({ name }) => name !== AT_END)
}

function isOpen({ status }: StepState): boolean {
  return status === 'pending' || status === 'unknown'
}

function isSettled({ status }: StepState): boolean {
  return status !== 'pending' && status !== 'unknown' && status !== 'compensating'
}

function held(name: string, why: string): SagaEvent {
  return { type: 'Held', reason: `${name} ${why}` }
}

function refuse(state: SagaState, what: string, why = `it is ${state.status}`): never {
  throw new WaybillError('SAGA_REFUSED', `saga ${state.id}: ${what} is refused, because ${why}`)
}
