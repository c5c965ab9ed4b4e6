import { type Agent, type IncomingMessage, request as plainRequest, type RequestOptions } from 'node:http'
import { request as secureRequest } from 'node:https'
import { urlToHttpOptions } from 'node:url'
import type { Bag, Deadlines } from '../../core/deadlines.ts'
import { WaybillError } from '../../core/index.ts'
import { OK, type Outcome } from '../../flow/index.ts'

/** As much of an answer's body is read as keeps the connection usable; whoever sends more loses it. */
const MOST_BODY = 64 * 1024
/** How long the rest of an answer is waited for once its status is known, in milliseconds: it holds a slot. */
const LONGEST_BODY = 1000

/** A URL as `node:http` wants it. */
export interface RequestTarget {
  readonly host: string
  /** The URL without its query. */
  readonly name: string
  readonly request: Pick<RequestOptions, 'protocol' | 'hostname' | 'port' | 'path'>
  /** Names and values by turns, of the headers that all requests to it have. */
  readonly headers: readonly string[]
}

export function targetOf(url: URL, headers: Readonly<Record<string, string>>): RequestTarget {
  const { protocol, hostname, port, path } = urlToHttpOptions(url) as RequestTarget['request']
  const request = { protocol, hostname, port, path } as RequestTarget['request']
  const name = `${url.origin}${url.pathname}`
  return { host: url.host, name, request, headers: ['host', url.host, ...Object.entries(headers).flat()] }
}

export interface Post {
  readonly target: RequestTarget
  readonly agent: Agent
  /** Beside those of the target. */
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array
  /** Milliseconds, for all of it. */
  readonly timeout: number
  readonly deadlines: Deadlines
  readonly signal: AbortSignal
  /** Called when it aborts: one listener serves all requests of a call. */
  readonly flying: Bag<(reason: unknown) => void>
}

/**
 * One POST. Rejects when nothing was answered in time, or nothing at all: then nobody knows whether it arrived. A kept
 * connection that the other side was just closing says nothing about the server, so that is tried once more at once.
 */
export function post(options: Post): Promise<HttpResponse> {
  return new Promise((resolve, reject) => {
    attempt(options, resolve, (error, stale) => {
      if (stale && !options.signal.aborted) attempt(options, resolve, reject)
      else reject(error)
    })
  })
}

function attempt(
  { target, agent, headers, body, timeout, deadlines, flying }: Post,
  resolve: (answer: HttpResponse) => void,
  reject: (error: unknown, stale: boolean) => void,
): void {
  const { protocol, hostname, port, path } = target.request
  const make = protocol === 'https:' ? secureRequest : plainRequest
  const request = make({ protocol, hostname, port, path, method: 'POST', agent, headers: listOf(target, headers) })
  let answer: HttpResponse | undefined
  let over = false
  const end = (error: unknown, stale: boolean) => {
    if (over) return
    over = true
    deadlines.delete(deadline)
    flying.delete(held)
    // Once there is a status, it stands, whatever becomes of the rest.
    if (answer !== undefined) resolve(answer)
    else reject(error, stale)
  }
  const giveUp = (error: unknown) => {
    end(error, false)
    request.destroy()
  }
  request.on('error', (error) =>
    end(error, request.reusedSocket && (error as { code?: unknown }).code === 'ECONNRESET'),
  )
  request.on('response', (response) => {
    const status = response.statusCode ?? 0
    // All headers are read with the first that is asked for.
    answer = { status, retryAfter: isSuccess(status) ? undefined : response.headers['retry-after'] }
    drain(response)
    if (status === NO_BODY) return
    deadlines.delete(deadline)
    deadline = deadlines.add(Math.min(timeout, LONGEST_BODY), () => giveUp(undefined))
  })
  // Every request ends so, when its connection is free for the next or gone: an error is made only where it is one.
  request.on('close', () => {
    if (over) return
    end(answer ? undefined : new WaybillError('NO_ANSWER', 'the connection was closed without a response'), false)
  })
  const held = flying.add(giveUp)
  let deadline = deadlines.add(timeout, () => giveUp(new WaybillError('TIMEOUT', `no response within ${timeout} ms`)))
  // What is all ASCII goes out in one piece with the headers, which are Latin-1; other text beside them.
  if (typeof body === 'string' && body.length === Buffer.byteLength(body)) request.end(body, 'latin1')
  else request.end(body)
}

