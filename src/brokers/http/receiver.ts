import { BATCH_TYPE, contentMode, fromBinary, fromStructured, STRUCTURED_TYPE } from '../../cloudevents/index.ts'
import { Deadlines } from '../../core/deadlines.ts'
import {
  asError,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  type OptionNames,
  type RawMessage,
  systemClock,
  telemetry,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../../core/index.ts'
import { decodedMessage, type Phase, type Session, type Source, type Stoppable } from '../../flow/index.ts'
import { Arrivals, type HttpDelivery, type Reply } from './arrivals.ts'
import { type BodyLimits, type Incoming, Room, type Unread, type Verdict, verdict } from './incoming.ts'
import { HttpSession } from './session.ts'
import { attributesText, type Secret, secretsOf, verify } from './signature.ts'
import { WebIncoming, webResponse } from './web-incoming.ts'

/** Whose webhooks are accepted, and within which limits. */
export interface HttpReceiverOptions {
  /** Those of the senders; while they are changed, the old and the new. */
  secrets?: string | readonly string[]
  /** Takes requests from anybody who can reach it. One of this and `secrets` must be given. */
  unsigned?: boolean
  /**
   * Takes requests in binary mode whose signature covers the body only, as the standard has it, and so not the id nor
   * the type of the event. Senders of Waybill sign both. Default false.
   */
  trustAttributes?: boolean
  name?: string
  /** The largest body in bytes. Default 1 MiB. */
  maxBytes?: number
  /** How many bytes all requests that are being read or handled may hold; more are answered `503`. Default 64 MiB. */
  maxTotalBytes?: number
  /**
   * A message from a request that is no CloudEvent, such as a plain body of Standard Webhooks. Its signature covers the
   * body, `webhook-id` and `webhook-timestamp`, and no other header. What it throws is answered `400`.
   */
  decode?: HttpDecode
  /** How old a signature may be, and how far ahead of this clock. Default 5 min. */
  tolerance?: Duration
  /** How long a body may take to arrive. Default 10 s. */
  bodyTimeout?: Duration
  /** When a request is answered `503`, whether or not its message is still being handled. Default 10 s. */
  timeout?: Duration
  /** How many messages may be here at once; more are answered `503`. Default 1000. */
  maxMessages?: number
  /** How long `stop` waits for what is being handled. Default 10 s. */
  grace?: Duration
  clock?: Clock
}

/** A message from headers (names in lower case) and a body. */
export type HttpDecode = (request: {
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: Uint8Array
}) => RawMessage

const OPTIONS: OptionNames<HttpReceiverOptions> = {
  secrets: true,
  unsigned: true,
  trustAttributes: true,
  name: true,
  maxBytes: true,
  maxTotalBytes: true,
  decode: true,
  tolerance: true,
  bodyTimeout: true,
  timeout: true,
  maxMessages: true,
  grace: true,
  clock: true,
}

/**
 * Webhooks as a source: `handle` is given requests and a router takes their messages, as from any other.
 *
 * 1. What is not signed, too old, too large, too slow or no CloudEvent is refused, and nobody hears of it.
 * 2. The message waits for a session to take it. While none is open, or too many wait, the answer is `503`.
 * 3. The answer comes when the message is settled, so after the commit: `204` when it is done, `422` when it is dead,
 *    `500` with Retry-After when it is to come again. Who sends it again is the sender, who also counts.
 */
export class HttpReceiver implements Source<HttpDelivery>, Stoppable {
  readonly name: string
  readonly system = 'http'
  readonly features = { redelivers: true } as const
  readonly phase: Phase = 'requests'
  readonly #secrets: readonly Secret[]
  readonly #trustAttributes: boolean
  readonly #limits: Record<'maxBytes' | 'maxMessages' | 'tolerance' | 'bodyTimeout' | 'timeout' | 'grace', number>
  readonly #clock: Clock
  readonly #deadlines: Deadlines
  readonly #body: BodyLimits
  readonly #room: Room
  readonly #decode: HttpDecode | undefined
  readonly #sessions = new Set<HttpSession>()
  readonly #arrivals = new Arrivals(() => {
    for (const session of this.#sessions) session.wake()
  })
  readonly #stopped = new AbortController()
  /** Since the last request whose signature was right. */
  #refusals = 0
  #warnedUntil = 0
  /** Requests that are being read or answered. */
  #requests = 0
  #onIdle: (() => void) | undefined

  constructor(options: HttpReceiverOptions) {
    checkOptions('http receiver', options, OPTIONS)
    const { name = 'http', secrets, unsigned = false } = options ?? {}
    const where = `http receiver ${name}`
    if (unsigned === (secrets !== undefined)) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: give either the secrets of the senders, or unsigned: true if only trusted senders can reach it; not both`,
      )
    }
    this.name = name
    this.#secrets = secrets === undefined ? [] : secretsOf(where, secrets)
    this.#trustAttributes = options.trustAttributes ?? false
    this.#clock = options.clock ?? systemClock
    this.#limits = {
      maxBytes: wholeNumber(`${where}: maxBytes`, options.maxBytes ?? 1024 * 1024),
      maxMessages: wholeNumber(`${where}: maxMessages`, options.maxMessages ?? 1000),
      tolerance: milliseconds(options.tolerance ?? '5m', `${where}: tolerance`),
      bodyTimeout: milliseconds(options.bodyTimeout ?? '10s', `${where}: bodyTimeout`),
      timeout: milliseconds(options.timeout ?? '10s', `${where}: timeout`),
      grace: milliseconds(options.grace ?? '10s', `${where}: grace`),
    }
    this.#deadlines = new Deadlines(this.#clock)
    const { maxBytes: most, bodyTimeout: timeout } = this.#limits
    this.#body = { most, timeout, deadlines: this.#deadlines }
    const total = wholeNumber(`${where}: maxTotalBytes`, options.maxTotalBytes ?? 64 * 1024 * 1024)
    if (total < most) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: maxTotalBytes: ${total} is less than one body may have: ${most}`,
      )
    }
    this.#room = new Room(total)
    if (options.decode !== undefined && typeof options.decode !== 'function') {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: decode: ${describe(options.decode)} is not allowed; give a function that makes a message of { headers, body }`,
      )
    }
    this.#decode = options.decode
  }

  async open(): Promise<Session<HttpDelivery>> {
    const onClose = () => this.#sessions.delete(session)
    const session: HttpSession = new HttpSession({ arrivals: this.#arrivals, clock: this.#clock, onClose })
    this.#sessions.add(session)
    return session
  }

  /** Responds to a web request. Never rejects. May be passed around on its own. */
  readonly handle = async (request: Request): Promise<Response> => {
    return webResponse(await this.receive(new WebIncoming(request)))
  }

  /** The same for whatever brings requests: `nodeListener` does. */
  async receive(incoming: Incoming): Promise<Verdict> {
    if (this.#stopped.signal.aborted) return away(true)
    this.#requests++
    try {
      return await this.#answer(incoming)
    } catch (error) {
      telemetry.warning.publish({ where: this.name, message: `an error within the receiver: ${errorSummary(error)}` })
      return verdict(500, 'an error within the receiver')
    } finally {
      this.#requests--
      if (this.#requests === 0) this.#onIdle?.()
    }
  }

  /** New requests are answered `503`; resolves when those that are here have their responses. */
  async stop(): Promise<void> {
    if (this.#stopped.signal.aborted) return
    this.#stopped.abort()
    if (this.#requests === 0) return
    const idle = new AbortController()
    this.#onIdle = () => idle.abort()
    await this.#clock.sleep(this.#limits.grace, idle.signal)
    this.#arrivals.clear('away')
  }

  async #answer(incoming: Incoming): Promise<Verdict> {
    const { method, headers } = incoming
    if (method === 'OPTIONS') return permission(headers)
    if (method !== 'POST') return verdict(405, 'events come by POST', { allow: ALLOWED })
    const mode = this.#decode === undefined ? contentMode(headers['content-type']) : 'own'
    if (mode === 'batch')
      return verdict(415, `${BATCH_TYPE} is not accepted: one response cannot speak for many events`)
    if (mode === 'unknown') return verdict(415, `of structured events only ${STRUCTURED_TYPE} is taken`)
    if (mode !== 'own' && (headers['content-encoding'] || 'identity').toLowerCase() !== 'identity') {
      return verdict(415, 'compressed bodies are not read', { 'accept-encoding': 'identity' })
    }
    const stale = this.#secrets.length === 0 ? undefined : this.#unsigned(headers)
    if (stale !== undefined) return this.#refused(stale)
    if (this.#sessions.size === 0 || this.#arrivals.size >= this.#limits.maxMessages) return away()
    let held = 0
    const room = (bytes: number) => {
      const taken = this.#room.take(bytes)
      if (taken) held += bytes
      return taken
    }
    try {
      return await this.#answerBody(incoming, mode, await incoming.read({ ...this.#body, room }))
    } finally {
      this.#room.giveBack(held)
    }
  }

  async #answerBody(incoming: Incoming, mode: BodyMode, body: Uint8Array | Unread): Promise<Verdict> {
    const { headers } = incoming
    if (body === 'no room') return away()
    if (body === 'taken') {
      // No message is to blame for it.
      warnOnce(
        this.name,
        'the body of a request was read before the receiver got it; put the receiver before body parsers',
      )
      return away()
    }
    if (body === 'too large') return verdict(413, `the body is larger than ${this.#limits.maxBytes} bytes`)
    if (body === 'too slow') return verdict(408, 'the body took too long')
    // It says nothing of the message: 400 would be its end.
    if (body === 'broken') return verdict(408, 'the body broke off')
    const forged = this.#secrets.length === 0 ? undefined : this.#forged(headers, body, mode === 'binary')
    if (forged !== undefined) return this.#refused(forged)
    this.#refusals = 0
    const message = this.#messageOf(headers, body, mode)
    if (typeof message === 'string') return verdict(400, message)
    // Others have come while it was read.
    if (!this.#arrivals.has(message) && this.#arrivals.size >= this.#limits.maxMessages) return away()
    return verdictOn(await this.#settled(message, body.byteLength, incoming))
  }

  #messageOf(headers: Incoming['headers'], body: Uint8Array, mode: BodyMode): RawMessage | string {
    try {
      if (this.#decode !== undefined) return decodedMessage(this.#decode({ headers, body }))
      return mode === 'structured' ? fromStructured(body) : fromBinary(headers, body)
    } catch (thrown) {
      const what = this.#decode === undefined ? 'not a CloudEvent' : 'not a message'
      const error = asError(thrown)
      // Its text may quote the body.
      if (this.#decode !== undefined) warnOnce(this.name, `decode threw ${error.name}; such requests are answered 400`)
      return error instanceof WaybillError ? `${what}: ${error.message}` : what
    }
  }

  /** The sender hears why; the operator hears it when nobody's signature is right, which a wrong secret or clock here does. */
  #refused(reason: string): Verdict {
    const now = this.#clock.monotonic()
    if (++this.#refusals >= REFUSALS && now >= this.#warnedUntil) {
      this.#warnedUntil = now + WARN_EVERY
      const message = `${this.#refusals} requests in a row were refused with 401: ${reason}; look at the secrets of both sides and at their clocks`
      telemetry.warning.publish({ where: this.name, message })
    }
    return verdict(401, reason)
  }

  /** What can be said against the signature before the body has come. */
  #unsigned(headers: Incoming['headers']): string | undefined {
    for (const name of SIGNATURE_HEADERS) if (!headers[name]) return `the header ${name} is missing`
    const timestamp = headers['webhook-timestamp']!
    const age = this.#clock.now() - Number(timestamp) * 1000
    if (!/^\d{1,15}$/.test(timestamp) || Math.abs(age) > this.#limits.tolerance) {
      return 'the signature is too old, or the clocks differ'
    }
    return undefined
  }

  #forged(headers: Incoming['headers'], body: Uint8Array, binary: boolean): string | undefined {
    const [id, timestamp] = [headers['webhook-id']!, headers['webhook-timestamp']!]
    const attributes = binary && !this.#trustAttributes ? attributesText(headers) : undefined
    const verified = verify(this.#secrets, headers['webhook-signature']!, { id, timestamp, body, attributes })
    if (verified === 'whole') return undefined
    if (verified === 'no') return 'the signature is wrong'
    return 'the signature does not cover the attributes; send structured mode, or sign them'
  }

  /** What becomes of the message, or that it takes too long, or that nobody wants to know any more. */
  #settled(message: RawMessage, size: number, incoming: Incoming): Promise<Reply> {
    return new Promise((resolve) => {
      const arrival = this.#arrivals.add(message, size + 200)
      const answer = (reply: Reply) => {
        this.#deadlines.delete(deadline)
        stay()
        resolve(reply)
      }
      const leave = () => {
        arrival.waiting.delete(answer)
        this.#arrivals.abandon(arrival)
        answer('away')
      }
      arrival.waiting.add(answer)
      const deadline = this.#deadlines.add(this.#limits.timeout, leave)
      const stay = incoming.onGone(leave)
    })
  }
}

