import { type Backoff, type Clock, Unavailable, untilAborted, withDeadline } from '../core/index.ts'
import { accessRefused, connectError, isRefusedConnection, serverSaid } from './amqp-errors.ts'

/** The few methods of amqplib that we call. Whatever has them will do. */

/** What `import amqp from 'amqplib'` gives. */
export interface AmqpClient {
  connect(url: string, socketOptions?: AmqpSocketOptions): Promise<AmqpConnection>
}

/** Options of the socket, such as TLS certificates. */
export interface AmqpSocketOptions {
  /** How long connecting may take, in milliseconds. */
  timeout?: number
  noDelay?: boolean
  keepAlive?: boolean
  clientProperties?: Record<string, unknown>
  /** Destroys the socket: the only way to end a connection whose server has stopped answering. */
  signal?: AbortSignal
}

interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
}

/** The few methods of an amqplib connection that are called. */
export interface AmqpConnection extends Emitter {
  createChannel(): Promise<AmqpChannel>
  createConfirmChannel(): Promise<AmqpConfirmChannel>
  close(): Promise<void>
}

/** The few methods of an amqplib channel that are called. */
export interface AmqpChannel extends Emitter {
  assertExchange(name: string, type: string, options?: { durable?: boolean }): Promise<unknown>
  checkExchange(name: string): Promise<unknown>
  assertQueue(
    name: string,
    options?: { durable?: boolean; arguments?: Record<string, unknown> },
  ): Promise<AmqpQueueState>
  checkQueue(name: string): Promise<AmqpQueueState>
  bindQueue(queue: string, exchange: string, pattern: string): Promise<unknown>
  prefetch(count: number): Promise<unknown>
  /** `null` is given when the server has cancelled the consumer: its queue is gone. */
  consume(
    queue: string,
    onMessage: (message: AmqpDelivery | null) => void,
    options?: { noAck?: boolean; consumerTag?: string },
  ): Promise<unknown>
  cancel(consumerTag: string): Promise<unknown>
  get(queue: string, options?: { noAck?: boolean }): Promise<AmqpDelivery | false>
  ack(message: AmqpTagged, allUpTo?: boolean): void
  nack(message: AmqpTagged, allUpTo?: boolean, requeue?: boolean): void
  close(): Promise<void>
}

/** The few methods of an amqplib confirm channel that are called. */
export interface AmqpConfirmChannel extends AmqpChannel {
  /** `onConfirm` is called with an error when the server refused it, or when the channel has closed before it said. */
  publish(
    exchange: string,
    routingKey: string,
    content: Buffer,
    options: AmqpPublish | undefined,
    onConfirm: (error: unknown) => void,
  ): boolean
}

export interface AmqpQueueState {
  readonly messageCount: number
  readonly consumerCount: number
}

/** All that is needed to ack. */
export interface AmqpTagged {
  readonly fields: { readonly deliveryTag: number }
}

/** A message as amqplib gives it. */
export interface AmqpDelivery extends AmqpTagged {
  readonly content: Buffer
  readonly fields: {
    readonly deliveryTag: number
    readonly redelivered: boolean
    readonly exchange: string
    readonly routingKey: string
  }
  readonly properties: AmqpProperties
}

export interface AmqpReturned {
  readonly fields: { readonly replyCode: number; readonly replyText: string; readonly routingKey: string }
  readonly properties: AmqpProperties
}

/** The properties of a message that are read or written. */
export interface AmqpProperties {
  readonly contentType?: string | undefined
  readonly contentEncoding?: string | undefined
  readonly headers?: Readonly<Record<string, unknown>> | undefined
  readonly priority?: number | undefined
  readonly correlationId?: string | undefined
  readonly replyTo?: string | undefined
  readonly expiration?: string | undefined
  readonly messageId?: string | undefined
  readonly timestamp?: number | undefined
  readonly type?: string | undefined
  readonly appId?: string | undefined
}

export interface AmqpPublish extends Omit<AmqpProperties, 'expiration'> {
  readonly expiration?: string | number | undefined
  readonly mandatory?: boolean
  readonly persistent?: boolean
}

/** Listens for what a connection or channel may say at its end. Without a listener an error would end the process. */
export function onEnd(emitter: Emitter, ended: (reason: unknown) => void): void {
  let said: unknown
  emitter.on('error', (error: unknown) => {
    said ??= error
  })
  emitter.on('close', (error: unknown) => ended(said ?? error))
}

export interface ReconnectingAmqpSettings {
  readonly client: AmqpClient
  /** Nodes of one cluster, tried in turn. */
  readonly urls: readonly string[]
  /** What the server shows for the connection. */
  readonly name: string
  /** How long connecting, and any question, may take, in milliseconds. */
  readonly timeout: number
  /** The pause before the next attempt, after so many that failed. */
  readonly backoff: Backoff
  readonly clock: Clock
}

/** A connection as it is now, and what the server has said about it. */
export interface OpenAmqp {
  readonly connection: AmqpConnection
  /** Aborted when it is gone. The reason says why. */
  readonly lost: AbortSignal
  /** Why the server takes no messages at present (an alarm of memory or disk); `undefined` when it does. */
  readonly blocked: string | undefined
  /** Ends it without asking: for one whose server does not answer. It is lost at once, whatever the client does. */
  cut(): void
}

/**
 * A connection that is opened when it is needed, and again when it was lost: after a pause that grows with every
 * attempt that failed, and that everybody who asks meanwhile shares. Channels are their owners' to rebuild: what was
 * said on a lost connection is never repeated here.
 */
