import { type Duration, LONGEST_DELAY, milliseconds } from './duration.ts'
import { WaybillError } from './errors.ts'

/**
 * Thrown by a handler: not now. The message comes again after `delay`; an attempt is spent, unless `charged` is false:
 * for what is in nobody's hands, such as another who is at the same message. Uncharged it may go on for ever.
 */
export class RetryLater extends WaybillError {
  /** Milliseconds, at most 365 days: a longer delay is cut to that. */
  readonly delay: number
  readonly charged: boolean

  constructor(delay: Duration, reason = 'retry later', options: { cause?: unknown; charged?: boolean } = {}) {
    const { charged = true, ...rest } = options
    super('RETRY_LATER', reason, rest)
    this.name = 'RetryLater'
    this.delay = Math.min(milliseconds(delay, 'RetryLater'), LONGEST_DELAY)
    this.charged = charged
  }
}
