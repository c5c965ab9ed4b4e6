import { Unavailable, withDeadline } from '../../core/index.ts'
import { type NatsMessage, type NatsSubscription, statusOf } from '../../drivers/nats/nats.ts'
import type { ConsumerConfig, JetStreamApi } from './api.ts'
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
  timer: NodeJS.Timeout
}

/** What one request may ask for, at most: so many, so many bytes, and for so many milliseconds. */
export interface PullLimits {
  readonly count: number
  readonly bytes: number
  readonly expires: number
}

/** How long after its time the server may still say how a request has ended, in milliseconds. */
const OVERDUE = 100

/** At most so many are asked for at once. */
const AT_ONCE = 1000

/** Whoever made the consumer may have set limits of its own: the server refuses every request above them. */
export function pullLimits({ max_batch, max_bytes, max_expires }: ConsumerConfig, expires: number): PullLimits {
  return {
    count: Math.min(AT_ONCE, max_batch || AT_ONCE),
    bytes: max_bytes || Number.POSITIVE_INFINITY,
    expires: Math.min(expires, max_expires ? max_expires / NANOSECONDS : expires),
  }
}

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
  readonly #unlisten: readonly (() => void)[]
  /** Where messages are asked for. */
  readonly #subject: string
  /** How long the server keeps a request, in milliseconds. */
  readonly #expires: number
  readonly #limits: PullLimits
  #pull: Pull | undefined
  #stopped = false
  #next = 0
  /** The last request brought as many as were asked for. */
  cameFull = false
  /** The last one did not fit into the bytes asked for: ask for it alone, however large. */
  #alone = false
  #wanted = { count: 1, bytes: Number.POSITIVE_INFINITY }

  constructor(settings: GroupSettings, api: JetStreamApi, limits: PullLimits, events: ReaderEvents) {
    this.#settings = settings
    this.#api = api
    this.#events = events
    this.#expires = Math.max(1, Math.floor(limits.expires))
    this.#limits = limits
    this.#inbox = api.link.newInbox()
    this.#messages = api.link.subscribe(`${this.#inbox}*`, (error, message) => {
      if (error === null) this.#hear(message)
      else this.#end(error)
    })
    this.#subject = api.subject(`CONSUMER.MSG.NEXT.${settings.stream}.${settings.group}`)
    this.#unlisten = [
      api.link.onBreak((reason) => this.#end(reason)),
      api.link.onRefused((subject, error) => subject === this.#subject && this.#end(error)),
    ]
  }

  /** Sees to it that a request is under way, for so many, or for as many as the last time. */
  want(wanted = this.#wanted): void {
    this.#wanted = wanted
    if (this.#pull !== undefined || this.#stopped) return
    const { clock } = this.#settings
    const count = this.#alone ? 1 : Math.max(1, Math.min(wanted.count, this.#limits.count))
    const token = (this.#next++).toString(36)
    const timer = setTimeout(() => this.#overdue(), this.#expires + OVERDUE)
    this.#pull = { token, asked: clock.monotonic(), count, left: count, timer }
    const bytes = Math.min(wanted.bytes, this.#limits.bytes)
    const limited = !this.#alone && bytes < 2 ** 31
    const body = {
      batch: count,
      expires: this.#expires * NANOSECONDS,
      ...(limited ? { max_bytes: Math.max(1, Math.floor(bytes)) } : {}),
    }
    try {
      this.#api.link.send(this.#subject, JSON.stringify(body), this.#inbox + token)
    } catch (error) {
      this.#end(error)
    }
  }

  /**
   * The server says how a request ends, unless a message fills it to the last byte: some versions end it then without a
   * word. One that has brought something is over when its time is; one that has brought nothing may be waited for in vain.
   */
  #overdue(): void {
    const pull = this.#pull!
    if (pull.left < pull.count) {
      this.#end()
      return
    }
    const { timeout } = this.#settings
    const silent = new Unavailable(`NATS has been silent for ${this.#expires + timeout} ms`)
    pull.timer = setTimeout(() => this.#end(silent, 'silent'), Math.max(0, timeout - OVERDUE))
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
    for (const forget of this.#unlisten) forget()
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
      const { code, description } = statusOf(message)
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
