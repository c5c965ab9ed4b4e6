import { Agent as PlainAgent } from 'node:http'
import { Agent as SecureAgent } from 'node:https'
import { Bag, Deadlines } from '../../core/deadlines.ts'
import { asError, encodeData, onAbort, type RawMessage, Unavailable, WaybillError } from '../../core/index.ts'
import { type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import { type Encoded, encode } from './encoding.ts'
import { type Judged, judge, post, type RequestTarget, targetOf } from './request.ts'
import { type HttpSenderOptions, type HttpSenderSettings, senderSettings } from './sender-options.ts'

/** What the messages of one call share: once the destination is away, the rest is not tried. */
interface SendCall {
  readonly signal: AbortSignal
  /** Called when it is aborted, one for each of its requests. */
  readonly flying: Bag<(reason: unknown) => void>
  away: unknown
}

/**
 * Events as signed CloudEvents webhooks, one POST each. With one URL, whatever speaks of the server as a whole (no
 * connection, no answer, 429, 502, 503, 504) is `down`: nobody is charged, the flow pauses and probes, and nothing is
 * sent before the time that a Retry-After names. So is what a wrong address, secret or route brings (redirects, 401, 403,
 * 404, 405, 409 and the like): a deploy mends it. A message that alone gets such an answer while others arrive is charged by
 * the flow. What speaks of the message (400, 413, 415, 422 …) is refused for good. With a URL for each message there is no whole: the same then concerns
 * that message alone, so that one endpoint which is away holds back nobody else.
 */
export class HttpSender implements Publisher {
  readonly name: string
  readonly system = 'http'
  readonly features = {}
  readonly #settings: HttpSenderSettings
  readonly #slots: Slots
  readonly #agents: { readonly 'http:': PlainAgent; readonly 'https:': SecureAgent }
  readonly #deadlines: Deadlines
  /** Of the one destination, where there is one. */
  readonly #target: RequestTarget | undefined
  #notBefore = 0

  constructor(options: HttpSenderOptions) {
    const settings = senderSettings(options)
    const { concurrency, guard, tls } = settings
    this.name = settings.name
    this.#settings = settings
    this.#slots = new Slots(concurrency)
    this.#deadlines = new Deadlines(settings.clock)
    this.#target = settings.fixed === undefined ? undefined : targetOf(settings.fixed, settings.headers)
    const connections = { keepAlive: true, maxSockets: concurrency, maxFreeSockets: concurrency, lookup: guard.lookup }
    this.#agents = { 'http:': new PlainAgent(connections), 'https:': new SecureAgent({ ...tls, ...connections }) }
  }

  /** A destination that may not be reached shows at start; one that cannot be found at present is waited for. */
  async start(): Promise<void> {
    const { fixed, guard } = this.#settings
    if (fixed === undefined) return
    try {
      await guard.resolve(fixed.hostname)
    } catch (error) {
      if (error instanceof WaybillError) throw error
    }
  }

  async publish(messages: readonly RawMessage[], signal: AbortSignal): Promise<readonly Outcome[]> {
    const { clock, fixed } = this.#settings
    const wait = this.#notBefore - clock.monotonic()
    if (fixed !== undefined && wait > 0) {
      const error = new Unavailable(`${this.name} asked for a pause, of which ${Math.ceil(wait)} ms are left`)
      return messages.map(() => ({ kind: 'down', error }))
    }
    const call: SendCall = { signal, flying: new Bag(), away: undefined }
    const forget = onAbort(signal, () => {
      call.away ??= signal.reason
      for (const { value: giveUp } of call.flying.all()) giveUp(signal.reason)
    })
    try {
      return await this.#all(messages, call)
    } finally {
      forget()
    }
  }

  async close(): Promise<void> {
    for (const agent of Object.values(this.#agents)) agent.destroy()
  }

  /** As many at a time as there are slots: each that is had takes one message after the other. */
  async #all(messages: readonly RawMessage[], call: SendCall): Promise<readonly Outcome[]> {
    const outcomes = new Array<Outcome>(messages.length)
    let next = 0
    const send = async () => {
      const release = await this.#slots.take()
      try {
        while (next < messages.length) {
          const at = next++
          outcomes[at] = await this.#one(messages[at]!, call)
        }
      } finally {
        release()
      }
    }
    const senders = Math.min(messages.length, this.#settings.concurrency)
    await Promise.all(Array.from({ length: senders }, send))
    return outcomes
  }

  async #one(message: RawMessage, call: SendCall): Promise<Outcome> {
    if (call.away !== undefined) return { kind: 'down', error: call.away }
    const { mode, secrets, timeout, clock, longestRetryAfter } = this.#settings
    let target: RequestTarget
    let encoded: Encoded
    try {
      target = this.#target ?? this.#targetOf(message)
      encoded = encode(encodeData(message), mode, secrets, clock.now())
    } catch (error) {
      return refusal(error)
    }
    const { headers, body } = encoded
    const { signal, flying } = call
    const agent = this.#agents[target.request.protocol as 'http:' | 'https:']
    let judged: Judged
    try {
      const answer = await post({ target, agent, headers, body, timeout, deadlines: this.#deadlines, signal, flying })
      judged = judge(answer, clock.now(), longestRetryAfter)
    } catch (error) {
      judged = failure(error, target.host, this.#target !== undefined)
    }
    if (judged.kind === 'misdirected') return this.#misdirected(judged)
    return judged.kind === 'away' ? this.#away(judged, call) : judged
  }

  #targetOf(message: RawMessage): RequestTarget {
    const { urlOf, guard, headers } = this.#settings
    const url = urlOf(message)
    guard.checkHost(url.hostname)
    return targetOf(url, headers)
  }

  #away({ error, after }: Extract<Judged, { kind: 'away' }>, call: SendCall): Outcome {
    const { fixed, clock } = this.#settings
    if (fixed === undefined) return after === undefined ? { kind: 'failed', error } : { kind: 'failed', error, after }
    if (after !== undefined) this.#notBefore = clock.monotonic() + after
    call.away = error
    return { kind: 'down', error }
  }

  /** The others of the call are tried all the same: it may be this message that asks for what is not there. */
  #misdirected({ error, forGood }: Extract<Judged, { kind: 'misdirected' }>): Outcome {
    if (this.#settings.fixed !== undefined) return { kind: 'down', error }
    return { kind: forGood ? 'rejected' : 'failed', error }
  }
}

/** What is wrong with the message, or with the address it leads to. */
function refusal(thrown: unknown): Outcome {
  const error = asError(thrown)
  if (error instanceof WaybillError && REFUSED.has(error.code)) return { kind: 'rejected', error }
  return outcomeOf(error)
}

const REFUSED = new Set(['BLOCKED_ADDRESS', 'INVALID_OPTION'])

/** Nothing was answered. Certificates are among it: they are the server's, and may be mended. */
function failure(error: unknown, host: string, fixed: boolean): Judged {
  const { code } = error as { code?: unknown }
  // The one destination of all messages may mean another address again; an endpoint somebody chose is refused.
  if (code === 'BLOCKED_ADDRESS' && !fixed) return { kind: 'rejected', error }
  if (code === 'ERR_INVALID_CHAR' || code === 'ERR_HTTP_INVALID_HEADER_VALUE') {
    // The error names the header, not its value.
    return { kind: 'rejected', error: new WaybillError('NOT_SERIALISABLE', 'an attribute cannot stand in a header') }
  }
  return { kind: 'away', error: new Unavailable(`${host}: not reached`, { cause: error }), after: undefined }
}

/** `to: httpSender({ url, secrets })`: see HttpSender. */
export function httpSender(options: HttpSenderOptions): HttpSender {
  return new HttpSender(options)
}

/** So many at a time, in the order they asked. */
export class Slots {
  #free: number
  readonly #waiting: (() => void)[] = []

  constructor(count: number) {
    this.#free = count
  }

  /** Resolves with the way to give it back. */
  async take(): Promise<() => void> {
    if (this.#free > 0) this.#free--
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
    return () => {
      const next = this.#waiting.shift()
      if (next === undefined) this.#free++
      else next()
    }
  }
}
