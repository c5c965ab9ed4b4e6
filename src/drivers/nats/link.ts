import { randomBytes } from 'node:crypto'
import { onAbort, Unavailable, WaybillError } from '../../core/index.ts'
import {
  isNatsConnection,
  type NatsConnectionLike,
  type NatsLike,
  type NatsMessage,
  type NatsSubscription,
  NoResponders,
  statusOf,
} from './nats.ts'

export interface NatsRequest {
  readonly subject: string
  readonly data: Uint8Array | string
  readonly headers?: Uint8Array
}

/** The answer, or why there is none. `Unavailable`: whether it arrived is unknown. */
export type NatsReply = NatsMessage | Error

export interface LinkOptions {
  /** Where replies come back: `_INBOX` unless the server's permissions say otherwise. */
  readonly inbox: string
  /** How long an answer may take, in milliseconds. */
  readonly timeout: number
}

/**
 * Whether this is the answer that was asked for. Anybody may listen on a subject and answer; what is not accepted is as if
 * it had not come.
 */
export type Accepts = (answer: NatsMessage, at: number) => boolean

/** Questions that were sent together: they share one timer and one promise. */
interface RequestBatch {
  readonly questions: readonly NatsRequest[]
  readonly accepts: Accepts | undefined
  readonly replies: (NatsReply | undefined)[]
  open: number
  done(): void
}

const NOBODY = 503

/**
 * A connection and the replies that come back on it. It outlives reconnections of the client: requests without
 * a reply when the connection broke are rejected with `Unavailable` at once, and those made while it is broken too.
 */
export class NatsLink {
  readonly #connection: NatsConnectionLike
  readonly #options: LinkOptions
  readonly #owned: boolean
  readonly #inbox: string
  readonly #replies: NatsSubscription
  /** By the number that is part of the subjects where their replies come back. */
  readonly #waiting = new Map<string, RequestBatch>()
  readonly #lost = new AbortController()
  readonly #listeners = new Set<(reason: unknown) => void>()
  readonly #refusalListeners = new Set<(subject: string, error: Error) => void>()
  #watching: AsyncIterable<unknown> | undefined
  #broken: Error | undefined
  #next = 0

