import {
  checkContext,
  checkContextValue,
  checkExtension,
  checkExtensionName,
  type ExtensionValue,
  malformed,
  missing,
} from '../core/attributes.ts'
import { encodedData, isJsonType, sameBytes, utf8 } from '../core/data.ts'
import { Message, type RawMessage } from '../core/message.ts'
import { base64, contentMode, STRUCTURED_TYPE, toStructured } from './structured.ts'

/**
 * CloudEvents 1.0 in binary mode: attributes in headers, data as the body. The prefix is that of the protocol:
 * `ce-` (HTTP, NATS), `ce_` (Kafka), `cloudEvents:` or `cloudEvents_` (AMQP; either is read). Over HTTP header values
 * are percent-encoded. Numbers and booleans become text, as headers have no types.
 */
export interface BinaryMessage {
  readonly headers: Record<string, string>
  /** Empty when there is no data. */
  readonly body: string | Uint8Array
}

const CONTENT_TYPE = 'content-type'

/** A message as headers and a body: the binary mode of CloudEvents. */
export function toBinary(message: Message, prefix = 'ce-', percent: boolean = prefix === 'ce-'): BinaryMessage {
  const { id, source, type, subject, time, dataschema, extensions } = message
  if (typeof id !== 'string' || typeof source !== 'string' || typeof type !== 'string') checkContext(message)
  const write = percent ? percentEncode : asIs
  const headers: Record<string, string> = {}
  const body = encodedData(message)
  if (message.datacontenttype !== undefined) headers[CONTENT_TYPE] = message.datacontenttype
  else if (body.length > 0) headers[CONTENT_TYPE] = 'application/json'
  headers[`${prefix}specversion`] = '1.0'
  headers[`${prefix}id`] = write(id)
  headers[`${prefix}source`] = write(source)
  headers[`${prefix}type`] = write(type)
  if (subject !== undefined) headers[`${prefix}subject`] = write(subject)
  if (time !== undefined) headers[`${prefix}time`] = write(time)
  if (dataschema !== undefined) headers[`${prefix}dataschema`] = write(dataschema)
  for (const name in extensions) {
    checkExtensionName(name)
    const value = extensions[name]
    if (value === undefined) continue
    if (typeof value !== 'string') checkExtension(name, value)
    headers[prefix + name] = value instanceof Uint8Array ? base64(value) : write(String(value))
  }
  return { headers, body }
}

/**
 * Binary mode, but structured for an event whose data is itself an event: the content type of the data would say that all of
 * it is that one, and whoever reads it would handle the inner event in place of this.
 */
export function toUnambiguous(message: Message, prefix?: string): BinaryMessage {
  if (contentMode(message.datacontenttype) === 'binary') return toBinary(message, prefix)
  return { headers: { [CONTENT_TYPE]: `${STRUCTURED_TYPE}; charset=utf-8` }, body: toStructured(message) }
}

/**
 * A message from headers (names in any case; values text, UTF-8 bytes as Kafka has them, or AMQP's numbers and
 * booleans) and a body, kept as it is. A content type that the protocol has beside the headers counts before the header
 * `content-type`, and that before an attribute `datacontenttype`.
 * Throws MALFORMED_MESSAGE, naming the attribute.
 */
export function fromBinary(
  headers: Readonly<Record<string, unknown>>,
  body: string | Uint8Array | null | undefined,
  prefix = 'ce-',
  percent: boolean = prefix === 'ce-',
  contentType?: string,
): RawMessage {
  let specversion: string | undefined
  let id: string | undefined
  let source: string | undefined
  let type: string | undefined
  let subject: string | undefined
  let time: string | undefined
  if (contentType !== undefined) checkContextValue('datacontenttype', contentType)
  let datacontenttype = contentType
  let attributed: string | undefined
  let dataschema: string | undefined
  let extensions: Record<string, ExtensionValue> | undefined
  const { meanings, order } = dialectOf(prefix, percent)
  let at = 0
  for (const header in headers) {
    const given = headers[header]
    if (given === undefined || given === null) continue
    let meaning = order[at]
    if (meaning?.header !== header) {
      meaning = meanings.get(header) ?? meaningOf(header, prefix, meanings)
      if (at < REMEMBERED_HEADERS) order[at] = meaning
    }
    at++
    const { name } = meaning
    switch (name) {
      case NONE:
        break
      case 'specversion':
        specversion = headerText(meaning, given, percent)
        break
      case 'datacontenttype':
        if (contentType === undefined) datacontenttype = headerText(meaning, given, false)
        break
      case CONTENT_ATTRIBUTE:
        attributed = headerText(meaning, given, percent)
        break
      case 'id':
        id = headerText(meaning, given, percent)
        break
      case 'source':
        source = headerText(meaning, given, percent)
        break
      case 'type':
        type = headerText(meaning, given, percent)
        break
      case 'subject':
        subject = headerText(meaning, given, percent)
        break
      case 'time':
        time = headerText(meaning, given, percent)
        break
      case 'dataschema':
        dataschema = headerText(meaning, given, percent)
        break
      default:
        extensions ??= {}
        extensions[name] = extensionOf(meaning, given, percent)
    }
  }
  datacontenttype ??= attributed
  if (specversion !== '1.0') malformed('specversion', specversion, '"1.0"')
  // An empty body is data too where bytes are expected, and none where JSON is.
  const absent = body === undefined || body === null || (body.length === 0 && isJsonType(datacontenttype))
  const attributes = {
    id: id ?? missing('id'),
    source: source ?? missing('source'),
    type: type ?? missing('type'),
    subject,
    time,
    datacontenttype,
    dataschema,
    extensions,
  }
  return new Message(attributes, absent ? '' : body, 'raw')
}

