import { nameUuid } from '../core/index.ts'
import { find, type SagaEvent, type SagaState, type StepState } from './state.ts'

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
    case 'Early': {
      const there = evolve(state, { type: 'Intended', step: event.step })
      return evolve(there, { ...event, type: 'Done' })
    }
    case 'Sent': {
      const { status, sends } = find(state, event.step)!
      return change(state, event.step, { status: status === 'unknown' ? 'pending' : status, sends: sends + 1 })
    }
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
    case 'Noted':
      return { ...state, error: state.error === undefined ? event.reason : `${state.error}; ${event.reason}` }
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

function newStep({ id, type }: SagaState, name: string): StepState {
  const key = nameUuid(5, id, `${type}\0${name}`)
  return {
    name,
    key,
    status: 'pending',
    output: undefined,
    executed: false,
    attempts: 0,
    spent: 0,
    undos: 0,
    sends: 0,
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

function isSettled({ status }: StepState): boolean {
  return status !== 'pending' && status !== 'unknown' && status !== 'compensating'
}