  constructor(connection: NatsConnectionLike, options: LinkOptions, owned: boolean) {
    this.#connection = connection
    this.#options = options
    this.#owned = owned
    this.#inbox = this.newInbox()
    this.#replies = connection.subscribe(`${this.#inbox}*`, {
      callback: (error, message) => this.#hear(error, message),
    })
    this.#watch().catch((error: unknown) => this.#end(error))
  }

  /** Aborted when the connection is closed for good. While the client reconnects it is not. */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Why nothing can be sent at the moment. */
  get broken(): Error | undefined {
    return this.#lost.signal.aborted ? unavailable(this.#lost.signal.reason) : this.#broken
  }

  /** The largest message the server takes, headers included. */
  get maxPayload(): number {
    return this.#connection.info?.max_payload ?? Number.POSITIVE_INFINITY
  }

  newInbox(): string {
    return `${this.#options.inbox}.${randomBytes(12).toString('hex')}.`
  }

  /** Calls back whenever the connection breaks. Returns the way to stop. */
  onBreak(listener: (reason: unknown) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Calls back when the server refuses what was sent to a subject: that gets no reply. Returns the way to stop. */
  onRefused(listener: (subject: string, error: Error) => void): () => void {
    this.#refusalListeners.add(listener)
    return () => this.#refusalListeners.delete(listener)
  }

  subscribe(subject: string, callback: (error: Error | null, message: NatsMessage) => void): NatsSubscription {
    return this.#connection.subscribe(subject, { callback })
  }

  /** Sends, and nobody knows whether it arrives. */
  send(subject: string, data: Uint8Array | string, reply?: string): void {
    if (this.broken !== undefined) throw this.broken
    this.#connection.publish(subject, data, reply === undefined ? {} : { reply })
  }

  /** One question. Rejects with `NoResponders` or `Unavailable`. */
  async ask(question: NatsRequest, timeout?: number): Promise<NatsMessage> {
    const [answer] = await this.askAll([question], timeout)
    if (answer instanceof Error) throw answer
    return answer!
  }

  /** All of them are sent at once, in order; resolves when each has its answer, or none will come any more. */
  askAll(
    questions: readonly NatsRequest[],
    timeout = this.#options.timeout,
    signal?: AbortSignal,
    accepts?: Accepts,
  ): Promise<NatsReply[]> {
    return new Promise((resolve) => {
      const id = (this.#next++).toString(36)
      const stop = (reason: () => Error) => answerRest(batch, reason)
      const late = () => stop(() => new Unavailable(`NATS has not responded within ${timeout} ms`))
      const aborted = () => stop(() => new Unavailable('nobody waits for the response any more'))
      const timer = setTimeout(late, timeout)
      let forget = () => {}
      const batch: RequestBatch = {
        questions,
        accepts,
        replies: new Array(questions.length).fill(undefined),
        open: questions.length,
        done: () => {
          this.#waiting.delete(id)
          clearTimeout(timer)
          forget()
          resolve(batch.replies as NatsReply[])
        },
      }
      if (questions.length === 0) return batch.done()
      this.#waiting.set(id, batch)
      const inbox = `${this.#inbox}${id}-`
      for (let at = 0; at < questions.length; at++) this.#send(batch, at, inbox + at)
      if (signal !== undefined) forget = onAbort(signal, aborted)
    })
  }

  async close(): Promise<void> {
    this.#end(new Unavailable('the connection to NATS was closed'))
    if (this.#owned && !this.#connection.isClosed()) await this.#connection.close().catch(() => {})
  }

  #send(batch: RequestBatch, at: number, reply: string): void {
    const { subject, data, headers } = batch.questions[at]!
    try {
      if (this.broken !== undefined) throw this.broken
      this.#connection.publish(
        subject,
        data,
        headers === undefined ? { reply } : { reply, headers: { encode: () => headers } },
      )
    } catch (error) {
      answer(batch, at, unavailable(error))
    }
  }

  #hear(error: Error | null, message: NatsMessage): void {
    if (error !== null) {
      // The server refuses the inbox itself.
      this.#break(forbidden(error))
      return
    }
    const { subject } = message
    const dash = subject.indexOf('-', this.#inbox.length)
    const batch = this.#waiting.get(subject.slice(this.#inbox.length, dash))
    const at = Number(subject.slice(dash + 1))
    const question = batch?.questions[at]
    if (batch === undefined || question === undefined) return
    const nobody = message.data.length === 0 && statusOf(message).code === NOBODY
    if (nobody) answer(batch, at, new NoResponders(question.subject))
    else if (batch.replies[at] === undefined && batch.accepts?.(message, at) !== false) answer(batch, at, message)
  }

  async #watch(): Promise<void> {
    const statuses = this.#connection.status()
    this.#watching = statuses
    for await (const { type, error } of statuses) {
      if (this.#lost.signal.aborted) return
      if (type === 'disconnect') this.#break(new Unavailable('the connection to NATS is broken'))
      else if (type === 'reconnect') this.#broken = undefined
      else if (type === 'error') this.#refused(error)
    }
    const reason = this.#connection.isClosed() ? await this.#connection.closed() : undefined
    this.#end(new Unavailable('the connection to NATS was closed', { cause: reason }))
  }

  /** A subject we may not publish to gets no answer, only this. */
  #refused(error: unknown): void {
    const { operation, subject } = error as { operation?: string; subject?: string }
    if (operation !== 'publish' || subject === undefined) return
    for (const listener of [...this.#refusalListeners]) listener(subject, forbidden(error))
    for (const batch of [...this.#waiting.values()]) {
      answerRest(
        batch,
        () => forbidden(error),
        (question) => question.subject === subject,
      )
    }
  }

  #break(reason: Error): void {
    this.#broken = reason
    for (const batch of [...this.#waiting.values()]) answerRest(batch, () => reason)
    for (const listener of [...this.#listeners]) listener(reason)
  }

  #end(reason: unknown): void {
    if (this.#lost.signal.aborted) return
    this.#lost.abort(reason)
    this.#break(unavailable(reason))
    const { stop } = (this.#watching ?? {}) as { stop?: () => void }
    stop?.call(this.#watching)
    if (!this.#connection.isClosed()) this.#replies.unsubscribe()
  }
}

/** Connections as they are needed: those of a function are made anew, and are ours; one that was given is shared. */
export class NatsClient {
  readonly #given: NatsLike
  readonly #options: LinkOptions
  #shared: Promise<NatsLink> | undefined
  #closed = false

  constructor(given: NatsLike, options: LinkOptions) {
    this.#given = given
    this.#options = options
  }

  async connect(): Promise<NatsLink> {
    let connection: NatsConnectionLike
    const owned = typeof this.#given === 'function'
    try {
      connection = typeof this.#given === 'function' ? await this.#given() : this.#given
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      throw new Unavailable(`cannot connect to NATS: ${message}`, { cause: error })
    }
    if (!isNatsConnection(connection)) {
      throw new WaybillError('INVALID_OPTION', 'nats: connection: the function must return a NATS connection')
    }
    if (!connection.isClosed()) return new NatsLink(connection, this.#options, owned)
    const what = 'the connection to NATS is closed for good; give a function that connects, so that another can be made'
    throw new Unavailable(what)
  }

  /** One that is opened when it is first needed, and again when it was lost. */
  async shared(): Promise<NatsLink> {
    if (this.#closed) throw new Unavailable('the connection to NATS was closed')
    const known = this.#shared
    if (known !== undefined && !(await known).lost.aborted) return await known
    // Whoever else found it lost has opened another meanwhile.
    if (this.#shared === known || this.#shared === undefined) this.#shared = this.#open()
    return await this.#shared
  }

  #open(): Promise<NatsLink> {
    const opening = this.connect()
    opening.catch(() => {
      if (this.#shared === opening) this.#shared = undefined
    })
    return opening
  }

  /** Ends the shared one. Others are closed by whoever asked for them. */
  async close(): Promise<void> {
    this.#closed = true
    const known = this.#shared
    this.#shared = undefined
    await (await known?.catch(() => undefined))?.close()
  }
}

/** The first answer counts. */
function answer(batch: RequestBatch, at: number, given: NatsReply): void {
  if (batch.replies[at] !== undefined) return
  batch.replies[at] = given
  batch.open--
  if (batch.open === 0) batch.done()
}

function answerRest(
  batch: RequestBatch,
  reason: () => Error,
  which: (question: NatsRequest) => boolean = () => true,
): void {
  for (let at = 0; at < batch.questions.length; at++) {
    if (batch.replies[at] === undefined && which(batch.questions[at]!)) answer(batch, at, reason())
  }
}

function unavailable(error: unknown): Error {
  if (error instanceof WaybillError) return error
  const message = error instanceof Error ? error.message : String(error)
  return new Unavailable(`the connection to NATS failed: ${message}`, { cause: error })
}

function forbidden(error: unknown): Error {
  const message = error instanceof Error ? error.message : String(error)
  return new WaybillError('FORBIDDEN', `NATS: ${message}`, { cause: error })
}
