import {
  type Attributes,
  checkContext,
  checkExtension,
  checkExtensionName,
  type ExtensionValue,
  malformed,
} from './attributes.ts'
import { base64 } from './cloudevents.ts'
import { encodedData, isJsonType, utf8 } from './data.ts'
import { Message, type RawMessage } from './message.ts'

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

type Draft = { -readonly [Name in keyof Attributes]: Attributes[Name] }

/**
 * A message from headers (names in any case; values text, UTF-8 bytes as Kafka has them, or AMQP's numbers and
 * booleans) and a body, kept as it is. A content type that the protocol has beside the headers counts.
 * Throws MALFORMED_MESSAGE, naming the attribute.
 */
export function fromBinary(
  headers: Readonly<Record<string, unknown>>,
  body: string | Uint8Array | null | undefined,
  prefix = 'ce-',
  percent: boolean = prefix === 'ce-',
  contentType?: string,
): RawMessage {
  // All of them, so that all drafts are alike to the engine.
  const attributes: Partial<Draft> = {
    id: undefined as never,
    source: undefined as never,
    type: undefined as never,
    subject: undefined,
    time: undefined,
    datacontenttype: contentType,
    dataschema: undefined,
    extensions: undefined,
  }
  let extensions: Record<string, ExtensionValue> | undefined
  let specversion: unknown
  const meanings = meaningsOf(prefix)
  for (const header of Object.keys(headers)) {
    const given = headers[header]
    if (given === undefined || given === null) continue
    const meaning = meanings.get(header) ?? meaningOf(header, prefix, meanings)
    const { name } = meaning
    switch (name) {
      case NONE:
        break
      case 'specversion':
        specversion = headerText(meaning, given)
        break
      case 'datacontenttype':
        if (contentType === undefined) attributes.datacontenttype = headerText(meaning, given)
        break
      case 'id':
      case 'source':
      case 'type':
      case 'subject':
      case 'time':
      case 'dataschema': {
        const text = headerText(meaning, given)
        attributes[name] = percent ? percentDecode(name, text) : text
        break
      }
      default: {
        const value = typeof given === 'string' ? given : extensionOf(meaning, given)
        extensions ??= {}
        extensions[name] = percent && typeof value === 'string' ? percentDecode(name, value) : value
      }
    }
  }
  if (specversion !== '1.0') malformed('specversion', specversion, '"1.0"')
  attributes.extensions = extensions
  checkContext(attributes as Attributes)
  // An empty body is data too where bytes are expected, and none where JSON is.
  const absent = body === undefined || body === null || (body.length === 0 && isJsonType(attributes.datacontenttype))
  return new Message(attributes as Attributes, absent ? '' : body, 'raw')
}

function extensionOf(meaning: Meaning, given: unknown): ExtensionValue {
  const native = typeof given === 'number' || typeof given === 'boolean'
  const value = native ? given : headerText(meaning, given)
  checkExtension(meaning.name, value)
  return value
}

/** What a header means that is no attribute. */
const NONE = ''

interface Meaning {
  /** The attribute that the header is of. */
  readonly name: string
  /** What it said last, where it came as bytes: most say the same in one message after the other. */
  last: string
}

// Names are few and come with every message: what each means is found out once, until there are more than anybody means.
const known = new Map<string, Map<string, Meaning>>()

function meaningsOf(prefix: string): Map<string, Meaning> {
  let meanings = known.get(prefix)
  if (meanings === undefined) {
    meanings = new Map()
    known.set(prefix, meanings)
  }
  return meanings
}

function meaningOf(header: string, prefix: string, meanings: Map<string, Meaning>): Meaning {
  const lower = header.toLowerCase()
  let name = NONE
  if (lower === CONTENT_TYPE) name = 'datacontenttype'
  else if (hasPrefix(lower, prefix.toLowerCase())) {
    name = lower.slice(prefix.length)
    if (!HEADER_ATTRIBUTES.has(name)) checkExtensionName(name)
  }
  const meaning = { name, last: '' }
  if (meanings.size < 1000 && header.length < 64) meanings.set(header, meaning)
  return meaning
}

const HEADER_ATTRIBUTES = new Set(['specversion', 'id', 'source', 'type', 'subject', 'time', 'dataschema'])

function hasPrefix(header: string, prefix: string): boolean {
  if (header.startsWith(prefix)) return true
  return (prefix === 'cloudevents:' || prefix === 'cloudevents_') && /^cloudevents[:_]/.test(header)
}

function headerText(meaning: Meaning, value: unknown): string {
  if (typeof value === 'string') return value
  if (value instanceof Uint8Array) return textOf(meaning, value)
  return malformed(meaning.name, value, 'text')
}

function textOf(meaning: Meaning, bytes: Uint8Array): string {
  if (isAscii(bytes, meaning.last)) return meaning.last
  const text = utf8(bytes) ?? malformed(meaning.name, 'bytes', 'UTF-8 text')
  if (text.length <= REMEMBERED) meaning.last = text
  return text
}

/** Longer ones are seldom the same, and would be kept for nothing. */
const REMEMBERED = 64

/** Whether the bytes are this text, and all of it ASCII. From the end: what differs, differs there. */
function isAscii(bytes: Uint8Array, text: string): boolean {
  if (bytes.length !== text.length) return false
  for (let i = text.length - 1; i >= 0; i--) {
    const byte = bytes[i]!
    if (byte !== text.charCodeAt(i) || byte > 127) return false
  }
  return true
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
