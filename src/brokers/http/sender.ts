import { Bag, Deadlines } from '../../core/deadlines.ts'
import { asError, encodeData, onAbort, type RawMessage, Unavailable, WaybillError } from '../../core/index.ts'
import { type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import { type Agents, agentsOf } from './connections.ts'
import { type Encoded, encode } from './encoding.ts'
import { Endpoints, type Silence, Slots } from './endpoints.ts'
import {
  type HttpResponse,
  type Judged,
  judge,
  notBefore,
  post,
  type RequestTarget,
  TOO_MANY,
  targetOf,
} from './request.ts'
import { type HttpSenderOptions, type HttpSenderSettings, senderSettings } from './sender-options.ts'

/** One of several messages of a call that go to one endpoint. */
interface Sending {
  readonly message: RawMessage
  readonly target: RequestTarget
  /** Its place in the call. */
  readonly at: number
}

/** What the messages of one call share: once the destination is away, the rest is not tried. */
interface SendCall {
  readonly signal: AbortSignal
  /** Called when it is aborted, one for each of its requests. */
  readonly flying: Bag<(reason: unknown) => void>
  away: unknown
}

/**
 * Events as signed CloudEvents webhooks, one POST each. With one URL, whatever speaks of the server as a whole (no
 * connection, no answer, 429, 502, 503, 504, 520 to 530) is `down`: nobody is charged, the flow pauses and probes, and nothing is
 * sent before the time that a Retry-After names. So is what a wrong address, secret, proxy or route brings (redirects, 400,
 * 401, 403, 404, 405, 409, 501 and the like): a deploy mends it. A message that alone gets such an answer while others arrive is charged by
 * the flow. What speaks of the message (413, 422, 431) is refused for good. With a URL for each message there is no whole: the
 * same then concerns that message alone, and one endpoint which is away or hangs holds back others as little as slots allow
 * (Endpoints).
 */
export class HttpSender implements Publisher {
  readonly name: string
  readonly system = 'http'
  readonly features = {}
  readonly #settings: HttpSenderSettings
  readonly #slots: Slots
  /** Where there is a URL for each message. */
  readonly #endpoints: Endpoints
  readonly #agents: Agents
  readonly #deadlines: Deadlines
  /** Of the one destination, where there is one. */
  readonly #target: RequestTarget | undefined
  #notBefore = 0

  constructor(options: HttpSenderOptions) {
    const settings = senderSettings(options)
    const { concurrency } = settings
    this.name = settings.name
    this.#settings = settings
    this.#slots = new Slots(concurrency)
    this.#endpoints = new Endpoints(concurrency, settings.clock)
    this.#deadlines = new Deadlines(settings.clock)
    this.#target = settings.fixed === undefined ? undefined : targetOf(settings.fixed, settings.headers)
    this.#agents = agentsOf(settings)
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
      return messages.map(() => untried(error))
    }
    const call: SendCall = { signal, flying: new Bag(), away: undefined }
    const outcomes = new Array<Outcome>(messages.length)
    let over = () => {}
    const aborted = new Promise<void>((resolve) => {
      over = resolve
    })
    const forget = onAbort(signal, () => {
      call.away ??= signal.reason
      for (const { value: giveUp } of call.flying.all()) giveUp(signal.reason)
      over()
    })
    const sent =
      this.#target === undefined
        ? this.#each(messages, outcomes, call)
        : this.#all(messages, outcomes, this.#target, call)
    // Some may wait for slots that another call has. They are not waited for: what is known to have arrived is to be said in time.
    await Promise.race([sent, aborted])
    forget()
    return Array.from(outcomes, (outcome) => outcome ?? untried(signal.reason))
  }

  async close(): Promise<void> {
    for (const agent of Object.values(this.#agents)) agent.destroy()
  }

  /** As many at a time as there are slots: each that is had takes one message after the other. */
  async #all(
    messages: readonly RawMessage[],
    outcomes: Outcome[],
    target: RequestTarget,
    call: SendCall,
  ): Promise<void> {
    let next = 0
    const send = async () => {
      const release = await this.#slots.take()
      try {
        while (next < messages.length) {
          const at = next++
          outcomes[at] = await this.#one(messages[at]!, target, call)
        }
      } finally {
        release()
      }
    }
    const senders = Math.min(messages.length, this.#settings.concurrency)
    await Promise.all(Array.from({ length: senders }, send))
  }

  /** By endpoints, so that one holds up another as little as slots allow. */
  async #each(messages: readonly RawMessage[], outcomes: Outcome[], call: SendCall): Promise<void> {
    const groups = new Map<string, Sending[]>()
    messages.forEach((message, at) => {
      try {
        const target = this.#targetOf(message)
        const group = groups.get(target.name)
        if (group === undefined) groups.set(target.name, [{ message, target, at }])
        else group.push({ message, target, at })
      } catch (error) {
        outcomes[at] = refusal(error)
      }
    })
    await Promise.all([...groups.values()].map((group) => this.#toEndpoint(group, outcomes, call)))
  }

  async #toEndpoint(group: readonly Sending[], outcomes: Outcome[], call: SendCall): Promise<void> {
    const endpoints = this.#endpoints
    const endpoint = group[0]!.target
    let next = 0
    const send = async () => {
      const { message, target, at } = group[next++]!
      let silence = endpoints.silence(endpoint)
      if (silence === undefined) {
        const release = await endpoints.take(endpoint)
        try {
          // Another may have found out meanwhile.
          silence = endpoints.silence(endpoint)
          if (silence === undefined) outcomes[at] = await this.#one(message, target, call)
        } finally {
          release()
        }
      }
      if (silence !== undefined) outcomes[at] = notTried(silence)
    }
    const sendAll = async () => {
      while (next < group.length) await send()
    }
    if (endpoints.isSilent(endpoint)) await send()
    await Promise.all(Array.from({ length: Math.min(group.length - next, endpoints.most) }, sendAll))
  }

  async #one(message: RawMessage, target: RequestTarget, call: SendCall): Promise<Outcome> {
    if (call.away !== undefined) return untried(call.away)
    const { mode, secrets, timeout, clock, longestRetryAfter } = this.#settings
    let encoded: Encoded
    try {
      encoded = encode(encodeData(message), mode, secrets, clock.now())
    } catch (error) {
      return refusal(error)
    }
    const { headers, body } = encoded
    const { signal, flying } = call
    const agent = this.#agents[target.request.protocol as 'http:' | 'https:']
    let judged: Judged
    let answer: HttpResponse | undefined
    try {
      answer = await post({ target, agent, headers, body, timeout, deadlines: this.#deadlines, signal, flying })
      judged = judge(answer, clock.now(), longestRetryAfter)
      this.#endpoints.answered(target)
    } catch (error) {
      // Whoever aborts has a reason of his own, and the message is not it.
      if (signal.aborted) return { kind: 'down', error: signal.reason }
      judged = failure(error, target.host, this.#target !== undefined)
    }
    if (judged.kind === 'misdirected') return this.#misdirected(judged)
    if (judged.kind !== 'away') return judged
    if (answer === undefined && this.#target === undefined) this.#endpoints.unanswered(target, judged.error)
    return this.#away(judged, call)
  }

  #targetOf(message: RawMessage): RequestTarget {
    const { urlOf, guard, headers } = this.#settings
    const url = urlOf(message)
    guard.checkHost(url.hostname)
    return targetOf(url, headers)
  }

  #away({ error, after, status }: Extract<Judged, { kind: 'away' }>, call: SendCall): Outcome {
    const { fixed, clock } = this.#settings
    if (fixed === undefined) return { kind: 'failed', error: notBefore(error, after) }
    const pause = status === TOO_MANY ? Math.max(after ?? 0, LEAST_PAUSE) : Math.min(after ?? 0, ASK_AGAIN)
    // Of those that were under way together, each has an answer: the longest pause counts.
    if (pause > 0) this.#notBefore = Math.max(this.#notBefore, clock.monotonic() + pause)
    call.away = error
    return { kind: 'down', error }
  }

  /** The others of the call are tried all the same: it may be this message that asks for what is not there. */
  #misdirected({ error, forGood }: Extract<Judged, { kind: 'misdirected' }>): Outcome {
    if (this.#settings.fixed !== undefined) return { kind: 'down', error }
    return { kind: forGood ? 'rejected' : 'failed', error }
  }
}

/** It was not sent: others have shown that the destination is away. */
function untried(error: unknown): Outcome {
  return { kind: 'down', error, untried: true }
}

/** What is wrong with the message, or with the address it leads to. A URL that is none may be mended by a deploy. */
function refusal(thrown: unknown): Outcome {
  const error = asError(thrown)
  if (error instanceof WaybillError && error.code === 'BLOCKED_ADDRESS') return { kind: 'rejected', error }
  return outcomeOf(error)
}

/** One server of several may say 503 for an hour, and the others be there: so the destination is asked again, in milliseconds. */
const ASK_AGAIN = 60_000
/** Whoever counts requests and does not say when there may be more is left alone for so long, in milliseconds. */
const LEAST_PAUSE = 1000

/** As if it had been: others to the same endpoint were, a moment ago. */
function notTried({ error }: Silence): Outcome {
  return { kind: 'failed', error }
}

/** Nothing was answered. Certificates are among it: they are the server's, and may be mended. */
function failure(error: unknown, host: string, fixed: boolean): Judged {
  const { code } = error as { code?: unknown }
  // A name may mean another address again.
  if (code === 'BLOCKED_ADDRESS' && !fixed) return { kind: 'failed', error }
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
