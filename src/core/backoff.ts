import { type Duration, milliseconds } from './duration.ts'
import { WaybillError } from './errors.ts'
import { checkOptions, describe } from './options.ts'
import { type Random, systemRandom } from './random.ts'

/** How pauses between tries grow: from `min` to `max`, doubled each time, with up to `jitter` more. */
export interface BackoffOptions {
  /** The first delay. Default 1 s. */
  min?: Duration
  /** No delay is longer, but for the jitter. Default 60 s. */
  max?: Duration
  /** Each delay is this many times the one before. Default 2. */
  factor?: number
  /** Up to this much is added at random, so that many do not come back at once. Default 200 ms. */
  jitter?: Duration
  random?: Random
}

/** The delay before attempt `n + 1`, after `n` failures (1, 2, 3, …). */
export type Backoff = (failures: number) => number

/** `min(min × factor^(n-1), max) + 0…jitter`. `where` is for errors, `defaults` for what the options leave open. */
export function backoff(given: BackoffOptions = {}, where = 'backoff', defaults: BackoffOptions = {}): Backoff {
  checkOptions(where, given, { min: true, max: true, factor: true, jitter: true, random: true })
  const options = { ...defaults, ...given }
  const min = milliseconds(options.min ?? '1s', `${where}.min`)
  const max = milliseconds(options.max ?? '60s', `${where}.max`)
  const jitter = milliseconds(options.jitter ?? '200ms', `${where}.jitter`)
  const factor = options.factor ?? 2
  if (!Number.isFinite(factor) || factor < 1) {
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}.factor: ${describe(factor)} is not allowed; give a number of at least 1`,
    )
  }
  const random = options.random ?? systemRandom
  return (failures) => {
    // Past a thousand failures the power is infinite, and zero times that is not a number.
    const delay = min === 0 ? 0 : Math.min(min * factor ** Math.max(0, failures - 1), max)
    return delay + random.next() * jitter
  }
}
