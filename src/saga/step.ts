import type { Backoff, BackoffOptions, Duration, EventKey, Message } from '../core/index.ts'
import type { Json } from './json.ts'
import type { SagaStatus, StepPlan, UnknownPolicy } from './state.ts'

/** What every function of a step is given. */
export interface StepContext<Input, Results> {
  /** The saga's id. */
  readonly id: string
  readonly input: Input
  /** What earlier steps returned, as it comes back from JSON. */
  readonly results: Results
  /** Names this step's work: the same in run, check and undo, over retries and crashes. Give it to whoever does the work. */
  readonly key: string
  /** 1 for the first try, as in a handler. */
  readonly attempt: number
  /** Aborts when its time is up, or when the right to this saga is lost. */
  readonly signal: AbortSignal
  /** The W3C trace context the saga was started with. */
  readonly traceparent: string | undefined
}

/** What an undo gets: the step, its keys, and its output if it is known. */
export interface UndoContext<Input, Results, Output> extends StepContext<Input, Results> {
  /** New each time the step is undone, and kept by retries of that undo. */
  readonly undoKey: string
  /** What the step returned, where that is known. */
  readonly output: Output | undefined
}

/** What `onEnd` gets: the saga, its input, its results and how it ended. */
export interface EndContext<Input, Results> {
  readonly id: string
  readonly input: Input
  readonly status: Extract<SagaStatus, 'completed' | 'compensated' | 'failed'>
  /** Of those that returned one. */
  readonly results: Partial<Results>
  /** Why it was undone, or has failed; undefined when it is completed. A summary: errors without data. */
  readonly reason: string | undefined
}

/** How long a step may take, and how often it is tried. */
export interface Timing {
  /** How long one call of run, check or undo may take. Default 5 s. */
  timeout?: Duration
  /** How long a step is tried in all, with its pauses. Then it is undone, or held behind the point of no return. Default 1 h. */
  budget?: Duration
  /** The same of its undo. Then the saga will have failed. Default 1 h. */
  undoBudget?: Duration
  /** The pause between tries. Default 1 s doubling to 60 s. */
  backoff?: BackoffOptions
}

/** How a step is undone, checked and tried again. */
export interface StepOptions<Input, Results, Output> extends Timing {
  /** Undoes the work of this key, whether it was done or not: the output may be missing. */
  undo?: (c: UndoContext<Input, Results, Output>) => unknown
  /** Finds out whether the work of this key was done: returns its output, or undefined. */
  check?: (c: StepContext<Input, Results>) => unknown
  /** What to do when nobody knows whether the step has happened. Default `check` if there is one, else `retry`. */
  unknown?: UnknownPolicy
}

/** How a step in the own database is undone and tried again. */
export interface TransactionStepOptions<Input, Results, Output, Tx> extends Timing {
  /** Undoes it, in a transaction of the saga's database. */
  undo?: (c: UndoContext<Input, Results, Output>, tx: Tx) => unknown
}

/** A request: what is sent, and the messages that answer it. */
export interface RequestOptions<Input, Results, Output, Refusal = never> extends Timing {
  /**
   * Makes the message. It goes through the outbox, in the same write as the intent of this step. Without it the step waits
   * for a message from outside: see `correlate`.
   */
  send?: (c: RequestContext<Input, Results>) => Message | Promise<Message>
  /** The work is done: what it says is the step's output. */
  reply: EventKey<Output>
  /** The work is refused: what came before it is undone. */
  refused?: EventKey<Refusal>
  /** How long to wait for an answer, and for `undone`. Default 5 min. */
  within?: Duration
  /** Makes the message that undoes the work of this key, whether it was done or not. */
  undo?: (c: Omit<UndoContext<Input, Results, NoInfer<Json<Output>>>, 'signal'>) => Message | Promise<Message>
  /** The work is undone. Without it an undo is over when its message is committed to the outbox. */
  undone?: EventKey<unknown>
  /** Finds out whether the work of this key was done: returns its output, or undefined. */
  check?: (c: StepContext<Input, Results>) => unknown
  /** What to do when nobody replies in time; `retry` sends again, `check` asks before. Default `undo`. */
  unknown?: UnknownPolicy
  /** Finds the saga that a reply or refusal from outside is for, by its `aggregate`: for messages that carry no saga. */
  correlate?: (data: NoInfer<Output | Refusal>) => string
}

/** What `send` is given. */
export type RequestContext<Input, Results> = Omit<StepContext<Input, Results>, 'signal'>

/** The messages that answer a request. */
export interface Replies {
  readonly reply: EventKey
  readonly refused: EventKey | undefined
  readonly undone: EventKey | undefined
  readonly correlate: ((data: never) => string) | undefined
}

/** A step as the runner calls it. */
export interface StepDefinition extends StepPlan {
  readonly timeout: number
  readonly backoff: Backoff
  // biome-ignore lint/suspicious/noExplicitAny: typed by the builder's methods; here they stand in one list.
  readonly run: (c: any, tx?: any) => unknown
  // biome-ignore lint/suspicious/noExplicitAny: see above.
  readonly undoing: ((c: any, tx?: any) => unknown) | undefined
  // biome-ignore lint/suspicious/noExplicitAny: see above.
  readonly checking: ((c: any) => unknown) | undefined
  /** Of a request, whose `run` and `undoing` make messages. */
  readonly replies: Replies | undefined
}
