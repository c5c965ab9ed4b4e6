import { Reject, WaybillError } from '../core/index.ts'
import type { SagaRecord } from './port.ts'
import type { SagaState, SagaStatus } from './state.ts'
import { resultsOf } from './work.ts'

/** The error that a caller gets for a saga that has not completed. `code` says why: see the guide on errors. */
export class SagaError extends WaybillError {
  readonly sagaId: string
  readonly status: SagaStatus

  constructor(code: string, message: string, { id, status }: SagaState, options?: { cause?: unknown }) {
    super(code, message, options)
    this.name = 'SagaError'
    this.sagaId = id
    this.status = status
  }
}

/** What a caller gets of a saga that has ended or is held: its results, or the error. */
export function outcome(state: SagaState, error: unknown): unknown {
  const { id, status, held, steps } = state
  if (held !== undefined) throw new SagaError('SAGA_HELD', `saga ${id} waits for a person: ${held}`, state)
  if (status === 'completed') return resultsOf(state)
  const reason = state.error ?? 'no reason was written down'
  if (status === 'failed') throw new SagaError('SAGA_FAILED', `saga ${id} could not be undone: ${lastOf(state)}`, state)
  const refused = steps.find((step) => step.status === 'failed' && step.error?.startsWith('Reject'))
  if (error instanceof Error) throw error
  if (refused !== undefined) throw new Reject(refused.error!.replace(/^Reject \[REJECTED\]: /, ''))
  throw new SagaError('SAGA_COMPENSATED', `saga ${id} was undone: ${reason}`, state)
}

/** Which undo gave up, and what was to be undone for. */
function lastOf({ steps, error = 'no reason was written down' }: SagaState): string {
  const undo = steps.find((step) => step.status === 'compensation_failed')
  return undo === undefined
    ? error
    : `the undo of ${undo.name} gave up (${undo.error}); the saga was being undone because of ${error}`
}

/** The caller's definition, whether the saga is driven in this process, and the time. */
interface AskedBy {
  readonly definition: string
  readonly here: boolean
  readonly now: number
}

/** The time of a caller is up: says what the saga waits for, as far as it is written down. */
export function notInTime(record: SagaRecord, asked: AskedBy): SagaError {
  const text = `saga ${record.id} has not ended in time; it goes on${reason(record, asked)}`
  return new SagaError('SAGA_TIMEOUT', text, record)
}

function reason(record: SagaRecord, asked: AskedBy): string {
  const { steps, runner, wakeAt, currentStep, definition: began } = record
  const failing = steps.find(
    ({ status, error }) => error !== undefined && (status === 'unknown' || status === 'compensating'),
  )
  const failed = failing && `its step ${failing.name} is ${failing.status} (${failing.error})`
  const free = !asked.here && runner === undefined
  const due = wakeAt !== undefined && wakeAt.getTime() <= asked.now
  if (free && (due || failed !== undefined) && isChanged(began, asked.definition)) {
    const text = `it began as ${began}, and here that is ${asked.definition}: the steps were changed under one version`
    const end = failed === undefined ? '' : `. Meanwhile ${failed}`
    return ` when a runner has its definition: ${text}. Give what is new another version, and register both${end}`
  }
  if (failed !== undefined) return `: ${failed}`
  if (asked.here) return currentStep === undefined ? '' : `: its step ${currentStep} is going on in this process`
  if (wakeAt === undefined) return ''
  if (runner !== undefined) {
    const where = currentStep === undefined ? '' : ` at step ${currentStep}`
    return `: a runner has it${where}; if that runner was killed, another takes it over at ${wakeAt.toISOString()} (lease)`
  }
  return due ? ' when a runner takes it: is a SagaRunner started that has its definition?' : ''
}

/** Of the same name and version, with other steps. */
function isChanged(began: string, definition: string): boolean {
  return began !== definition && withoutHash(began) === withoutHash(definition)
}

/** Name and version. */
function withoutHash(definition: string): string {
  return definition.slice(0, definition.lastIndexOf('#'))
}
