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
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import type { FailedOutcome } from './publisher.ts'
import type { Settlement } from './source.ts'

/** Every default of trying again, in one place. Other files name it here instead of repeating the number. */
export const RETRY_DEFAULTS = {
  /** Tries of one message in all, in any flow. */
  attempts: 25,
  /** The same for a queue of RabbitMQ, where each retry is a copy that waits in a queue of its own. */
  queueAttempts: 5,
  /** With so few attempts the pauses must grow quickly: four of them are ten minutes, longer than most deploys take. */
  queueBackoff: { min: '1s', max: '10m', factor: 8, jitter: '200ms' },
  /** How many crashes of its consumers a message of NATS, Kafka or Redis Streams survives. */
  maxCrashes: 25,
  /** Calls of a handler by the middleware `repeat`, all within one try. */
  repeats: 3,
  /** The pause between two tries of one message. */
  backoff: { min: '1s', max: '60s', jitter: '200ms' },
  /** The pause between two probes of what is down. */
  outage: { min: '200ms', max: '30s' },
  /** What becomes of a key whose message is dead. */
  deadKey: 'block',
} as const

/** How one message is tried again. The same wherever something is: flows, consumers, relays, sources with limits of their own. */
export interface RetryOptions {
  /** How often a message is tried in all. Default 25. */
  attempts?: number
  /** The pause between tries of one message. Default 1 s doubling to 60 s, with up to 200 ms of jitter. */
  backoff?: BackoffOptions
  /** What an error means. */
  classify?: Classify
  /** What becomes of a key whose message is dead: wait for a person (`block`, default), or go on without it. */
  deadKey?: 'block' | 'continue'
}

/** What a failure costs, decided in one place for every flow. */
export interface RetryPolicy {
  readonly classify: Classify
  readonly outage: Backoff
  readonly deadKey: 'block' | 'continue'
  decide(attempts: number, outcome: FailedOutcome): Settlement
}

export function retryPolicy(
  where: string,
  options: RetryOptions = {},
  outage?: BackoffOptions,
  random?: Random,
): RetryPolicy {
  checkRetry(`${where}: retry`, options)
  const limit = wholeNumber(`${where}: retry.attempts`, options.attempts ?? RETRY_DEFAULTS.attempts)
  const jittered = random === undefined ? {} : { random }
  const delay = backoff(options.backoff, `${where}: retry.backoff`, { ...RETRY_DEFAULTS.backoff, ...jittered })
  return {
    classify: classifier(options.classify),
    outage: backoff(outage, `${where}: outage`, { ...RETRY_DEFAULTS.outage, ...jittered }),
    deadKey: oneOf(`${where}: retry.deadKey`, options.deadKey ?? RETRY_DEFAULTS.deadKey, ['block', 'continue']),
    decide(attempts, { kind, error, ...rest }) {
      if (kind === 'rejected') return { kind: 'dead', reason: errorSummary(error), error }
      const { after, charged = true } = rest as { after?: number; charged?: boolean }
      const spent = attempts + 1
      if (charged && spent >= limit) return { kind: 'dead', reason: reasonAfter(spent, error), error }
      // Sooner than the error says, the next try would be in vain, and would cost one more attempt.
      const pause = isDelay(after) ? after : Math.max(delay(spent), pauseAfter(error))
      return { kind: 'retry', after: Math.min(pause, LONGEST_DELAY), error, charged }
    },
  }
}

/** The second decides where it says anything; an option that is undefined says nothing. */
export function mergedRetry(usual: RetryOptions | undefined, given: RetryOptions | undefined): RetryOptions {
  const said = Object.entries(given ?? {}).filter(([, value]) => value !== undefined)
  return { ...usual, ...Object.fromEntries(said) }
}

/** Names that are none of its options are refused, with a suggestion. */
export function checkRetry(where: string, options: RetryOptions | undefined): void {
  checkOptions(where, options, { attempts: true, backoff: true, classify: true, deadKey: true })
}

/** A publisher may ask for any delay. What is no number is not heard. */
function isDelay(after: number | undefined): after is number {
  return Number.isFinite(after) && after! >= 0
}

/** Why a message is dead whose consumers crashed with it, `attempts` times, before any of them could say why. */
export function crashReason(attempts: number): string {
  const error = new WaybillError('CRASHED', 'its consumer crashed or stopped responding, again and again')
  return reasonAfter(attempts, error)
}

function reasonAfter(attempts: number, error: unknown): string {
  return `${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}: ${errorSummary(error)}`
}
