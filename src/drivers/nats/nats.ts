import { describe, WaybillError } from '../../core/index.ts'
import { has } from '../has.ts'

/**
 * What we call of a NATS connection, and nothing else. JetStream itself is spoken by us: its requests are subjects and
 * JSON, so a connection of `@nats-io/transport-node` is all that is needed (one of `@nats-io/nats-core` over
 * WebSockets, or of `nats` 2, has the same methods).
 */
export interface NatsConnectionLike {
  /** What the server says of itself; absent while there is no connection. */
  readonly info?: { readonly max_payload: number; readonly version?: string } | undefined
  publish(subject: string, payload?: Uint8Array | string, options?: NatsPublishOptions): void
  subscribe(subject: string, options: NatsSubscribeOptions): NatsSubscription
  /** Yields `disconnect`, `reconnect`, `error` and `close`. */
  status(): AsyncIterable<NatsStatus>
  closed(): Promise<unknown>
  isClosed(): boolean
  close(): Promise<void>
}

export interface NatsPublishOptions {
  readonly reply?: string
  /** The client asks nothing of them but their bytes: `encode()`. */
  readonly headers?: object
}

export interface NatsSubscribeOptions {
  readonly callback: (error: Error | null, message: NatsMessage) => void
}

export interface NatsSubscription {
  unsubscribe(): void
  /** Resolves when the server sends no more and all it has sent is here. */
  drain(): Promise<void>
}

export interface NatsMessage {
  readonly subject: string
  readonly data: Uint8Array
  readonly reply?: string
  readonly headers?: NatsHeaders
  /** As the client keeps what it has received: headers and data, and how long the headers are. */
  readonly _rdata?: unknown
  readonly _msg?: { readonly hdr?: unknown }
}

/** Names with their values, and the number some messages of the server have in place of data: 503, 408, … */
export interface NatsHeaders extends Iterable<[string, string[]]> {
  readonly code: number
  readonly description: string
}

export interface NatsStatus {
  readonly type: string
  readonly error?: unknown
}

/** A connection, which stays its owner's; or how to make one, and then those made are ours. */
export type NatsLike = NatsConnectionLike | (() => NatsConnectionLike | Promise<NatsConnectionLike>)

export function isNatsConnection(given: unknown): given is NatsConnectionLike {
  return has(given, 'publish', 'subscribe', 'status', 'closed', 'isClosed', 'close')
}

export function checkNats(where: string, given: unknown): NatsLike {
  if (typeof given === 'function' || isNatsConnection(given)) return given as NatsLike
  throw new WaybillError(
    'INVALID_OPTION',
    `${where}: ${describe(given)} is no NATS connection; give one of @nats-io/transport-node, or a function that makes one: ` +
      "() => connect({ servers: 'nats://…' })",
  )
}

/** JetStream refused a request: nothing was done. `number` is its error code: 10059 for a stream that is not there, … */
export class JetStreamError extends WaybillError {
  readonly number: number

  constructor(number: number, description: string) {
    super('JETSTREAM_ERROR', `${description} (JetStream error ${number})`)
    this.name = 'JetStreamError'
    this.number = number
  }
}

/** Nobody listens on the subject of a request: no JetStream, no such stream, or none of it at the moment. */
export class NoResponders extends WaybillError {
  /** Somebody does, who is not JetStream. */
  readonly foreign: boolean

  constructor(subject: string, foreign = false) {
    super(
      'NO_RESPONDERS',
      foreign ? `it is not JetStream that responds on ${subject}` : `nobody responds on ${subject}`,
    )
    this.name = 'NoResponders'
    this.foreign = foreign
  }
}

/** Headers as the wire has them. Values must be free of line breaks: they would end the header. */
export function headerBytes(headers: Iterable<readonly [string, string]>): Uint8Array {
  let text = 'NATS/1.0\r\n'
  for (const [name, value] of headers) {
    if (hasBreak(value) || !isName(name)) {
      throw new WaybillError(
        'NOT_SERIALISABLE',
        `header ${describe(name)}: a name has no colon, and neither name nor value a line break`,
      )
    }
    text += `${name}: ${value}\r\n`
  }
  return Buffer.from(`${text}\r\n`)
}

