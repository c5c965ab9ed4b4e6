import { toUnambiguous } from '../../cloudevents/binary.ts'
import { contentMode, fromBinary, fromStructured } from '../../cloudevents/index.ts'
import { describe, type ExtensionValue, Message, type RawMessage, WaybillError, warnOnce } from '../../core/index.ts'
import type { AmqpDelivery, AmqpProperties } from '../../drivers/amqp.ts'

/** A message as AMQP has it: what is published, besides where to. */
export interface AmqpContent {
  readonly properties: AmqpProperties
  readonly content: Buffer
}

/** A message as properties and body. What it throws refuses the message for good. */
export type RabbitmqEncode = (message: RawMessage) => AmqpContent

/** A message from a delivery. What it throws sends the delivery to the dead letters, alone. */
export type RabbitmqDecode = (delivery: AmqpDelivery) => RawMessage

const PREFIX = 'cloudEvents:'
const HTTP_PREFIX = 'ce-'
/** AMQP's short text. */
const SHORT = 255
/** amqplib has so much room for headers, and RabbitMQ takes no more than a frame (128 kB). */
const HEADER_BYTES = 60_000

/** Headers beside those of CloudEvents, for consumers that know nothing of them. */
const VERSION = 'event_version'
const TRACE = ['traceparent', 'tracestate'] as const

/**
 * CloudEvents over AMQP in binary mode: attributes in headers, data as the body. Beside them stand what others look
 * for: the id and type as properties, `event_version`, and the trace context under its own names.
 */
export function encode(message: RawMessage): AmqpContent {
  const { headers: texts, body } = toUnambiguous(message, PREFIX)
  const { 'content-type': contentType, ...rest } = texts
  const headers: Record<string, string | number> = rest
  headers[VERSION] = message.version
  for (const name of TRACE) {
    const value = message.extensions[name]
    if (typeof value === 'string') headers[name] = value
  }
  checkHeaders(message, headers, contentType)
  const content = typeof body === 'string' ? Buffer.from(body) : bufferOf(body)
  const properties: AmqpProperties = {
    contentType,
    headers,
    messageId: shortOrNone(message.id),
    type: shortOrNone(message.type),
  }
  return { properties, content }
}

function checkHeaders(message: RawMessage, headers: Record<string, string | number>, type: string | undefined): void {
  let length = 0
  for (const name in headers) length += name.length + 6 + String(headers[name]).length
  // Counting bytes costs more than this, and is seldom needed: a character has three at most.
  const bytes = length * 3 > HEADER_BYTES ? bytesOf(headers) : 0
  if (bytes > HEADER_BYTES) {
    const text = `${message}: its attributes take ${bytes} bytes, and headers have room for ${HEADER_BYTES}`
    throw new WaybillError('TOO_LARGE', text)
  }
  if (type !== undefined && Buffer.byteLength(type) > SHORT) {
    throw new WaybillError('TOO_LARGE', `${message}: its datacontenttype is longer than ${SHORT} bytes`)
  }
}

function bytesOf(headers: Record<string, string | number>): number {
  let bytes = 0
  for (const name in headers) bytes += name.length + 6 + Buffer.byteLength(String(headers[name]))
  return bytes
}

function shortOrNone(text: string): string | undefined {
  // Most are short, and need no counting.
  return text.length <= 63 || Buffer.byteLength(text) <= SHORT ? text : undefined
}

function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/**
 * Binary or structured CloudEvents, or what a producer that knows nothing of them sends: the type is the property
 * `type` or else the routing key, the id is `messageId`, the version is the header `event_version`, 1 when
 * that is absent or no whole number.
 */
export function decode({ fields, properties, content }: AmqpDelivery): RawMessage {
  const headers = properties.headers ?? {}
  const contentType = properties.contentType ?? contentTypeOf(headers)
  const mode = contentMode(contentType)
  if (mode === 'structured') return fromStructured(content)
  if (mode === 'batch') {
    throw new WaybillError('MALFORMED_MESSAGE', 'it is a batch of events; publish them one by one')
  }
  if (mode === 'unknown') {
    const text = `${contentType} is a format of events that is not read; send JSON`
    throw new WaybillError('MALFORMED_MESSAGE', text)
  }
  const prefix = prefixOf(headers)
  if (prefix !== undefined) return binary(headers, content, prefix, contentType)
  return plain(fields, properties, headers, content)
}

/** Where senders that know only HTTP's binding write it. */
function contentTypeOf(headers: Readonly<Record<string, unknown>>): string | undefined {
  const name = Object.keys(headers).find((one) => one.toLowerCase() === 'content-type')
  const value = name === undefined ? undefined : headers[name]
  return typeof value === 'string' ? value : undefined
}

/** What the headers of an event begin with: as AMQP's binding has it, or as HTTP's, which some SDKs use everywhere. */
function prefixOf(headers: Readonly<Record<string, unknown>>): string | undefined {
  if (headers[`${PREFIX}specversion`] !== undefined) return PREFIX
  for (const name in headers) {
    if (/^cloudevents[:_]specversion$/i.test(name)) return PREFIX
    if (/^ce-specversion$/i.test(name)) return HTTP_PREFIX
  }
  return undefined
}

