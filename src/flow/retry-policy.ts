import {
  type Backoff,
  type BackoffOptions,
  backoff,
  type Classify,
  checkOptions,
  classifier,
  errorSummary,
  LONGEST_DELAY,
  oneOf,
  pauseAfter,
  type Random,
  wholeNumber,
} from '../core/index.ts'
import type { Outcome } from './publisher.ts'
import type { Settlement } from './source.ts'

/** How often, and after which pauses, a message that failed is tried again. */
export interface RetryOptions {
  /** How often a message is tried in all. Default 25. */
  attempts?: number
  /** The pause between tries of one message. Default 1 s doubling to 60 s, with up to 200 ms of jitter. */
  backoff?: BackoffOptions
  /** The pause between probes while the destination is down. Default 200 ms doubling to 30 s. */
  breaker?: BackoffOptions
  /** What an error means. */
  classify?: Classify
  /** What becomes of a key whose message is dead: wait for a person (`block`, default), or go on without it. */
  deadKey?: 'block' | 'continue'
}

/** What a failure costs, decided in one place for every flow. */
export interface RetryPolicy {
  readonly classify: Classify
  readonly breaker: Backoff
  readonly deadKey: 'block' | 'continue'
  decide(attempts: number, outcome: Exclude<Outcome, { kind: 'ok' }>): Settlement
}

export function retryPolicy(where: string, options: RetryOptions = {}, random?: Random): RetryPolicy {
  checkOptions(where, options, ['attempts', 'backoff', 'breaker', 'classify', 'deadKey'])
  const limit = wholeNumber(`${where}.attempts`, options.attempts ?? 25)
  const jittered = random === undefined ? {} : { random }
  const delay = backoff(options.backoff, `${where}.backoff`, jittered)
  return {
    classify: classifier(options.classify),
    breaker: backoff(options.breaker, `${where}.breaker`, { min: '200ms', max: '30s', ...jittered }),
    deadKey: oneOf(`${where}.deadKey`, options.deadKey ?? 'block', ['block', 'continue']),
    decide(attempts, { kind, error, ...rest }) {
      if (kind === 'rejected') return { kind: 'dead', reason: errorSummary(error), error }
      const { after, charged = true } = rest as { after?: number; charged?: boolean }
      const spent = attempts + 1
      if (charged && spent >= limit) return { kind: 'dead', reason: `${spent} attempts: ${errorSummary(error)}`, error }
      // Sooner than the error says, the next try would be in vain, and would cost one more attempt.
      const pause = isDelay(after) ? after : Math.max(delay(spent), pauseAfter(error))
      return { kind: 'retry', after: Math.min(pause, LONGEST_DELAY), error, charged }
    },
  }
}

/** A publisher may ask for any delay. What is no number is not heard. */
function isDelay(after: number | undefined): after is number {
  return Number.isFinite(after) && after! >= 0
}
