/** The few methods of amqplib that we call. Whatever has them will do. */

/** What `import amqp from 'amqplib'` gives. */
export interface AmqpClient {
  connect(url: string, socketOptions?: AmqpSocketOptions): Promise<AmqpConnection>
}

export interface AmqpSocketOptions {
  /** How long connecting may take, in milliseconds. */
  timeout?: number
  noDelay?: boolean
  keepAlive?: boolean
  clientProperties?: Record<string, unknown>
}

interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
}

export interface AmqpConnection extends Emitter {
  createChannel(): Promise<AmqpChannel>
  createConfirmChannel(): Promise<AmqpConfirmChannel>
  close(): Promise<void>
  /** What lies beneath: the only way to end a connection whose server has stopped answering. */
  readonly connection?: unknown
}

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

/** AMQP's reply codes that we tell apart. */
export const REPLY = { accessRefused: 403, notFound: 404, preconditionFailed: 406, notAllowed: 530 } as const

/** The reply code of an error the server has closed a channel or a connection with. */
export function replyCode(error: unknown): number | undefined {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'number' ? code : undefined
}

/** What the server said when it closed a channel: names and settings, never a message. */
export function serverSaid(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  return text.replace(/^.*with message /s, '').slice(0, 300)
}

/** Listens for what a connection or channel may say at its end. Without a listener an error would end the process. */
export function onEnd(emitter: Emitter, ended: (reason: unknown) => void): void {
  let said: unknown
  emitter.on('error', (error: unknown) => {
    said ??= error
  })
  emitter.on('close', (error: unknown) => ended(said ?? error))
}
