import {
  type Clock,
  describe,
  errorSummary,
  onAbort,
  Unavailable,
  untilAborted,
  WaybillError,
} from '../../core/index.ts'
import type { AmqpConfirmChannel, AmqpReturned, OpenAmqp, ReconnectingAmqp } from '../../drivers/amqp.ts'
import { REPLY, replyCode, serverSaid } from '../../drivers/amqp-errors.ts'
import type { AmqpContent } from './encoding.ts'

/** A message, and where it is to go. */
export interface AddressedMessage extends AmqpContent {
  readonly exchange: string
  readonly routingKey: string
}

/**
 * What became of one: the server has it (`ok`); no queue wanted it; the server refused it (a queue is full); it can
 * never be sent as it is; or nobody knows (`down`).
 */
export type Sent =
  | { readonly kind: 'ok' }
  | { readonly kind: 'unroutable' | 'refused' | 'invalid' | 'down'; readonly error: unknown }

export interface SenderSettings {
  readonly amqp: ReconnectingAmqp
  readonly where: string
  /** What must be there before the first message: looked at with every new channel. */
  readonly prepare: (open: OpenAmqp) => Promise<void>
  /** How long a confirm may take, in milliseconds. */
  readonly timeout: number
  readonly clock: Clock
}

/** One message on its way. */
interface Unconfirmed {
  readonly outgoing: AddressedMessage
  returned: AmqpReturned | undefined
  settle(sent: Sent): void
}

/** A channel with confirms. It is never repaired: when it has ended, another takes its place. */
interface SendingChannel {
  readonly open: OpenAmqp
  readonly channel: AmqpConfirmChannel
  readonly entries: Set<Unconfirmed>
  /** What the server closed it with. */
  error: unknown
  ended: boolean
}

const OK: Sent = Object.freeze({ kind: 'ok' })

/**
 * Publishes with confirms, as mandatory and persistent, on a channel of its own: many at once, and resolves when the
 * server has said of each that it has it. A return comes before the confirm of the same message, so a message that was
 * returned and then confirmed did not arrive anywhere.
 */
export class Sender {
  readonly #settings: SenderSettings
  #line: Promise<SendingChannel> | undefined
  /** The largest message the server takes, once it has said so. */
  #limit = Number.POSITIVE_INFINITY
  #closed = false

  constructor(settings: SenderSettings) {
    this.#settings = settings
  }

  /** Connects, and finds what must be there. */
  async ready(): Promise<void> {
    await this.#ready()
  }

  async send(items: readonly AddressedMessage[], signal?: AbortSignal): Promise<readonly Sent[]> {
    let line: SendingChannel
    try {
      line = await untilAborted(this.#ready(), signal, () => {
        throw new Unavailable('nobody waits for it any more', { cause: signal!.reason })
      })
      refuseBlocked(line.open)
    } catch (error) {
      return items.map(() => ({ kind: 'down', error }))
    }
    const sent = await this.#sendOn(line, items, signal)
    const limit = sizeLimit(line.error)
    if (limit === undefined || limit >= this.#limit) return sent
    // One was larger than the server takes, and took the channel with it. It is known now; the others go again.
    this.#limit = limit
    const again = items.filter((_, i) => sent[i]!.kind === 'down')
    const second = (await this.send(again, signal))[Symbol.iterator]()
    return sent.map((one) => (one.kind === 'down' ? second.next().value! : one))
  }

  async close(): Promise<void> {
    this.#closed = true
    const line = await this.#line?.catch(() => undefined)
    this.#line = undefined
    if (line !== undefined && !line.ended) await this.#closeChannel(line)
  }

