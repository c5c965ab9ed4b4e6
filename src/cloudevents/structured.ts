import {
  type Attributes,
  checkContext,
  checkExtension,
  checkExtensionName,
  type ExtensionValue,
  malformed,
} from '../core/attributes.ts'
import { encodedData, isJsonType, NOT_JSON, parseJson, utf8 } from '../core/data.ts'
import { Message, type RawMessage } from '../core/message.ts'
import { type JsonSpan, memberSpan, memberStart, skipSpace } from './json-span.ts'

/**
 * CloudEvents 1.0 in JSON: the structured mode, and batches of it. Data that is JSON is embedded as it stands, byte
 * for byte, in both directions; text is a JSON string; bytes are `data_base64`, and so is what claims to be JSON and
 * is not, since embedding it could forge attributes. Extensions of bytes become base64 text, as the standard has it.
 */
export const STRUCTURED_TYPE = 'application/cloudevents+json'
/** The content type of several events in one body. */
export const BATCH_TYPE = 'application/cloudevents-batch+json'

/**
 * How a message with this content type carries its event. `unknown`: structured in a format that is not JSON, such as Avro
 * or XML, which is not read here.
 */
export function contentMode(contentType: string | undefined): 'structured' | 'batch' | 'binary' | 'unknown' {
  if (contentType === undefined) return 'binary'
  const found = /^\s*application\/cloudevents(-batch)?(?:\+([^\s;]*))?\s*(?:;|$)/i.exec(contentType)
  if (found === null) return 'binary'
  if (found[1] !== undefined) return 'batch'
  return found[2] === undefined || found[2].toLowerCase() === 'json' ? 'structured' : 'unknown'
}

// String concatenation and one `JSON.stringify` per attribute: this runs once for each message of a relay.
/** A message as one JSON body: the structured mode of CloudEvents. */
export function toStructured(message: Message): string {
  const { id, source, type, subject, time, datacontenttype, dataschema, extensions } = message
  if (typeof id !== 'string' || typeof source !== 'string' || typeof type !== 'string') checkContext(message)
  let text = `{"specversion":"1.0","id":${quote(id)},"source":${quote(source)},"type":${quote(type)}`
  if (subject !== undefined) text += `,"subject":${quote(subject)}`
  if (time !== undefined) text += `,"time":${quote(time)}`
  if (datacontenttype !== undefined) text += `,"datacontenttype":${quote(datacontenttype)}`
  if (dataschema !== undefined) text += `,"dataschema":${quote(dataschema)}`
  for (const name in extensions) {
    checkExtensionName(name)
    const value = extensions[name]
    if (typeof value === 'string') text += `,"${name}":${quote(value)}`
    else if (value !== undefined) text += `,"${name}":${untextual(name, value)}`
  }
  return `${text}${dataMember(message)}}`
}

/** Several messages as one body: the batch mode of CloudEvents. */
export function toBatch(messages: readonly Message[]): string {
  return `[${messages.map(toStructured).join(',')}]`
}

function quote(text: string): string {
  return JSON.stringify(text)
}

function untextual(name: string, value: ExtensionValue): string {
  checkExtension(name, value)
  return value instanceof Uint8Array ? `"${base64(value)}"` : String(value)
}

function dataMember(message: Message): string {
  const data = encodedData(message)
  if (isJsonType(message.datacontenttype)) {
    if (typeof data === 'string') return jsonMember(data, message.form !== 'raw')
    const text = utf8(data)
    return text === undefined ? bytesMember(data) : jsonMember(text, false)
  }
  if (typeof data === 'string') return data === '' ? '' : `,"data":${quote(data)}`
  return bytesMember(data)
}

function jsonMember(text: string, wellFormed: boolean): string {
  if (text === '') return ''
  if (wellFormed || parseJson(text) !== NOT_JSON) return `,"data":${text}`
  return bytesMember(Buffer.from(text))
}

function bytesMember(bytes: Uint8Array): string {
  return `,"data_base64":"${base64(bytes)}"`
}

export function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64')
}

/** One event from its JSON. Throws MALFORMED_MESSAGE, naming the attribute. */
export function fromStructured(input: string | Uint8Array): RawMessage {
  const text = textOf(input, 'event')
  const start = skipSpace(text, 0)
  const split = splitEvent(text, start)
  if (split !== undefined) return readEvent(split.members, split.data)
  const members = membersOf(parsedOf(text, 'event'))
  return readEvent(members, found(members, text, memberSpan(text, start, 'data')))
}

