import { type Clock, type SpanAbout, telemetry } from '../core/index.ts'
import { shown } from './failure.ts'
import { isOver, type SagaState, type StepAction } from './state.ts'
import type { Work } from './work.ts'

interface Listening {
  readonly clock: Clock
  readonly onOutcome: (work: Work) => void
}

/** It has ended, or is held: for telemetry, and for whoever waits here. */
export function publishOutcome(work: Work, state: SagaState, { onOutcome, clock }: Listening): void {
  const { id, type, tenant, traceparent, createdAt } = work.record
  const about = { type, id, tenant, traceparent }
  if (state.held !== undefined) {
    telemetry['saga.held'].publish({ ...about, reason: state.held })
    onOutcome(work)
  } else if (isOver(state)) {
    const took = Math.max(0, clock.now() - createdAt.getTime())
    telemetry['saga.ended'].publish({ ...about, status: state.status, took })
    onOutcome(work)
  }
}

export function publishStep(work: Work, action: StepAction, result: string, took: number, error: unknown): void {
  if (!telemetry['saga.step'].active) return
  const { id, type, tenant, traceparent } = work.record
  const { name: step, attempts } = action.step
  const about = { type, id, tenant, traceparent, step, call: action.do as 'run' | 'check' | 'undo' }
  telemetry['saga.step'].publish({ ...about, result, took, attempt: attempts + 1, error })
}

/** Each call of a step belongs to the trace that its saga was started in. */
export function spanOf(work: Work, { do: what, step }: StepAction): SpanAbout {
  const { id, type, traceparent } = work.record
  const about = { 'waybill.saga.type': type, 'waybill.saga.id': id, 'waybill.saga.step': step.name }
  return {
    name: `${what} ${type}.${step.name}`,
    attributes: { ...about, 'waybill.attempt': step.attempts + 1 },
    parent: traceparent,
    shown: (error) => shown(work, error),
  }
}

export function publishFenced({ id, message }: Work): void {
  telemetry['saga.fenced'].publish({ type: message.type, id })
}