function extensionOf(meaning: HeaderMeaning, given: unknown, percent: boolean): ExtensionValue {
  if (typeof given !== 'number' && typeof given !== 'boolean') return headerText(meaning, given, percent)
  checkExtension(meaning.name, given)
  return given
}

/** The content type where it is written as an attribute among others. No extension can have this name. */
const CONTENT_ATTRIBUTE = '*datacontenttype'

/** What a header means that is no attribute. */
const NONE = ''

/** One header, and what it said last: most say the same in one message after the other. */
interface HeaderMeaning {
  readonly header: string
  /** The attribute that the header is of. */
  readonly name: string
  /** Whether that is one with rules of its own. */
  readonly context: boolean
  last: string
  /** The same, where it came as bytes; so many of these. */
  readonly bytes: Uint8Array
  length: number
  /** What that was: decoded, and found to be allowed. */
  value: string
}

/** What is known of the headers of one protocol. */
interface Dialect {
  readonly meanings: Map<string, HeaderMeaning>
  /** Those of the last message, which the next mostly has in the same order. */
  readonly order: HeaderMeaning[]
}

// Names are few and come with every message: what each means is found out once, until there are more than anybody means.
const plain = new Map<string, Dialect>()
const encoded = new Map<string, Dialect>()

const REMEMBERED_HEADERS = 32

function dialectOf(prefix: string, percent: boolean): Dialect {
  const known = percent ? encoded : plain
  let dialect = known.get(prefix)
  if (dialect === undefined) {
    dialect = { meanings: new Map(), order: [] }
    known.set(prefix, dialect)
  }
  return dialect
}

function meaningOf(header: string, prefix: string, meanings: Map<string, HeaderMeaning>): HeaderMeaning {
  const lower = header.toLowerCase()
  let name = NONE
  if (lower === CONTENT_TYPE) name = 'datacontenttype'
  else if (hasPrefix(lower, prefix.toLowerCase())) {
    name = lower.slice(prefix.length)
    if (name === 'datacontenttype') name = CONTENT_ATTRIBUTE
    else if (!HEADER_ATTRIBUTES.has(name)) checkExtensionName(name)
  }
  const context =
    name === 'datacontenttype' || name === CONTENT_ATTRIBUTE || (name !== 'specversion' && HEADER_ATTRIBUTES.has(name))
  const meaning = { header, name, context, last: '', bytes: new Uint8Array(REMEMBERED), length: 0, value: '' }
  if (meanings.size < 1000 && header.length < 64) meanings.set(header, meaning)
  return meaning
}

const HEADER_ATTRIBUTES = new Set(['specversion', 'id', 'source', 'type', 'subject', 'time', 'dataschema'])

function hasPrefix(header: string, prefix: string): boolean {
  if (header.startsWith(prefix)) return true
  return (prefix === 'cloudevents:' || prefix === 'cloudevents_') && /^cloudevents[:_]/.test(header)
}

function headerText(meaning: HeaderMeaning, given: unknown, percent: boolean): string {
  if (given instanceof Uint8Array) {
    if (meaning.length > 0 && sameBytes(given, meaning.bytes, meaning.length)) return meaning.value
    const text = utf8(given) ?? malformed(meaning.name, 'bytes', 'UTF-8 text')
    const value = allowedText(meaning, text, percent)
    if (given.length > REMEMBERED || meaning.name === 'id') return value
    for (let i = 0; i < given.length; i++) meaning.bytes[i] = given[i]!
    meaning.length = given.length
    meaning.value = value
    meaning.last = text
    return value
  }
  if (typeof given !== 'string') return malformed(meaning.name, given, 'text')
  if (given === meaning.last && given !== '') return meaning.value
  const value = allowedText(meaning, given, percent)
  if (given.length > REMEMBERED) return value
  meaning.length = 0
  meaning.last = given
  meaning.value = value
  return value
}

/** Longer ones are seldom the same, and would be kept for nothing. */
const REMEMBERED = 64

function allowedText({ name, context }: HeaderMeaning, text: string, percent: boolean): string {
  const value = percent ? percentDecode(name, text) : text
  if (context) checkContextValue(name, value)
  return value
}

function asIs(value: string): string {
  return value
}

// HTTP binding 1.0.2, section 3.1.3.2: space, quote, percent and whatever is not printable ASCII.
const UNSAFE = /[^!#$&-~]/
const UNSAFE_RUNS = /[^!#$&-~]+/g

function percentEncode(value: string): string {
  if (!UNSAFE.test(value)) return value
  return value.replace(UNSAFE_RUNS, (run) => {
    let encoded = ''
    for (const byte of Buffer.from(run)) encoded += `%${byte < 16 ? '0' : ''}${byte.toString(16).toUpperCase()}`
    return encoded
  })
}

/** A percent sign that begins no triplet stays: older senders do not encode. */
function percentDecode(name: string, value: string): string {
  let text = value
  // Quoted values are from older versions of the binding.
  if (text.length > 1 && text[0] === '"' && text.endsWith('"')) text = text.slice(1, -1).replace(/\\(.)/gs, '$1')
  if (!text.includes('%')) return text
  return text.replace(/(?:%[0-9A-Fa-f]{2})+/g, (run) => {
    try {
      return decodeURIComponent(run)
    } catch {
      return malformed(name, value, 'percent-encoded UTF-8')
    }
  })
}
