import { Unavailable, withDeadline } from '../../core/index.ts'
import type { NatsMessage, NatsSubscription } from '../../drivers/nats/nats.ts'
import type { JetStreamApi } from './api.ts'
import type { GroupSettings } from './member.ts'
import { NANOSECONDS } from './setup.ts'

export interface ReaderEvents {
  /** A message, ours from now on. `asked` is when it was asked for: it was delivered then or later. */
  readonly onMessage: (message: NatsMessage, asked: number) => void
  /** A request is over; `error` says why it failed, `what` that the consumer may be gone, or the server does not answer. */
  readonly onEnd: (error?: unknown, what?: Trouble) => void
}

export type Trouble = 'gone' | 'silent' | undefined

/** A request for messages that is under way. */
interface Pull {
  readonly token: string
  readonly asked: number
  readonly count: number
  left: number
  readonly timer: NodeJS.Timeout
}

/** At most so many are asked for at once. */
const AT_ONCE = 1000

/**
 * Asks for messages, one request at a time, as many as there is demand for. A request goes on when whoever wanted it has
 * stopped waiting: what it brings is ours, and there for the next who asks.
 */
export class PullReader {
  readonly #settings: GroupSettings
  readonly #api: JetStreamApi
  readonly #events: ReaderEvents
  readonly #inbox: string
  readonly #messages: NatsSubscription
  readonly #unlisten: () => void
  /** How long the server keeps a request, in milliseconds. */
  readonly #expires: number
  #pull: Pull | undefined
  #stopped = false
  #next = 0
  /** The last request brought as many as were asked for. */
  cameFull = false
  /** The last one did not fit into the bytes asked for: ask for it alone, however large. */
  #alone = false
  #wanted = { count: 1, bytes: Number.POSITIVE_INFINITY }

  constructor(settings: GroupSettings, api: JetStreamApi, expires: number, events: ReaderEvents) {
    this.#settings = settings
    this.#api = api
    this.#events = events
    this.#expires = Math.max(1, Math.round(expires))
    this.#inbox = api.link.newInbox()
    this.#messages = api.link.subscribe(`${this.#inbox}*`, (error, message) => {
      if (error === null) this.#hear(message)
      else this.#end(error)
    })
    this.#unlisten = api.link.onBreak((reason) => this.#end(reason))
  }

  /** Sees to it that a request is under way, for so many, or for as many as the last time. */
  want(wanted = this.#wanted): void {
    this.#wanted = wanted
    if (this.#pull !== undefined || this.#stopped) return
    const { stream, group, timeout, clock } = this.#settings
    const count = this.#alone ? 1 : Math.max(1, Math.min(wanted.count, AT_ONCE))
    const token = (this.#next++).toString(36)
    const silent = new Unavailable(`NATS has been silent for ${this.#expires + timeout} ms`)
    const timer = setTimeout(() => this.#end(silent, 'silent'), this.#expires + timeout)
    this.#pull = { token, asked: clock.monotonic(), count, left: count, timer }
    const limited = !this.#alone && Number.isFinite(wanted.bytes) && wanted.bytes < 2 ** 31
    const body = {
      batch: count,
      expires: this.#expires * NANOSECONDS,
      ...(limited ? { max_bytes: Math.max(1, Math.floor(wanted.bytes)) } : {}),
    }
    try {
      const subject = this.#api.subject(`CONSUMER.MSG.NEXT.${stream}.${group}`)
      this.#api.link.send(subject, JSON.stringify(body), this.#inbox + token)
    } catch (error) {
      this.#end(error)
    }
  }

  /** Asks for nothing more. Whatever is on its way is here when this resolves, or the server did not answer in time. */
  async stop(): Promise<void> {
    this.#stopped = true
    const { timeout, clock } = this.#settings
    if (this.#api.link.broken === undefined) {
      await withDeadline(
        this.#messages.drain().catch(() => {}),
        timeout,
        clock,
        () => {},
      )
    } else if (!this.#api.link.lost.aborted) this.#messages.unsubscribe()
    clearTimeout(this.#pull?.timer)
    this.#unlisten()
  }

  #hear(message: NatsMessage): void {
    // A message has the subject it was published to; what the server says of a request has that request's.
    if (message.reply) {
      this.#alone = false
      const current = this.#pull
      // One of an earlier request, that we had given up, is as good.
      this.#events.onMessage(message, current?.asked ?? this.#settings.clock.monotonic() - this.#expires)
      if (current === undefined) return
      current.left--
      if (current.left === 0) this.#end()
    } else if (message.subject === this.#inbox + this.#pull?.token) {
      const { code = 0, description = '' } = message.headers ?? {}
      if (code >= 400) this.#conclude(code, description)
    }
  }

  /** How the server ends a request. */
  #conclude(code: number, description: string): void {
    const said = description.toLowerCase()
    if (code === 404 || code === 408) this.#end()
    else if (code === 409 && said.includes('maxbytes')) {
      // What has come so far is what fits.
      this.#alone = this.#pull!.left === this.#pull!.count
      this.#end()
    } else if (code === 503 || (code === 409 && said.includes('deleted'))) {
      this.#end(new Unavailable(`NATS: ${description || 'nobody responds for the consumer'} (${code})`), 'gone')
    } else this.#end(new Unavailable(`NATS: ${description} (${code})`))
  }

  #end(error?: unknown, what?: Trouble): void {
    if (this.#pull === undefined) return
    clearTimeout(this.#pull.timer)
    this.cameFull = this.#pull.left === 0
    this.#pull = undefined
    this.#events.onEnd(error, what)
  }
}
