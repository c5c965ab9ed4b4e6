import { nameUuid, WaybillError } from '../core/index.ts'

/** How far a saga is. */
export type SagaStatus = 'running' | 'compensating' | 'completed' | 'compensated' | 'failed'

/** How far a step is. */
export type StepStatus =
  | 'pending'
  | 'unknown'
  | 'completed'
  | 'failed'
  | 'compensating'
  | 'compensated'
  | 'compensation_failed'

/** What follows when nobody knows whether a step has happened. A step with a check is asked before `undo` and `hold`. */
export type UnknownPolicy = 'check' | 'retry' | 'undo' | 'hold'

/** What the machine knows of a step's definition. */
export interface StepPlan {
  readonly name: string
  readonly kind: 'step' | 'transaction' | 'sleep'
  readonly undo: boolean
  readonly check: boolean
  readonly unknown: UnknownPolicy
  /** Milliseconds of trying, for its run and for its undo. */
  readonly budget: number
  readonly undoBudget: number
  /** Behind the point of no return. */
  readonly final: boolean
  /** Milliseconds of a sleep. */
  readonly duration: number
}

/** The steps of a definition, as the machine needs them. */
export type Plan = readonly StepPlan[]

/** All that the machine knows of a step. */
export interface StepState {
  readonly name: string
  /** `c.key`: the same in run, check and undo, over retries and crashes. */
  readonly key: string
  readonly status: StepStatus
  /** As it came back from JSON. */
  readonly output: unknown
  /** Success was seen. */
  readonly executed: boolean
  /** Tries that failed, and milliseconds they took with the pauses before them; of the run, then of the present undo. */
  readonly attempts: number
  readonly spent: number
  /** How often its undo was begun. Retries of one undo do not count. */
  readonly undos: number
  readonly error: string | undefined
}

/** All that the machine knows of a saga. */
export interface SagaState {
  readonly id: string
  readonly status: SagaStatus
  /** Why it waits for a person. */
  readonly held: string | undefined
  /** Why it is being undone, or has failed. */
  readonly error: string | undefined
  /** Those that were begun, in order. */
  readonly steps: readonly StepState[]
}

/** How a try ended without an answer. `spent`: milliseconds that count; `after`: the pause before the next. */
export interface Failure {
  readonly step: string
  readonly error: string
  readonly spent: number
  readonly after: number
  /** Another try cannot mend it. */
  readonly permanent: boolean
}

/** What may happen to a saga: an answer of a step, a deadline, an action of a person. */
export type Command =
  | { readonly type: 'begin' | 'proceed' | 'takenOver' | 'interrupted' | 'retry' }
  | { readonly type: 'succeeded'; readonly step: string; readonly output: unknown }
  | { readonly type: 'refused'; readonly step: string; readonly error: string }
  | ({ readonly type: 'unknown' | 'undoFailed' | 'endFailed' } & Failure)
  | { readonly type: 'absent' | 'undone'; readonly step: string }
  | { readonly type: 'compensate' | 'hold' | 'end'; readonly reason: string }
  | { readonly type: 'resolve'; readonly step: string; readonly done: boolean; readonly output: unknown }

/** What has happened to a saga. */
export type SagaEvent =
  | { readonly type: 'Intended' | 'Absent' | 'Again' | 'Undoing' | 'Undone'; readonly step: string }
  | { readonly type: 'Done'; readonly step: string; readonly output: unknown }
  | { readonly type: 'Refused' | 'TakenOver' | 'UndoGaveUp'; readonly step: string; readonly error: string }
  | {
      readonly type: 'Tried'
      readonly step: string
      readonly error: string
      readonly spent: number
      readonly known: boolean
    }
  | { readonly type: 'UndoTried'; readonly step: string; readonly error: string; readonly spent: number }
  | { readonly type: 'Turned' | 'Held'; readonly reason: string }
  | { readonly type: 'Resumed' | 'Reopened' }
  | { readonly type: 'Ended'; readonly status: SagaStatus; readonly reason?: string }
  /** Nothing more for now: it is given back until then. */
  | { readonly type: 'Waiting'; readonly after: number }

/** What a runner does now. `proceed`: there is a decision to write, such as the end. */
export type Action =
  | { readonly do: 'run' | 'check' | 'undo' | 'wake'; readonly step: StepState; readonly plan: StepPlan }
  | { readonly do: 'proceed' | 'nothing' }

/** Stands for what a saga does at its end, in the rows of a saga whose end has failed. */
export const AT_END = 'onEnd'

export function begun(id: string): SagaState {
  return { id, status: 'running', held: undefined, error: undefined, steps: [] }
}

export function isOver({ status }: Pick<SagaState, 'status'>): boolean {
  return status === 'completed' || status === 'compensated' || status === 'failed'
}

/** The key of the present undo: another each time the step is undone, kept by retries of that undo. */
export function undoKey({ key, undos }: StepState): string {
  return nameUuid(5, key, `undo ${undos}`)
}

export function find(state: SagaState, name: string): StepState | undefined {
  return state.steps.find((step) => step.name === name)
}

export function planOf(plan: Plan, name: string): StepPlan {
  const found = plan.find((step) => step.name === name)
  if (found === undefined) throw new WaybillError('SAGA_CHANGED', `the definition has no step ${name}`)
  return found
}
