import { WaybillError } from './errors.ts'
import type { Message, RawMessage } from './message.ts'
import { describe } from './options.ts'

/**
 * How data stands on the wire. A `datacontenttype` that is absent, or whose subtype is `json` or ends in `+json`, means JSON; any other takes a string or bytes as they are. Absent data is the empty text `''`; JSON's
 * null is the text `'null'`.
 */
export function isJsonType(contentType: string | undefined): boolean {
  if (contentType === undefined || contentType === 'application/json') return true
  const semicolon = contentType.indexOf(';')
  const type = (semicolon < 0 ? contentType : contentType.slice(0, semicolon)).trim().toLowerCase()
  return type.endsWith('/json') || type.endsWith('+json')
}

/**
 * The message with its data encoded; a raw message is returned as it is. JSON is what `JSON.stringify` makes of it:
 * NaN and the infinities become null, and functions and undefined inside objects are left out. What it cannot hold
 * at all is NOT_SERIALISABLE, and the error says where, never what.
 */
export function encodeData(message: Message): RawMessage {
  if (message.form !== 'value') return message as RawMessage
  return message.withData(encodedData(message), isJsonType(message.datacontenttype) ? 'json' : 'raw')
}

/** The data alone, encoded. */
export function encodedData(message: Message): string | Uint8Array {
  const { data, datacontenttype } = message
  if (message.form === 'value' && isJsonType(datacontenttype)) return jsonText(message)
  if (typeof data === 'string' || data instanceof Uint8Array) return data
  const type = datacontenttype ?? 'application/json'
  throw notSerialisable(message, `must be a string or bytes, as its datacontenttype is ${describe(type)}`)
}

/**
 * The value a raw message carries: JSON parsed, `text/*` as a string, other bytes as they are. Absent JSON data is
 * `undefined`. Data that is already a value is returned as it is.
 */
export function decodeData(message: Message): unknown {
  const { data, datacontenttype } = message
  if (message.form === 'value' || !(typeof data === 'string' || data instanceof Uint8Array)) return data
  if (isJsonType(datacontenttype)) {
    const parsed = message.recall()
    if (parsed !== undefined) return parsed.value
    const text = typeof data === 'string' ? data : utf8(data)
    if (text === '') return undefined
    const value = text === undefined ? NOT_JSON : parseJson(text)
    if (value === NOT_JSON) throw invalidPayload(message, 'the data is not well-formed JSON')
    return value
  }
  if (typeof data === 'string' || !isUtf8Text(datacontenttype!)) return data
  return utf8(data) ?? reject(invalidPayload(message, `the data is not UTF-8, as ${describe(datacontenttype)} says`))
}

/** The JSON text of a message whose data is a value. */
export function jsonText(message: Message): string {
  const { data } = message
  if (data instanceof Uint8Array) {
    throw notSerialisable(message, 'is bytes; give the message a datacontenttype, such as application/octet-stream')
  }
  let text: string | undefined
  try {
    text = JSON.stringify(data)
  } catch {
    const fault = findFault(data, '', [])
    throw notSerialisable(message, fault?.what ?? 'cannot be made JSON', fault?.path, fault?.cause)
  }
  if (text === undefined) throw notSerialisable(message, `is ${nothing(data)}, which JSON cannot hold`)
  return text
}

export const NOT_JSON = Symbol('not JSON')

/** The value, or NOT_JSON: the parser's own error quotes the text, which may be anybody's data. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return NOT_JSON
  }
}

const decoder = new TextDecoder('utf-8', { fatal: true })

/** The text, or undefined when the bytes are not UTF-8. A byte order mark is dropped. */
export function utf8(bytes: Uint8Array): string | undefined {
  try {
    return decoder.decode(bytes)
  } catch {
    return undefined
  }
}

/** From the end: what differs, mostly differs there. For few bytes, where calling the system costs more. */
export function sameBytes(bytes: Uint8Array, others: Uint8Array, length: number = others.length): boolean {
  if (bytes.length !== length) return false
  for (let i = length - 1; i >= 0; i--) if (bytes[i] !== others[i]) return false
  return true
}

/** Whether the bytes are this text, and all of it ASCII. From the end: what differs, differs there. */
export function isAscii(bytes: Uint8Array, text: string): boolean {
  if (bytes.length !== text.length) return false
  for (let i = text.length - 1; i >= 0; i--) {
    const byte = bytes[i]!
    if (byte !== text.charCodeAt(i) || byte > 127) return false
  }
  return true
}

function isUtf8Text(contentType: string): boolean {
  const type = contentType.trim().toLowerCase()
  if (!type.startsWith('text/')) return false
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/.exec(type)?.[1]
  return charset === undefined || charset === 'utf-8' || charset === 'utf8' || charset === 'us-ascii'
}

function invalidPayload(message: Message, what: string): WaybillError {
  return new WaybillError('INVALID_PAYLOAD', `${message}: ${what}`)
}

function reject(error: WaybillError): never {
  throw error
}

function notSerialisable(message: Message, what: string, path = '', cause?: unknown): WaybillError {
  const where = path === '' ? 'its data' : `its data at ${describe(path)}`
  return new WaybillError(
    'NOT_SERIALISABLE',
    `${message}: ${where} ${what}`,
    cause === undefined ? undefined : { cause },
  )
}

function nothing(data: unknown): string {
  return data === undefined ? 'undefined' : typeof data === 'object' ? 'an object without JSON' : `a ${typeof data}`
}

interface JsonFault {
  path: string
  what: string
  cause?: unknown
}

/** Walks as `JSON.stringify` does, to the first thing that makes it fail. */
function findFault(value: unknown, path: string, above: readonly unknown[]): JsonFault | undefined {
  if (above.length > 500) return { path: '', what: 'is nested too deeply' }
  if (typeof value === 'bigint') return { path, what: 'is a BigInt, which JSON cannot hold' }
  if (typeof value !== 'object' || value === null) return undefined
  if (above.includes(value)) return { path, what: 'refers back to an object that contains it' }
  const around = [...above, value]
  try {
    const { toJSON } = value as { toJSON?: unknown }
    if (typeof toJSON === 'function') return findFault(toJSON.call(value, ''), path, around)
  } catch (cause) {
    return { path, what: 'has a toJSON that throws', cause }
  }
  for (const key of Object.keys(value)) {
    const inner = path === '' ? key : `${path}.${key}`
    try {
      const fault = findFault((value as Record<string, unknown>)[key], inner, around)
      if (fault !== undefined) return fault
    } catch (cause) {
      return { path: inner, what: 'throws when it is read', cause }
    }
  }
  return undefined
}