export class ReconnectingAmqp {
  readonly #settings: ReconnectingAmqpSettings
  readonly #closing = new AbortController()
  #current: Promise<OpenAmqp> | undefined
  #failures = 0
  /** Why the last attempt failed, if the server has refused it. */
  #refused: unknown
  /** By the monotonic clock. */
  #notBefore = Number.NEGATIVE_INFINITY
  #attempts = 0

  constructor(settings: ReconnectingAmqpSettings) {
    this.#settings = settings
  }

  /** The connection, once there is one. Rejects with Unavailable when the attempt fails, or on `signal`. */
  async open(signal?: AbortSignal): Promise<OpenAmqp> {
    if (this.#closing.signal.aborted) {
      throw new Unavailable(
        'this broker was stopped, and its connection to RabbitMQ is closed; make another with rabbitmq({ … })',
      )
    }
    this.#current ??= this.#connect()
    if (signal === undefined) return await this.#current
    return await untilAborted(this.#current, signal, () => {
      throw signal.reason
    })
  }

  /**
   * Rejects when the server refuses the user or the virtual host, which no waiting mends. One that is only away is no
   * error here, and is waited for no longer than the first attempt takes.
   */
  async check(signal: AbortSignal): Promise<void> {
    if (this.#failures > 0) {
      if (this.#refused !== undefined) throw accessRefused(this.#refused)
      return
    }
    try {
      await this.open(signal)
    } catch (error) {
      if (isRefusedConnection(error)) throw accessRefused(error)
    }
  }

  /**
   * Asks the server, within the time a question may take. A connection that does not answer is ended, unless it is
   * blocked: then the server is not listening, and will again.
   */
  async ask<T>(open: OpenAmqp, what: string, work: Promise<T>): Promise<T> {
    const { clock, timeout } = this.#settings
    return withDeadline(work, timeout, clock, () => {
      if (open.blocked === undefined) open.cut()
      throw new Unavailable(`RabbitMQ has not responded within ${timeout} ms: ${what}`)
    })
  }

  async close(): Promise<void> {
    if (this.#closing.signal.aborted) return
    this.#closing.abort(new Unavailable('the connection to RabbitMQ was closed'))
    const open = await this.#current?.catch(() => undefined)
    if (open === undefined || open.lost.aborted) return
    const closing = open.connection.close().catch(() => {})
    await this.ask(open, 'to close the connection', closing).catch(() => {})
    // One that is blocked does not hear that either, and its socket would keep the process alive.
    if (open.blocked !== undefined) open.cut()
  }

  async #connect(): Promise<OpenAmqp> {
    const { clock, backoff, urls } = this.#settings
    const { signal } = this.#closing
    const pause = this.#notBefore - clock.monotonic()
    if (pause > 0) await clock.sleep(pause, signal)
    const url = urls[this.#attempts++ % urls.length]!
    try {
      if (signal.aborted) throw signal.reason
      const socket = new AbortController()
      const connection = await this.#attempt(url, socket)
      if (signal.aborted) {
        sever(connection, socket)
        throw signal.reason
      }
      this.#refused = undefined
      return this.#watched(connection, socket)
    } catch (error) {
      this.#current = undefined
      this.#failures++
      const after = backoff(this.#failures)
      this.#notBefore = clock.monotonic() + after
      if (signal.aborted) throw signal.reason
      const failure = connectError(url, error, after)
      this.#refused = isRefusedConnection(failure) ? failure : undefined
      throw failure
    }
  }

  async #attempt(url: string, socket: AbortController): Promise<AmqpConnection> {
    const { client, clock, timeout, name } = this.#settings
    const clientProperties = { connection_name: name }
    const { signal } = socket
    const options = { timeout, noDelay: true, keepAlive: true, clientProperties, signal }
    // Listened to before anything else: one that ends before somebody wants it must not end the process.
    const connecting = client.connect(url, options).then((connection) => {
      connection.on('error', () => {})
      return connection
    })
    // A server that accepts and then says nothing is given up too; what still comes of it is not wanted.
    return withDeadline(connecting, timeout + 1000, clock, () => {
      connecting.then(
        (late) => sever(late, socket),
        () => {},
      )
      socket.abort(GIVEN_UP)
      throw new Unavailable(`no response within ${timeout} ms`)
    })
  }

  #watched(connection: AmqpConnection, socket: AbortController): OpenAmqp {
    const { clock, backoff } = this.#settings
    const lost = new AbortController()
    const cut = () => {
      ended(GIVEN_UP)
      sever(connection, socket)
    }
    const open = { connection, lost: lost.signal, blocked: undefined as string | undefined, cut }
    const current = this.#current
    const since = clock.monotonic()
    connection.on('blocked', (reason: string) => {
      open.blocked = reason || 'no reason given'
    })
    connection.on('unblocked', () => {
      open.blocked = undefined
    })
    const ended = (error: unknown) => {
      if (lost.signal.aborted) return
      if (this.#current === current) this.#current = undefined
      // One that goes as soon as it has come is as good as one that did not come.
      const lived = clock.monotonic() - since
      this.#failures = lived > backoff(this.#failures + 1) ? 1 : this.#failures + 1
      const after = backoff(this.#failures)
      this.#notBefore = clock.monotonic() + after
      const why = error === undefined ? 'it was closed without a reason' : serverSaid(error)
      lost.abort(new Unavailable(`the connection to RabbitMQ is lost: ${why}`, { cause: error, after }))
    }
    onEnd(connection, ended)
    return open
  }
}

const GIVEN_UP = new Error('given up: the server does not respond')

/** Destroys the socket. A client that does not hand our signal to its socket is asked to close, and not waited for. */
function sever(connection: AmqpConnection, socket: AbortController): void {
  let ended = false
  connection.on('close', () => {
    ended = true
  })
  socket.abort(GIVEN_UP)
  setImmediate(() => {
    if (!ended) void (async () => connection.close())().catch(() => {})
  })
}