/** As others wrote it, in a form that can be written: a line break in a value is a space, and a name that is none is left out. */
export function writableHeaders(headers: Iterable<readonly [string, string]>): [string, string][] {
  const writable: [string, string][] = []
  for (const [name, value] of headers)
    if (isName(name)) writable.push([name, hasBreak(value) ? unbroken(value) : value])
  return writable
}

function unbroken(text: string): string {
  return text.replace(/[\r\n]+/g, ' ')
}

function hasBreak(text: string): boolean {
  return text.includes('\n') || text.includes('\r')
}

// Names are few and come with every message: each is examined once, until there are more than anybody means.
const names = new Set<string>()

function isName(name: string): boolean {
  if (names.has(name)) return true
  if (name === '' || name.includes(':') || hasBreak(name)) return false
  if (names.size < 1000 && name.length < 64) names.add(name)
  return true
}

/**
 * Headers by name; of one that occurs twice, the last. The client makes a map of lists and examines every letter of
 * every name, which costs more than everything else that is done with a message. So they are read from the bytes it has
 * received, where it keeps them as all its versions do; where it does not, by asking it.
 */
export function headerRecord(message: ReceivedHeaders): Record<string, string> {
  const record: Record<string, string> = {}
  const text = headerText(message)
  if (text === undefined) for (const [name, value] of headersOfClient(message)) put(record, name, value)
  else eachLine(text, (name, value) => put(record, name, value))
  return record
}

/**
 * Name and value by turns; one that occurs twice comes twice. Read from the bytes as well: the client throws for a name or
 * a value it would not write itself, and others write them.
 */
export function headerEntries(message: ReceivedHeaders): [string, string][] {
  const text = headerText(message)
  if (text === undefined) return headersOfClient(message)
  const entries: [string, string][] = []
  eachLine(text, (name, value) => entries.push([name, value]))
  return entries
}

/** The server's number of a message that has no data: 503, 408, … */
export function statusOf(message: Pick<NatsMessage, 'headers'>): { code: number; description: string } {
  const { code = 0, description = '' } = readable(message) ?? {}
  return { code, description }
}

type ReceivedHeaders = Pick<NatsMessage, 'headers' | '_rdata' | '_msg'>

const HEADER_START = 'NATS/1.0\r\n'

function headerText({ _rdata: bytes, _msg: parts }: ReceivedHeaders): string | undefined {
  const length = parts?.hdr
  if (!(bytes instanceof Uint8Array) || typeof length !== 'number' || length < HEADER_START.length) return undefined
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, Math.min(length, bytes.length)).toString()
  return text.startsWith(HEADER_START) && text.endsWith('\r\n\r\n') ? text : undefined
}

function eachLine(text: string, line: (name: string, value: string) => void): void {
  for (let from = HEADER_START.length, end = 0; end >= 0; from = end + 2) {
    end = text.indexOf('\r\n', from)
    const colon = text.indexOf(':', from)
    if (colon < from || colon >= end) continue
    line(text.slice(from, colon), text.slice(colon + 1, end).trim())
  }
}

function headersOfClient(message: ReceivedHeaders): [string, string][] {
  const entries: [string, string][] = []
  for (const [name, values] of readable(message) ?? []) for (const value of [values].flat()) entries.push([name, value])
  return entries
}

/** The client throws here for what it would not write. An error in its callback would end the connection. */
function readable(message: Pick<NatsMessage, 'headers'>): NatsHeaders | undefined {
  try {
    return message.headers
  } catch {
    return undefined
  }
}

function put(record: Record<string, string>, name: string, value: string): void {
  // An object without a prototype would be slower to everybody who reads it; this is all it would be good for.
  if (name !== '__proto__') record[name] = value
}
