import { WaybillError } from '../../core/index.ts'
import { OK, type Outcome } from '../../flow/index.ts'

/** What came back. Never its body: that is the destination's, and may quote what was sent. */
export interface Answer {
  readonly status: number
  readonly retryAfter: string | undefined
}

/** What an answer says, before it is decided whether a whole destination or one message is meant. */
export type Judged =
  | Outcome
  /** The server, or what stands before it, cannot take requests at present. */
  | { readonly kind: 'away'; readonly error: WaybillError; readonly after: number | undefined }

/** 500 and its like are about a request; these are about the server: too busy, not there, behind a gateway in vain. */
const AWAY = new Set([429, 502, 503, 504])
/** Statuses below 500 that may go better later. */
const LATER = new Set([408, 425])

export function isSuccess(status: number): boolean {
  return status >= 200 && status < 300
}

export function judge({ status, retryAfter }: Answer, now: number, longest: number): Judged {
  if (isSuccess(status)) return OK
  const error = new WaybillError('HTTP_STATUS', `answered ${status}${meaning(status)}`)
  const after = retryAfter === undefined ? undefined : delayOf(retryAfter, now, longest)
  if (AWAY.has(status)) return { kind: 'away', error, after }
  if (status < 500 && !LATER.has(status)) return { kind: 'rejected', error }
  return after === undefined ? { kind: 'failed', error } : { kind: 'failed', error, after }
}

/** Seconds, or a date; milliseconds from now, within bounds. What is neither says nothing. */
export function delayOf(text: string, now: number, longest: number): number | undefined {
  const trimmed = text.trim()
  // Date.parse makes a date of nearly anything; one of HTTP begins with its day.
  const date = /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(trimmed) ? Date.parse(trimmed) : Number.NaN
  const at = /^\d+$/.test(trimmed) ? now + Number(trimmed) * 1000 : date
  return Number.isNaN(at) ? undefined : Math.min(longest, Math.max(0, at - now))
}

function meaning(status: number): string {
  if (status < 300) return ''
  if (status < 400) return ': a redirect, and those are not followed; give the address it leads to'
  if (status === 401 || status === 403) return ': not authorised; look at the secrets of both sides and at their clocks'
  if (status === 410) return ': the endpoint is gone for good'
  if (status === 413) return ': too large for it'
  return ''
}
