import { BATCH_TYPE, contentMode, fromBinary, fromStructured } from '../../cloudevents/index.ts'
import {
  type Clock,
  checkOptions,
  type Duration,
  errorSummary,
  milliseconds,
  type OptionNames,
  type RawMessage,
  systemClock,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import type { Phase, Session, Source, Stoppable } from '../../flow/index.ts'
import { Arrivals, type HttpDelivery, type Reply } from './arrivals.ts'
import { Deadlines } from './deadlines.ts'
import type { BodyLimits, Incoming, Verdict } from './incoming.ts'
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

const OPTIONS: OptionNames<HttpReceiverOptions> = {
  secrets: true,
  unsigned: true,
  trustAttributes: true,
  name: true,
  maxBytes: true,
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
  readonly features = { redelivers: true } as const
  readonly phase: Phase = 'requests'
  readonly #secrets: readonly Secret[]
  readonly #trustAttributes: boolean
  readonly #limits: Record<'maxBytes' | 'maxMessages' | 'tolerance' | 'bodyTimeout' | 'timeout' | 'grace', number>
  readonly #clock: Clock
  readonly #deadlines: Deadlines
  readonly #body: BodyLimits
  readonly #sessions = new Set<HttpSession>()
  readonly #arrivals = new Arrivals(() => {
    for (const session of this.#sessions) session.wake()
  })
  readonly #stopped = new AbortController()
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
        `${where}: give the secrets of the senders, or unsigned: true where something else keeps strangers out; not both`,
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
  }

  async open(): Promise<Session<HttpDelivery>> {
    const onClose = () => this.#sessions.delete(session)
    const session: HttpSession = new HttpSession({ arrivals: this.#arrivals, clock: this.#clock, onClose })
    this.#sessions.add(session)
    return session
  }

  /** Answers a request of the web. Never rejects. May be passed around on its own. */
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

  /** New requests are answered `503`; resolves when those that are here have their answers. */
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
    if (method !== 'POST') return verdict(405, 'events come by POST', { allow: 'POST' })
    const mode = contentMode(headers['content-type'])
    if (mode === 'batch') return verdict(415, `${BATCH_TYPE} is not taken: one answer cannot speak for many events`)
    const stale = this.#secrets.length === 0 ? undefined : this.#unsigned(headers)
    if (stale !== undefined) return verdict(401, stale)
    if (this.#sessions.size === 0 || this.#arrivals.size >= this.#limits.maxMessages) return away()
    const body = await incoming.read(this.#body)
    if (body === 'too large') return verdict(413, `the body is larger than ${this.#limits.maxBytes} bytes`)
    if (body === 'too slow') return verdict(408, 'the body took too long')
    if (body === 'broken') return verdict(400, 'the body broke off')
    const forged = this.#secrets.length === 0 ? undefined : this.#forged(headers, body, mode === 'binary')
    if (forged !== undefined) return verdict(401, forged)
    const message = messageOf(headers, body, mode)
    if (typeof message === 'string') return verdict(400, message)
    return verdictOn(await this.#settled(message, body.byteLength, incoming))
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

const SIGNATURE_HEADERS = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const

function messageOf(headers: Incoming['headers'], body: Uint8Array, mode: 'binary' | 'structured'): RawMessage | string {
  try {
    return mode === 'structured' ? fromStructured(body) : fromBinary(headers, body)
  } catch (error) {
    return error instanceof WaybillError ? `not a CloudEvent: ${error.message}` : 'not a CloudEvent'
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

function verdict(status: number, text: string, headers: Record<string, string> = {}): Verdict {
  return { status, text: `${text}\n`, headers: { 'content-type': 'text/plain; charset=utf-8', ...headers } }
}

/** `httpReceiver({ secrets })`: see HttpReceiver. */
export function httpReceiver(options: HttpReceiverOptions): HttpReceiver {
  return new HttpReceiver(options)
}
