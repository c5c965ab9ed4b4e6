import type { Clock } from './clock.ts'
import { type Duration, LONGEST_DELAY, milliseconds } from './duration.ts'
import { withDeadline } from './waiting.ts'

/**
 * One error class for the whole package. `code` is for programs and never changes its meaning;
 * the message is for people and says what was wrong, the value, what is allowed and what to do. It ends with the code,
 * which can be searched for: `… [NOT_MIGRATED]`. Payloads never appear in either.
 */
export class WaybillError extends Error {
  readonly code: string

  constructor(code: string, message: string, options?: { cause?: unknown }) {
    super(withCode(message, code), options)
    this.name = 'WaybillError'
    this.code = code
  }
}

/** Thrown on purpose: the text is the handler's own, and the name of the class says the rest. */
const VERDICTS: ReadonlySet<string> = new Set(['REJECTED', 'RETRY_LATER', 'UNAVAILABLE'])

/** Its text may be a handler's own. */
export function isVerdict({ code }: WaybillError): boolean {
  return VERDICTS.has(code)
}

function withCode(message: string, code: string): string {
  return VERDICTS.has(code) || message.endsWith(endingOf(code)) ? message : message + endingOf(code)
}

function endingOf(code: string): string {
  return ` [${code}]`
}

/** The message of an error without the code at its end: for where the code stands before it, or in a field of its own. */
export function withoutCode({ message, code }: { readonly message: string; readonly code?: unknown }): string {
  const ending = endingOf(String(code))
  return message.endsWith(ending) ? message.slice(0, -ending.length) : message
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

  /** `code` where programs should distinguish it from others: what it means for the message stays the same. */
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

/** How long the `start` of a consumer waits to hear whether its server refuses it, in milliseconds. */
const ACCESS_KNOWN_WITHIN = 5000

/**
 * For the `check` of a source: connects once. Rejects with what no waiting mends: a user that the server refuses, or a server
 * that cannot be used. One that is away, or does not answer within 5 s, is for `open`, which is tried again.
 */
export async function checkAccess(
  connect: () => Promise<unknown>,
  refused: RegExp,
  clock: Clock,
  signal: AbortSignal,
): Promise<void> {
  try {
    await withDeadline<unknown>(connect(), ACCESS_KNOWN_WITHIN, clock, () => {}, signal)
  } catch (thrown) {
    const error = startError(thrown, refused)
    if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error
  }
}

/**
 * What a publisher's `start` throws where connecting failed: that no waiting mends it (`ACCESS_REFUSED`) if the server refused
 * the user, as `refused` finds in what the client threw; else the error as it is. Once started the same is an outage: a
 * password may be changed, and changed back.
 */
export function startError(error: unknown, refused: RegExp): unknown {
  for (let at = error, depth = 0; at instanceof Error && depth < 8; at = at.cause, depth++) {
    if (refused.test(`${at.name}: ${at.message}`) && error instanceof Error)
      return new WaybillError('ACCESS_REFUSED', withoutCode(error), { cause: error })
  }
  return error
}
