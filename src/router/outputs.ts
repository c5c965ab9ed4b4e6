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

/** Throws what the first outcome that is not ok says about the whole. */
export function throwUnlessSent(outcomes: readonly Outcome[], name: string): void {
  for (const outcome of outcomes) {
    if (outcome.kind === 'ok') continue
    const text = `publishing to ${name} failed`
    if (outcome.kind === 'down') throw new Unavailable(text, { cause: outcome.error })
    if (outcome.kind === 'rejected') throw new Reject(text, { cause: outcome.error })
    if (outcome.after !== undefined) throw new RetryLater(outcome.after, text, { cause: outcome.error })
    throw new WaybillError('PUBLISH_FAILED', text, { cause: outcome.error })
  }
}

/** Typed messages are encoded on their way out; raw ones pass as they are. */
export function rawOutputs(outputs: readonly Message[]): RawMessage[] {
  return outputs.map(encodeData)
}
