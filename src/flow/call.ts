import type { Message } from '../core/index.ts'
import type { Shift } from './deadlines.ts'
import { checkedOutcome, OK, type Outcome } from './publisher.ts'
import type { Delivery } from './source.ts'

/**
 * One call of the step: what it was given, and what becomes of its answer. There are as many as may run at once, and
 * each is used again and again, so that a message costs no closures. So its callbacks must be called once per dispatch:
 * they are given to nothing but promises of the language (`promiseOf`).
 */
export class Call<D extends Delivery<Message>> {
  run: D[] = []
  busy = false
  /** Calls are numbered as they go out. */
  number = 0
  /** How many of its run failed before while others arrived; see Window. They are its first. */
  marked = 0
  /** Nothing else is in flight, so what happens now is this message's doing. */
  alone = false
  /** The window's era in which it went out. */
  era = 0
  /** When, if somebody listens. */
  began = 0
  /** With whom it has its time, while it takes it. */
  shift: Shift<Call<D>> | undefined = undefined
  /** Given back already, or out of time: its late answer is ignored. */
  abandoned = false
  /** For promises: the answer to one message, and its failure. */
  readonly answered: (result: unknown) => void
  readonly succeeded: () => void
  readonly failed: (error: unknown) => void

  constructor(
    onAnswer: (call: Call<D>, result: unknown) => void,
    onSuccess: (call: Call<D>) => void,
    onFailure: (call: Call<D>, error: unknown) => void,
  ) {
    this.answered = (result) => onAnswer(this, result)
    this.succeeded = () => onSuccess(this)
    this.failed = (error) => onFailure(this, error)
  }
}

/** `undefined` when all of them arrived. Throws for what is not one outcome per message. */
export function failuresAmong(outcomes: readonly Outcome[], count: number): readonly Outcome[] | undefined {
  if (!Array.isArray(outcomes) || outcomes.length !== count) {
    const given = Array.isArray(outcomes) ? `${outcomes.length} outcomes` : 'no list of outcomes'
    throw new TypeError(`the step returned ${given} for ${count} messages; it must return one each`)
  }
  for (const outcome of outcomes) if (outcome !== OK) return checkedOutcomes(outcomes)
  return undefined
}

function checkedOutcomes(outcomes: readonly Outcome[]): readonly Outcome[] | undefined {
  const checked = outcomes.map(checkedOutcome)
  return checked.every((outcome) => outcome === OK) ? undefined : checked
}

export function downIn(outcomes: readonly Outcome[]): Extract<Outcome, { kind: 'down' }> | undefined {
  return outcomes.find((outcome) => outcome.kind === 'down')
}
