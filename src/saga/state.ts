import { nameUuid } from '../core/index.ts'

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
  readonly kind: 'step' | 'transaction' | 'sleep' | 'request'
  readonly undo: boolean
  readonly check: boolean
  readonly unknown: UnknownPolicy
  /** Milliseconds of trying, for its run and for its undo. */
  readonly budget: number
  readonly undoBudget: number
  /** Behind the point of no return. */
  readonly final: boolean
  /** Milliseconds of a sleep, or until a reply is late. */
  readonly duration: number
  /** A request that sends a message. One that does not waits for a message from outside. */
  readonly sends: boolean
  /** The undo of a request is over when a message says so, not when it is sent. */
  readonly confirmed: boolean
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
  /** How many messages a request has sent: its own, again, and those that undo it. */
  readonly sends: number
  readonly error: string | undefined
}

/** All that the machine knows of a saga. */
export interface SagaState {
  readonly id: string
  /** The name of its definition. Sagas of two services may have one id, that of an order perhaps, but not one name too. */
  readonly type: string
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
  | ({ readonly type: 'unknown' | 'undoFailed' | 'endFailed' | 'sendFailed' } & Failure)
  /** Nothing was heard in time of a request, or of its undo. */
  | { readonly type: 'expired'; readonly step: string; readonly error: string }
  | { readonly type: 'absent'; readonly step: string }
  /** `undo`: which of its undos that was. Not given: the present one. */
  | { readonly type: 'undone'; readonly step: string; readonly undo?: number }
  | { readonly type: 'compensate' | 'hold' | 'end'; readonly reason: string }
  | { readonly type: 'resolve'; readonly step: string; readonly done: boolean; readonly output: unknown }

/** What has happened to a saga. */
export type SagaEvent =
  /** `Sent`: the request, or its undo, is enqueued with this write. */
  | { readonly type: 'Intended' | 'Absent' | 'Again' | 'Sent' | 'Undoing' | 'Undone'; readonly step: string }
  /** `Early`: success was seen before the step has begun. */
  | { readonly type: 'Done' | 'Early'; readonly step: string; readonly output: unknown }
  | { readonly type: 'Refused' | 'TakenOver' | 'UndoGaveUp'; readonly step: string; readonly error: string }
  | {
      readonly type: 'Tried'
      readonly step: string
      readonly error: string
      readonly spent: number
      readonly known: boolean
    }
  | { readonly type: 'UndoTried'; readonly step: string; readonly error: string; readonly spent: number }
  | { readonly type: 'Turned' | 'Held' | 'Noted'; readonly reason: string }
  | { readonly type: 'Resumed' | 'Reopened' }
  | { readonly type: 'Ended'; readonly status: SagaStatus; readonly reason?: string }
  /** Nothing more for now: it is given back until then. */
  | { readonly type: 'Waiting'; readonly after: number }

/** What a runner does now. `proceed`: there is a decision to write, such as the end; `expire`: its time is over. */
export type Action =
  | { readonly do: 'run' | 'check' | 'undo' | 'wake' | 'expire'; readonly step: StepState; readonly plan: StepPlan }
  | { readonly do: 'proceed' | 'nothing' }

/** An action that is about a step. */
export type StepAction = Extract<Action, { step: StepState }>

/** Stands for what a saga does at its end, in the rows of a saga whose end has failed. */
export const AT_END = 'onEnd'

export function begun(id: string, type: string): SagaState {
  return { id, type, status: 'running', held: undefined, error: undefined, steps: [] }
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