function binary(
  given: Readonly<Record<string, unknown>>,
  content: Buffer,
  prefix: string,
  contentType: string | undefined,
): RawMessage {
  const { headers, bytes } = withoutNative(given, prefix)
  const message = fromBinary(headers, content, prefix, prefix === HTTP_PREFIX, contentType)
  const extensions = plainExtensions(headers, message.extensions)
  return added(message, bytes === undefined ? extensions : { ...bytes, ...extensions })
}

/** Attributes that are text, whatever a sender made of them. */
const TEXTUAL =
  /^(specversion|id|source|type|subject|time|datacontenttype|dataschema|eventversion|partitionkey|tenantid|correlationid|causationid|trace.*)$/

/** AMQP has types of its own for times and bytes. Text is what other protocols have of a time; bytes stay bytes. */
function withoutNative(given: Readonly<Record<string, unknown>>, prefix: string) {
  let headers = given
  let bytes: Record<string, Uint8Array> | undefined
  for (const name in given) {
    const value = given[name]
    if (typeof value !== 'object' || value === null || name.length <= prefix.length) continue
    const attribute = name.slice(prefix.length).toLowerCase()
    if (value instanceof Uint8Array) {
      if (TEXTUAL.test(attribute) || !/^(cloudevents[:_]|ce-)/i.test(name)) continue
      const { [name]: _, ...others } = headers
      headers = others
      bytes = { ...bytes, [attribute]: value }
    } else if ('!' in value && value['!'] === 'timestamp' && 'value' in value) {
      const time = timeOf(value.value)
      if (time !== undefined) headers = { ...headers, [name]: time }
    }
  }
  return { headers, bytes }
}

/** Of whole seconds. Some write milliseconds: a year of more than four digits is no time. */
function timeOf(seconds: unknown): string | undefined {
  const time = new Date(Number(seconds) * 1000)
  const year = time.getUTCFullYear()
  return year >= 0 && year <= 9999 ? time.toISOString() : undefined
}

function plain(
  { exchange, routingKey }: AmqpDelivery['fields'],
  { messageId, type, timestamp, contentType, appId }: AmqpProperties,
  headers: Readonly<Record<string, unknown>>,
  content: Buffer,
): RawMessage {
  if (messageId === undefined || messageId === '') {
    const advice = 'set the property messageId, send CloudEvents, or give decode'
    throw new WaybillError('MALFORMED_MESSAGE', `it has no id, so nobody could tell it from its duplicate; ${advice}`)
  }
  const eventType = type || original(headers, 'x-waybill-routing-key') || routingKey
  if (eventType === '') {
    throw new WaybillError('MALFORMED_MESSAGE', 'it has no type: neither the property type nor a routing key')
  }
  const source = appId || `/rabbitmq/${original(headers, 'x-waybill-exchange') ?? exchange}`
  const time = timestamp === undefined ? undefined : timeOf(timestamp)
  const extensions = plainExtensions(headers, {})
  return new Message(
    { id: messageId, source, type: eventType, time, datacontenttype: contentType, extensions },
    content,
    'raw',
  )
}

/** Where it came from before we sent it to its retry. */
function original(headers: Readonly<Record<string, unknown>>, name: string): string | undefined {
  const value = headers[name]
  return typeof value === 'string' ? value : undefined
}

/** What plain headers say that the message itself does not. */
function plainExtensions(
  headers: Readonly<Record<string, unknown>>,
  known: RawMessage['extensions'],
): Record<string, ExtensionValue> | undefined {
  let found: Record<string, ExtensionValue> | undefined
  if (headers[VERSION] !== undefined && headers[VERSION] !== null && known['eventversion'] === undefined) {
    const version = versionOf(headers[VERSION])
    if (version !== 1) found = { eventversion: version }
  }
  for (const name of TRACE) {
    const value = headers[name]
    if (typeof value === 'string' && value !== '' && known[name] === undefined) found = { ...found, [name]: value }
  }
  return found
}

/**
 * Any whole number AMQP can hold, or its digits. Anything else is read as 1, as without a version, with one warning.
 * A whole number that is no version is refused: it does not mean 1.
 */
function versionOf(value: unknown): number {
  const text = value instanceof Uint8Array ? Buffer.from(value).toString() : value
  const number = typeof text === 'string' && /^[+-]?\d{1,15}$/.test(text) ? Number(text) : text
  if (typeof number !== 'number' || !Number.isInteger(number)) {
    warnOnce('rabbitmq', `messages with ${VERSION} of a wrong type are read as version 1; send a whole number`)
    return 1
  }
  if (Number.isSafeInteger(number) && number >= 1 && number <= 2_147_483_647) return number
  const what = `${VERSION}: ${describe(value)} is no version; send a whole number of at least 1`
  throw new WaybillError('MALFORMED_MESSAGE', what)
}

function added(message: RawMessage, extensions: Record<string, ExtensionValue> | undefined): RawMessage {
  return extensions === undefined ? message : message.with({ extensions })
}

/** Bytes of the body, and something for the rest. */
export function sizeOf({ content, properties }: AmqpDelivery): number {
  let size = content.length + 256
  const headers = properties.headers ?? {}
  for (const name in headers) {
    const value = headers[name]
    size += name.length + (typeof value === 'string' ? value.length : 8)
  }
  return size
}
