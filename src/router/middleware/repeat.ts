import {
  type BackoffOptions,
  backoff,
  type Classify,
  type Clock,
  causesOf,
  checkOptions,
  classifier,
  RetryLater,
  systemClock,
  Unavailable,
  wholeNumber,
} from '../../core/index.ts'
import { RETRY_DEFAULTS } from '../../flow/index.ts'
import type { Middleware } from '../middleware.ts'

export interface RepeatOptions {
  /** How often the handler is called in all for one delivery. Default 3. */
  attempts?: number
  /** The pause between two calls. Default 50 ms doubling to 1 s, with jitter: longer waits belong to the source. */
  backoff?: BackoffOptions
  /** How many repetitions there may be for each hundred messages, so that a general failure is not multiplied. Default 20. */
  budget?: number
  classify?: Classify
  clock?: Clock
}

/**
 * Calls the handler again at once, for failures that are over in a moment: a deadlock, a lost connection. What lasts
 * longer is for the source's own redelivery. It stands outside a transaction: an aborted one cannot be gone on with.
 */
export function repeat(options: RepeatOptions = {}): Middleware {
  checkOptions('repeat', options, { attempts: true, backoff: true, budget: true, classify: true, clock: true })
  const attempts = wholeNumber('repeat.attempts', options.attempts ?? RETRY_DEFAULTS.repeats)
  const perHundred = wholeNumber('repeat.budget', options.budget ?? 20, { min: 0, max: 10_000 })
  const delay = backoff(options.backoff, 'repeat.backoff', { min: '50ms', max: '1s', jitter: '50ms' })
  const clock = options.clock ?? systemClock
  const kindOf = classifier(options.classify)
  const most = Math.max(10, perHundred)
  let budget = most
  return {
    name: 'repeat',
    refuses: ['transaction'],
    wrap: (next) => async (message, context) => {
      budget = Math.min(most, budget + perHundred / 100)
      for (let failures = 1; ; failures++) {
        try {
          return await next(message, context)
        } catch (error) {
          const worthwhile = mayBeOver(error, kindOf) && !context.signal.aborted
          if (!worthwhile || failures >= attempts || budget < 1) throw error
          budget--
          await clock.sleep(delay(failures), context.signal)
          if (context.signal.aborted) throw error
        }
      }
    },
  }
}

/** A connection that broke is `down`, and the next one may do. Whoever says that something is away, or names a time, knows. */
function mayBeOver(error: unknown, kindOf: Classify): boolean {
  if (kindOf(error) === 'permanent') return false
  return !causesOf(error).some((one) => one instanceof RetryLater || one instanceof Unavailable)
}