/** The events of a batch. One malformed event makes the batch malformed: nobody knows what else is. */
export function fromBatch(input: string | Uint8Array): RawMessage[] {
  const text = textOf(input, 'batch')
  const parsed = parsedOf(text, 'batch')
  if (!Array.isArray(parsed)) malformed('batch', typeof parsed, 'a JSON array of events')
  let at = skipSpace(text, 0)
  return parsed.map((event) => {
    const members = membersOf(event)
    // Past the bracket or the comma.
    const span = memberSpan(text, skipSpace(text, at + 1), 'data')
    at = skipSpace(text, span.end)
    return readEvent(members, found(members, text, span))
  })
}

function textOf(input: string | Uint8Array, what: string): string {
  if (typeof input === 'string') return input
  return utf8(input) ?? malformed(what, 'bytes', 'UTF-8 text')
}

function parsedOf(text: string, what: string): unknown {
  const parsed = parseJson(text)
  return parsed === NOT_JSON ? malformed(what, 'text', 'well-formed JSON') : parsed
}

type Members = Record<string, unknown>

function membersOf(event: unknown): Members {
  if (typeof event === 'object' && event !== null && !Array.isArray(event)) return event as Members
  return malformed('event', Array.isArray(event) ? 'array' : typeof event, 'a JSON object of attributes')
}

/** The data of an event: its text as it stands, and its value. */
interface Data {
  readonly text: string
  readonly value: unknown
}

function found(members: Members, text: string, span: JsonSpan): Data | undefined {
  return span.from < 0 ? undefined : { text: text.slice(span.from, span.to), value: members['data'] }
}

/**
 * Most senders put the data last. Then what precedes it and the data are parsed one by one, which costs no more than
 * parsing the whole, and there is no need to look for the end of the data. When both are well-formed, so is the whole.
 */
function splitEvent(text: string, start: number): { members: Members; data: Data } | undefined {
  const from = dataStart(text, start)
  const end = text.lastIndexOf('}')
  if (from < 0 || end < from) return undefined
  const members = parseJson(`${text.slice(0, from)}null${text.slice(end)}`)
  if (members === NOT_JSON) return undefined
  const dataText = text.slice(from, end).trimEnd()
  const value = parseJson(dataText)
  return value === NOT_JSON ? undefined : { members: members as Members, data: { text: dataText, value } }
}

const MARK = ',"data":'

/**
 * Where the data begins, perhaps. Searching for the text of the member is five times faster than reading up to it. What
 * is found inside another value is found out: with one brace at its end, only what stands in the event itself is
 * well-formed.
 */
function dataStart(text: string, start: number): number {
  if (text[start] !== '{') return -1
  const mark = text.indexOf(MARK, start)
  return mark < 0 ? memberStart(text, start, 'data') : skipSpace(text, mark + MARK.length)
}

type Draft = { -readonly [Name in keyof Attributes]: Attributes[Name] }

function readEvent(members: Members, data: Data | undefined): RawMessage {
  const attributes: Partial<Draft> = {}
  let extensions: Record<string, ExtensionValue> | undefined
  for (const name of Object.keys(members)) {
    const value = members[name]
    switch (name) {
      case 'specversion':
      case 'data':
      case 'data_base64':
        break
      case 'id':
      case 'source':
      case 'type':
      case 'subject':
      case 'time':
      case 'datacontenttype':
      case 'dataschema':
        // In this format null says that an attribute is not set.
        if (value !== null) attributes[name] = value as string
        break
      default:
        checkExtensionName(name)
        if (value === null) break
        checkExtension(name, value)
        extensions ??= {}
        extensions[name] = value as ExtensionValue
    }
  }
  if (members['specversion'] !== '1.0') malformed('specversion', members['specversion'], '"1.0"')
  if (extensions !== undefined) attributes.extensions = extensions
  checkContext(attributes as Attributes)
  return withData(attributes as Attributes, members['data_base64'] ?? undefined, data)
}

function withData(attributes: Attributes, encoded: unknown, data: Data | undefined): RawMessage {
  if (encoded !== undefined) {
    if (data !== undefined) malformed('data_base64', 'data_base64', 'given instead of data, not with it')
    // Without a type it would be read as JSON, and these are bytes.
    const { datacontenttype = 'application/octet-stream' } = attributes
    return new Message({ ...attributes, datacontenttype }, fromBase64(encoded), 'raw')
  }
  if (data === undefined) return new Message(attributes, '', 'raw')
  const { datacontenttype } = attributes
  if (isJsonType(datacontenttype)) return new Message(attributes, data.text, 'json').remember(data.value)
  const text = data.value ?? ''
  if (typeof text === 'string') return new Message(attributes, text, 'raw')
  return malformed('data', typeof text, `a string, as datacontenttype ${quote(datacontenttype!)} is not JSON`)
}

function fromBase64(text: unknown): Uint8Array {
  if (typeof text !== 'string' || text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) {
    malformed('data_base64', typeof text, 'base64 text')
  }
  return new Uint8Array(Buffer.from(text, 'base64'))
}
