import {
  encodeData,
  type Message,
  type RawMessage,
  Reject,
  RetryLater,
  Unavailable,
  WaybillError,
} from '../core/index.ts'
import type { Outcome } from '../flow/index.ts'

type Failure = Exclude<Outcome, { kind: 'ok' }>

/** What an outcome says, as the error a handler would throw for it. */
export function errorOf(outcome: Failure, name: string): WaybillError {
  const text = `publishing to ${name} failed`
  const cause = { cause: outcome.error }
  if (outcome.kind === 'down') return new Unavailable(text, cause)
  if (outcome.kind === 'rejected') return new Reject(text, cause)
  const { after, charged = true } = outcome
  if (after !== undefined || !charged) return new RetryLater(after ?? 0, text, { ...cause, charged })
  return new WaybillError('PUBLISH_FAILED', text, cause)
}

/** Throws what the first outcome that is not ok says about the whole. */
export function throwUnlessSent(outcomes: readonly Outcome[], name: string): void {
  for (const outcome of outcomes) if (outcome.kind !== 'ok') throw errorOf(outcome, name)
}

/** Typed messages are encoded on their way out; raw ones pass as they are. */
export function rawOutputs(outputs: readonly Message[]): RawMessage[] {
  return outputs.map(encodeData)
}