/** A list is written as it is; of an object, each header would be stored, looked up and copied first. */
function listOf(target: RequestTarget, headers: Readonly<Record<string, string>>): string[] {
  const list = target.headers.slice()
  for (const name in headers) list.push(name, headers[name]!)
  return list
}

function drain(response: IncomingMessage): void {
  let size = 0
  response.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > MOST_BODY) response.destroy()
  })
}

/** What came back. Never its body: that is the destination's, and may quote what was sent. */
export interface HttpResponse {
  readonly status: number
  readonly retryAfter: string | undefined
}

/** What an answer says, before it is decided whether a whole destination or one message is meant. */
export type Judged =
  | Outcome
  /** The server, or what stands before it, cannot take requests at present. */
  | {
      readonly kind: 'away'
      readonly error: WaybillError
      readonly after: number | undefined
      readonly status?: number
    }
  /** What the address, the secrets or a route are wrong for: a deploy mends it, and no message is to blame for it. */
  | { readonly kind: 'misdirected'; readonly error: WaybillError; readonly forGood: boolean }

/** The status of an answer that ends with its headers. */
const NO_BODY = 204
/** The status for too many requests: who sends it knows when there may be more. */
export const TOO_MANY = 429
/** 500 and its like are about a request; these are about the server: too busy, not there, behind a gateway in vain. */
const AWAY = new Set([TOO_MANY, 502, 503, 504])
/** What networks of delivery answer when they did not reach the server behind them, or not in time. */
const [FIRST_OF_CDN, LAST_OF_CDN] = [520, 530]
/** What a server answers that does not do POST at all, another version of HTTP, or that stands before the way out. */
const WRONG_SERVER = new Set([501, 505, 511])
/** Statuses below 500 that may go better later. */
const LATER = new Set([408, 425])
/**
 * Those that speak of the message itself: too large, or never to be processed. Others of their kind, 400 and 415 among them,
 * come from proxies and wrong routes too, whatever the message.
 */
const REFUSED = new Set([413, 422, 431])
const GONE = 410

export function isSuccess(status: number): boolean {
  return status >= 200 && status < 300
}

export function judge({ status, retryAfter }: HttpResponse, now: number, longest: number): Judged {
  if (isSuccess(status)) return OK
  const error = new WaybillError('HTTP_STATUS', `responded with ${status}${meaning(status)}`)
  const after = retryAfter === undefined ? undefined : delayOf(retryAfter, now, longest)
  if (AWAY.has(status) || (status >= FIRST_OF_CDN && status <= LAST_OF_CDN)) {
    return { kind: 'away', error, after, status }
  }
  if (REFUSED.has(status)) return { kind: 'rejected', error }
  if (WRONG_SERVER.has(status) || (status < 500 && !LATER.has(status))) {
    return { kind: 'misdirected', error, forGood: status === GONE }
  }
  return { kind: 'failed', error: notBefore(error, after) }
}

/**
 * The flow waits at least so long. Its backoff is waited for too: an answer that always says `0`, `1` or a date that has passed
 * would else spend all attempts at once.
 */
export function notBefore(error: WaybillError, after: number | undefined): WaybillError {
  return after === undefined ? error : Object.assign(error, { after })
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
  if (status < 400) return ': a redirect, which is not followed; give the URL it leads to'
  if (status === 401 || status === 403) return ': not authorised; look at the secrets of both sides and at their clocks'
  if (status === 404 || status === 405) return ': no route there takes POST; look at the URL'
  if (status === 410) return ': the endpoint is gone for good'
  if (status === 413) return ': the body is larger than the receiver allows'
  return ''
}