  async #sendOn(
    line: SendingChannel,
    items: readonly AddressedMessage[],
    signal: AbortSignal | undefined,
  ): Promise<readonly Sent[]> {
    const { clock, timeout, where } = this.#settings
    const results: (Sent | undefined)[] = new Array(items.length).fill(undefined)
    const over = new AbortController()
    let waiting = items.length
    items.forEach((outgoing, at) => {
      const settle = (sent: Sent) => {
        if (results[at] !== undefined) return
        results[at] = sent
        if (--waiting === 0) over.abort()
      }
      this.#publish(line, { outgoing, returned: undefined, settle })
    })
    if (waiting > 0) {
      const forget = signal === undefined ? undefined : onAbort(signal, () => over.abort())
      await clock.sleep(timeout, over.signal)
      forget?.()
    }
    // A blocked server confirms when it listens again. One that says nothing without a reason is given up.
    if (waiting > 0 && !signal?.aborted && line.open.blocked === undefined) this.#retire(line)
    const missing = (): Sent => {
      const why = signal?.aborted ? 'nobody waits for it any more' : `${timeout} ms have passed`
      return { kind: 'down', error: new Unavailable(`${where}: no confirm, and ${why}`) }
    }
    return results.map((sent) => {
      if (sent === undefined) return missing()
      return sent.kind === 'down' ? { kind: 'down', error: this.#whyDown(line, sent.error) } : sent
    })
  }

  #publish(line: SendingChannel, entry: Unconfirmed): void {
    const { exchange, routingKey, content, properties } = entry.outgoing
    if (content.length > this.#limit) {
      const text = `a message of ${content.length} bytes is larger than the server takes: ${this.#limit}`
      entry.settle({ kind: 'invalid', error: new WaybillError('TOO_LARGE', text) })
      return
    }
    line.entries.add(entry)
    try {
      const options = { ...properties, mandatory: true, persistent: true }
      line.channel.publish(exchange, routingKey, content, options, (error) => this.#confirmed(line, entry, error))
    } catch (error) {
      line.entries.delete(entry)
      const gone = line.ended || (error as Error).name === 'IllegalOperationError'
      entry.settle({ kind: gone ? 'down' : 'invalid', error: gone ? error : unsendable(error) })
    }
  }

  #confirmed(line: SendingChannel, entry: Unconfirmed, error: unknown): void {
    line.entries.delete(entry)
    const { routingKey, exchange } = entry.outgoing
    const to = `${describe(routingKey)} in exchange ${describe(exchange)}`
    if (entry.returned !== undefined) {
      const { replyCode: code, replyText } = entry.returned.fields
      const text = `no queue takes ${to}: ${replyText} (${code}); bind one, declare it, or set the publisher's option unroutable`
      entry.settle({ kind: 'unroutable', error: new WaybillError('UNROUTABLE', text) })
    } else if (!error) entry.settle(OK)
    else if ((error as Error).message === 'message nacked') {
      const text = `the server refused it for ${to}: a queue is full, or failing`
      entry.settle({ kind: 'refused', error: new WaybillError('REFUSED', text) })
    } else entry.settle({ kind: 'down', error })
  }

  async #ready(): Promise<SendingChannel> {
    if (this.#closed) throw new Unavailable(`${this.#settings.where} was closed`)
    this.#line ??= this.#openLine()
    return await this.#line
  }

  async #openLine(): Promise<SendingChannel> {
    const { amqp, prepare } = this.#settings
    try {
      const open = await amqp.open()
      refuseBlocked(open)
      await prepare(open)
      const channel = await amqp.ask(open, 'to open a channel', open.connection.createConfirmChannel())
      const line: SendingChannel = { open, channel, entries: new Set(), error: undefined, ended: false }
      channel.on('error', (error: unknown) => {
        line.error = error
      })
      channel.on('close', () => {
        line.ended = true
        this.#forget(line)
      })
      channel.on('return', (message: AmqpReturned) => matchReturn(line, message))
      return line
    } catch (error) {
      this.#line = undefined
      throw error
    }
  }

  #retire(line: SendingChannel): void {
    this.#forget(line)
    this.#closeChannel(line)
  }

  #forget(line: SendingChannel): void {
    const current = this.#line
    current?.then(
      (known) => {
        if (known === line && this.#line === current) this.#line = undefined
      },
      () => {},
    )
  }

  async #closeChannel({ channel, open, ended }: SendingChannel): Promise<void> {
    if (ended || open.lost.aborted) return
    const closing = Promise.resolve()
      .then(() => channel.close())
      .catch(() => {})
    // A blocked connection hears nothing, and is not to be ended for it.
    if (open.blocked === undefined) await this.#settings.amqp.ask(open, 'to close a channel', closing).catch(() => {})
  }

  #whyDown(line: SendingChannel, error: unknown): unknown {
    const { where } = this.#settings
    if (line.open.lost.aborted) return line.open.lost.reason
    const cause = line.error ?? error
    const missing = replyCode(cause) === REPLY.notFound
    const advice = missing ? '; create it, or let it be declared with declare: true' : ''
    return new Unavailable(`${where}: the channel was closed: ${serverSaid(cause)}${advice}`, { cause })
  }
}

/** While it is blocked the server hears nothing, so that nothing is asked or sent either. */
function refuseBlocked({ blocked }: OpenAmqp): void {
  if (blocked !== undefined) throw new Unavailable(`RabbitMQ takes no messages at present: ${blocked}`)
}

/** The oldest that it can be: messages alike share their fate. */
function matchReturn(line: SendingChannel, { fields, properties }: AmqpReturned): void {
  const id = idOf(properties)
  for (const entry of line.entries) {
    const { outgoing, returned } = entry
    if (returned !== undefined || outgoing.routingKey !== fields.routingKey || idOf(outgoing.properties) !== id)
      continue
    entry.returned = { fields, properties }
    return
  }
}

function idOf({ messageId, headers }: AmqpContent['properties']): unknown {
  return messageId ?? headers?.['cloudEvents:id']
}

/** What the server says about a message that is too large, and closes the channel. */
function sizeLimit(error: unknown): number | undefined {
  if (replyCode(error) !== REPLY.preconditionFailed) return undefined
  const found = /message size \d+ is larger than (?:configured )?max size (\d+)/.exec((error as Error).message)
  return found === null ? undefined : Number(found[1])
}

/** amqplib says so before anything is sent: a routing key or a header that is too long, a value of no AMQP type. */
function unsendable(error: unknown): WaybillError {
  return new WaybillError('NOT_SERIALISABLE', `AMQP cannot hold it: ${errorSummary(error)}`, { cause: error })
}
