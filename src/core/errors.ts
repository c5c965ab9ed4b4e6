import { type Duration, LONGEST_DELAY, milliseconds } from './duration.ts'

/**
 * One error class for the whole package. `code` is for programs and never changes its meaning;
 * the message is for people and says what was wrong, the value, what is allowed and what to do.
 * Payloads never appear in either.
 */
export class WaybillError extends Error {
  readonly code: string

  constructor(code: string, message: string, options?: { cause?: unknown }) {
    super(message, options)
    this.name = 'WaybillError'
    this.code = code
  }
}

/** Thrown by a handler: this message can never succeed. It is dead-lettered now, whatever attempts are left. */
export class Reject extends WaybillError {
  constructor(reason: string, options?: { cause?: unknown }) {
    super('REJECTED', reason, options)
    this.name = 'Reject'
  }
}

/**
 * Thrown when what a step depends on as a whole is away (a broker, a database), so that the message is
 * not to blame: nobody is charged, the flow pauses and probes.
 */
export class Unavailable extends WaybillError {
  /** Milliseconds before which another try is in vain; the flow pauses at least so long. */
  readonly after: number | undefined

  /** `code` where programs should tell it from others: what it means for the message stays the same. */
  constructor(reason: string, options: { cause?: unknown; code?: string; after?: number } = {}) {
    const { after, code = 'UNAVAILABLE', ...rest } = options
    super(code, reason, rest)
    this.name = 'Unavailable'
    this.after = after
  }
}

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
