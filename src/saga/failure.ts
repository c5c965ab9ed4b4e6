import { classify, errorSummary, Reject, RetryLater, Unavailable, WaybillError, withoutData } from '../core/index.ts'
import type { Breakers } from './breakers.ts'
import { AT_END, type Command, type StepAction } from './state.ts'
import type { StepDefinition } from './step.ts'
import type { Work } from './work.ts'

/** What an error means for a saga: a command for the machine, or a word to the flow that drives it. */

/** `onEnd` failed in the transaction of the last step, which is rolled back with it. It is no answer of that step. */
function endFailure(
  { do: what, step: state, plan }: StepAction,
  step: StepDefinition,
  error: Error,
  took: number,
): Command {
  const { attempts, spent: before } = state
  const spent = took + (attempts === 0 ? 0 : step.backoff(attempts))
  const undoes = what === 'undo'
  const over = before + spent >= (undoes ? plan.undoBudget : plan.budget)
  const text = errorSummary(error)
  if (over || classify(error) === 'permanent') return { type: 'hold', reason: `${AT_END} failed: ${text}` }
  const type = undoes ? 'undoFailed' : 'unknown'
  return { type, step: step.name, error: text, spent, after: step.backoff(attempts + 1), permanent: false }
}

/** What an error of a step means. */
export function failure(
  work: Work,
  action: StepAction,
  step: StepDefinition,
  error: Error,
  took: number,
  name: string,
  signal: AbortSignal,
  breakers: Breakers,
): Command {
  if (signal.aborted) return { type: 'interrupted' }
  if (error instanceof EndFailed) return endFailure(action, step, shown(work, error.cause), took)
  const text = errorSummary(shown(work, error))
  const undoes = action.do === 'undo'
  const kind = classify(error)
  const refused = error instanceof Reject
  const unstorable = error instanceof WaybillError && (error.code === 'NOT_SERIALISABLE' || error.code === 'TOO_LARGE')
  if (refused || unstorable || kind === 'permanent') breakers.answered(name)
  if (refused && action.do === 'run') {
    work.refusal = error
    return { type: 'refused', step: step.name, error: text }
  }
  const permanent = kind === 'permanent' || unstorable
  const { attempts } = action.step
  const after = error instanceof RetryLater ? error.delay : step.backoff(attempts + 1)
  const counts = permanent || breakers.failed(name, work.id, kind === 'down', shown(work, error))
  const spent = counts ? took + (attempts === 0 ? 0 : step.backoff(attempts)) : 0
  // A check that is refused is asked again, like one that throws anything else.
  const type = undoes ? 'undoFailed' : 'unknown'
  return {
    type,
    step: step.name,
    error: text,
    spent,
    after,
    permanent: permanent && (unstorable || action.do !== 'check'),
  }
}

/** `onEnd` failed, and not the write around it. */
export class EndFailed extends WaybillError {
  constructor(cause: unknown) {
    super('END_FAILED', 'onEnd failed', { cause })
  }
}

/** As it may be logged and stored: without anything of the saga's input and results. */
export function shown(work: Work, error: unknown): Error {
  return withoutData(error, { data: [work.record.input, work.results] })
}

/**
 * What a flow makes of an error here: a store that is away is nobody's fault, and anything else is tried again later. What
 * the store will never take is held for a person, without the outcome that it refused.
 */
export async function driveError(work: Work, thrown: unknown): Promise<Error> {
  const error = shown(work, thrown)
  if (classify(error) === 'down') {
    return error instanceof Unavailable ? error : new Unavailable('the store of sagas is away', { cause: error })
  }
  const summary = errorSummary(error)
  const refused = classify(error) === 'permanent' || (error instanceof WaybillError && error.code.startsWith('SAGA_'))
  if (refused && (await hold(work, summary))) return new RetryLater(0, 'it is held', { charged: false })
  return new RetryLater(refused ? '60s' : '1s', `the saga could not be written: ${summary}`, {
    cause: error,
    charged: false,
  })
}

async function hold(work: Work, summary: string): Promise<boolean> {
  try {
    if (!(await work.reload())) return true
    work.outcome = undefined
    return await work.save(undefined, work.decide({ type: 'hold', reason: `it could not be written: ${summary}` }))
  } catch {
    return false
  }
}