/** So many in a row, and no signature that was right between them, are worth a warning; one in an hour. */
const REFUSALS = 3
const WARN_EVERY = 3_600_000

const SIGNATURE_HEADERS = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const

/** How the body holds its event; `own`: only `decode` knows. */
type BodyMode = 'binary' | 'structured' | 'own'

const ALLOWED = 'POST, OPTIONS'

/**
 * The handshake of CloudEvents' webhooks: a sender asks whether it may send, so that nobody can be made to flood a stranger.
 * Everybody may: what counts is the signature of each request.
 */
function permission(headers: Incoming['headers']): Verdict {
  const origin = headers['webhook-request-origin']
  if (origin === undefined) return { status: 204, headers: { allow: ALLOWED } }
  return {
    status: 200,
    headers: { allow: ALLOWED, 'webhook-allowed-origin': origin, 'webhook-allowed-rate': '*' },
  }
}

/** Why a message failed is nobody's business but ours. */
function verdictOn(reply: Reply): Verdict {
  if (reply === 'done') return DONE
  if (reply === 'refused') return verdict(422, 'it can never be handled')
  if (reply === 'away') return away()
  return verdict(500, 'not now', { 'retry-after': String(Math.ceil(reply.later / 1000)) })
}

const DONE: Verdict = { status: 204 }

function away(stopping = false): Verdict {
  return verdict(503, 'not now', { 'retry-after': '1', ...(stopping ? { connection: 'close' } : {}) })
}

/** `httpReceiver({ secrets })`: see HttpReceiver. */
export function httpReceiver(options: HttpReceiverOptions): HttpReceiver {
  return new HttpReceiver(options)
}
