import {
  describe,
  type ExtensionValue,
  encodeData,
  eventUuid,
  isUuid,
  type Message,
  WaybillError,
} from '../core/index.ts'
import { checkKey, checkTexts } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'
import type { StoredAttributes } from './row.ts'

/** The values of one event, in the order of the parameters of enqueue-one.sql. */
export type EventRow = readonly (string | null)[]

/** Of a payload. What is larger belongs into a file store, with a reference in the event. */
export const MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

const OWN_EXTENSIONS = new Set(['partitionkey', 'tenantid', 'eventversion'])

/** jsonb refuses NUL and lone surrogates, high or low. A false alarm costs nothing: the text is then kept as bytes. */
const NOT_FOR_JSONB = /\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})/

export function eventRow(message: Message, options: EnqueueOptions, topicOf: (message: Message) => string): EventRow {
  const { id, source, type, extensions } = message
  const raw = encodeData(message)
  const key = options.key ?? message.key ?? null
  const tenant = options.tenant ?? message.tenant ?? ''
  const topic = options.topic ?? topicOf(message)
  const { aggregate } = options
  checkTexts(message, options, topic)
  checkKey(message, key)
  const { payload, hex, text } = payloadOf(raw)
  return [
    eventUuid(message),
    tenant,
    topic,
    key,
    source,
    type,
    String(message.version),
    aggregate?.type ?? null,
    aggregate?.id ?? null,
    isUuid(id) && id === id.toLowerCase() ? null : id,
    JSON.stringify(attributesOf(message, extensions, text)),
    payload,
    hex,
    timeOf(type, options.availableAt),
  ]
}

function payloadOf(raw: Message<string | Uint8Array>): { payload: string | null; hex: string | null; text: boolean } {
  const { data, type } = raw
  const size = typeof data === 'string' ? Buffer.byteLength(data) : data.byteLength
  if (size > MAX_PAYLOAD_BYTES) {
    tooLong(
      type,
      'payload',
      `${size} bytes`,
      `at most ${MAX_PAYLOAD_BYTES} bytes; keep large data elsewhere and send a reference`,
    )
  }
  // Only JSON made here goes into jsonb: it reorders and drops keys, and what passes through must stay as it is.
  if (raw.form === 'json' && typeof data === 'string' && !NOT_FOR_JSONB.test(data) && data !== '') {
    return { payload: data, hex: null, text: false }
  }
  const bytes = typeof data === 'string' ? Buffer.from(data, 'utf8') : data
  return {
    payload: null,
    hex: Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex'),
    text: typeof data === 'string',
  }
}

function attributesOf(message: Message, extensions: Message['extensions'], text: boolean): StoredAttributes {
  const stored: StoredAttributes = {}
  if (message.time !== undefined) stored.time = message.time
  if (message.subject !== undefined) stored.subject = message.subject
  if (message.datacontenttype !== undefined) stored.datacontenttype = message.datacontenttype
  if (message.dataschema !== undefined) stored.dataschema = message.dataschema
  for (const name in extensions) {
    if (OWN_EXTENSIONS.has(name)) continue
    stored.extensions ??= {}
    stored.extensions[name] = storedValue(extensions[name]!)
  }
  if (text) stored.text = true
  return stored
}

function storedValue(value: ExtensionValue): string | number | boolean | { base64: string } {
  return value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value
}

function timeOf(type: string, at: Date | undefined): string | null {
  if (at === undefined) return null
  if (at instanceof Date && !Number.isNaN(at.getTime())) return at.toISOString()
  const text = `${describe(type)}: availableAt is ${describe(at)}; give a Date, such as new Date(Date.now() + 60_000)`
  throw new WaybillError('INVALID_OPTION', text)
}

function tooLong(type: string, what: string, got: string, allowed: string): never {
  throw new WaybillError('TOO_LARGE', `${describe(type)}: the ${what} has ${got}; ${allowed}`)
}
