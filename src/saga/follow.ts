import { evolve } from './evolve.ts'
import {
  current,
  find,
  isOver,
  type Plan,
  planOf,
  type SagaEvent,
  type SagaState,
  type StepPlan,
  type StepState,
  toUndo,
} from './state.ts'

/** What is written next, once it is known what has happened: an intent, an undo, a message, a hold or the end. */

export const LOST = 'its runner stopped without a word'

/** The events, and what follows from the state they lead to. */
export function followed(plan: Plan, state: SagaState, events: readonly SagaEvent[]): readonly SagaEvent[] {
  const after = events.reduce(evolve, state)
  return after.held === undefined && !isOver(after) ? [...events, ...follow(plan, after)] : events
}

/** What to write next where nothing is open: the intent of the next step or undo, or the end. */
export function follow(plan: Plan, state: SagaState): readonly SagaEvent[] {
  if (state.status === 'compensating') return followBack(plan, state)
  const step = current(plan, state)
  if (step === undefined) return first(plan)
  if (step.status === 'failed') {
    const { final } = planOf(plan, step.name)
    const why = step.error ?? 'refused'
    if (final) return [held(step.name, `was refused behind the point of no return: ${why}`)]
    return followed(plan, state, [{ type: 'Turned', reason: `${step.name}: ${why}` }])
  }
  const planned = planOf(plan, step.name)
  const unsent = planned.kind === 'request' && planned.sends && step.sends === 0
  if (step.status === 'pending' && unsent) return sending(planned)
  if (step.status === 'unknown' && planned.kind === 'request') return again(plan, state, step, [], step.error ?? LOST)
  if (step.status === 'unknown') return byPolicy(plan, state, [], planned, step.error ?? LOST) ?? []
  if (step.status !== 'completed') return []
  const following = plan[plan.findIndex(({ name }) => name === step.name) + 1]
  return following === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(following)
}

function followBack(plan: Plan, state: SagaState): readonly SagaEvent[] {
  const step = toUndo(plan, state)
  if (step?.status === 'compensating') return []
  if (step !== undefined) {
    const planned = planOf(plan, step.name)
    const begins: SagaEvent = { type: 'Undoing', step: step.name }
    return planned.kind === 'request' ? followed(plan, state, [begins, ...undoing(planned)]) : [begins]
  }
  const failed = state.steps.some(({ status }) => status === 'compensation_failed')
  return [{ type: 'Ended', status: failed ? 'failed' : 'compensated' }]
}

export function first(plan: Plan): readonly SagaEvent[] {
  const [step] = plan
  return step === undefined ? [{ type: 'Ended', status: 'completed' }] : intent(step)
}

function intent(planned: StepPlan): readonly SagaEvent[] {
  const { name, kind, duration } = planned
  const intended: SagaEvent = { type: 'Intended', step: name }
  if (kind === 'request') return [intended, ...sending(planned)]
  return kind === 'sleep' ? [intended, { type: 'Waiting', after: duration }] : [intended]
}

/** What follows when a request was sent in vain: as its policy says, or it is sent again. */
export function again(plan: Plan, state: SagaState, step: StepState, events: readonly SagaEvent[], error: string) {
  const planned = planOf(plan, step.name)
  const policy = byPolicy(plan, state, [], planned, error)
  if (policy !== undefined) return [...events, ...policy]
  const over = find(state, step.name)!.spent >= planned.budget
  return [...events, ...(over ? followed(plan, state, giveUp(planned, error)) : sending(planned))]
}

/** The message goes with this write; then its reply has time. */
export function sending({ name, sends, duration }: StepPlan): readonly SagaEvent[] {
  return [...(sends ? [{ type: 'Sent' as const, step: name }] : []), { type: 'Waiting', after: duration }]
}

/** The undo of a request: over when it is sent, or when that is confirmed. */
export function undoing({ name, confirmed, duration }: StepPlan): readonly SagaEvent[] {
  const sent: SagaEvent = { type: 'Sent', step: name }
  return [sent, confirmed ? { type: 'Waiting', after: duration } : { type: 'Undone', step: name }]
}

/** What the policy says at once; `undefined`: it is tried again. */
export function byPolicy(plan: Plan, state: SagaState, events: readonly SagaEvent[], planned: StepPlan, error: string) {
  if (planned.unknown === 'undo') return followed(plan, state, [...events, ...giveUp(planned, error)])
  if (planned.unknown === 'hold') return [...events, held(planned.name, `is unknown: ${error}`)]
  return undefined
}

export function giveUp(planned: StepPlan, error: string): readonly SagaEvent[] {
  if (planned.final) return [held(planned.name, `gave up behind the point of no return: ${error}`)]
  return [{ type: 'Turned', reason: `${planned.name}: ${error}` }]
}

export function held(name: string, why: string): SagaEvent {
  return { type: 'Held', reason: `${name} ${why}` }
}
