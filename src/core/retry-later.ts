import { type Duration, milliseconds } from './duration.ts'
import { WaybillError } from './errors.ts'

/** Thrown by a handler: not now. The message comes again after `delay`; an attempt is spent. */
export class RetryLater extends WaybillError {
  /** Milliseconds. */
  readonly delay: number

  constructor(delay: Duration, reason = 'retry later', options?: { cause?: unknown }) {
    super('RETRY_LATER', reason, options)
    this.name = 'RetryLater'
    this.delay = milliseconds(delay, 'RetryLater')
  }
}
