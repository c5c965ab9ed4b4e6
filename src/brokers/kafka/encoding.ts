import { toUnambiguous } from '../../cloudevents/binary.ts'
import { contentMode, fromBinary, fromStructured } from '../../cloudevents/index.ts'
import { sameBytes } from '../../core/data.ts'
import { describe, isJsonType, type RawMessage, WaybillError } from '../../core/index.ts'
import type { KafkaHeader, KafkaHeaders, KafkaRecord, OutgoingRecord } from '../../drivers/kafka/kafka.ts'

/** A record as an encoder makes it. Without a key, it gets that of the message. */
export interface KafkaEncoded {
  readonly key?: string | Uint8Array | null
  readonly value: string | Uint8Array
  readonly headers?: KafkaHeaders
}

/** A message as a record. What it throws refuses the message for good. */
export type KafkaEncode = (message: RawMessage) => KafkaEncoded

/** A message from a record. What it throws sends the record to the dead letters, alone. */
export type KafkaDecode = (record: KafkaRecord, topic: string) => RawMessage

/** For records that were sent back for one group only: other groups of ours pass them over. */
export const ONLY_FOR = 'waybill-only-for'

const NOTHING = Buffer.alloc(0)

export type Encoder = (message: RawMessage, topic: string, key: string | undefined) => OutgoingRecord

/** CloudEvents in binary mode: attributes in headers that begin with `ce_`, data as it is. */
export function encoderOf(custom: KafkaEncode | undefined): Encoder {
  if (custom === undefined) {
    return (message, topic, key) => {
      const { headers, body } = toUnambiguous(message, 'ce_')
      return { topic, key: key === undefined ? null : Buffer.from(key), value: bytesOf(body), headers }
    }
  }
  return (message, topic, key) => {
    const { key: own = key, value, headers = {} } = custom(message)
    if (typeof value !== 'string' && !(value instanceof Uint8Array)) {
      throw refused(message, `a value that is ${describe(value)}; give text or bytes`)
    }
    for (const [name, header] of Object.entries(headers)) checkHeader(message, name, header)
    return { topic, key: own === undefined || own === null ? null : bytesOf(own), value: bytesOf(value), headers }
  }
}

function checkHeader(message: RawMessage, name: string, header: KafkaHeaders[string]): void {
  for (const one of Array.isArray(header) ? header : [header]) {
    if (typeof one === 'string' || one instanceof Uint8Array) continue
    throw refused(message, `a header ${describe(name)} that is ${describe(one)}; give text, bytes, or a list of them`)
  }
}

function refused(message: RawMessage, what: string): WaybillError {
  return new WaybillError('NOT_SERIALISABLE', `${message}: encode returned ${what}`)
}

/** Never null: to a compacted topic that is a deletion. */
function bytesOf(value: string | Uint8Array): Buffer {
  if (typeof value === 'string') return value === '' ? NOTHING : Buffer.from(value)
  return Buffer.isBuffer(value) ? value : Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}

export type Decoder = (record: KafkaRecord, topic: string) => RawMessage

export function decoderOf(custom: KafkaDecode | undefined): Decoder {
  if (custom !== undefined) return custom
  // Mostly the same for all records of a topic: found out once, and then only compared.
  let last = contentOf('')
  return ({ headers, value }) => {
    const type = headers['content-type']
    if (type === undefined) {
      const attribute = headers['ce_datacontenttype']
      const json = attribute === undefined || isJsonType(textOf(attribute))
      return fromBinary(headers, json ? textIfPossible(value) : value, 'ce_')
    }
    const same = type instanceof Uint8Array && sameBytes(type, last.bytes)
    if (!same) last = contentOf(textOf(type))
    if (last.mode === 'structured') return fromStructured(value ?? '')
    if (last.mode === 'unknown' || last.mode === 'batch') {
      const what = last.mode === 'batch' ? 'a batch of events in one record' : 'a format of events'
      throw new WaybillError('MALFORMED_MESSAGE', `${last.type} is ${what} that is not read; send JSON, one by one`)
    }
    return fromBinary(headers, last.json ? textIfPossible(value) : value, 'ce_', false, same ? last.type : undefined)
  }
}

function contentOf(type: string) {
  return { type, bytes: Buffer.from(type), mode: contentMode(type), json: isJsonType(type) }
}

/** A deletion in a compacted topic: no value, and no event in its headers. */
export function isTombstone({ value, headers }: KafkaRecord): boolean {
  if (value !== null) return false
  for (const name in headers) if (/^ce_/i.test(name)) return false
  return true
}

/** JSON is parsed faster from text. What is no UTF-8 is left to whoever says so. */
function textIfPossible(value: Uint8Array | null): string | Uint8Array | null {
  if (!Buffer.isBuffer(value)) return value
  const text = value.toString()
  return text.includes('\ufffd') ? value : text
}

/** The text of a header; of several the first. */
export function textOf(header: KafkaHeaders[string]): string {
  const first = (Array.isArray(header) ? header[0] : header) as KafkaHeader | undefined
  if (first === undefined || first === null) return ''
  return typeof first === 'string' ? first : Buffer.from(first.buffer, first.byteOffset, first.byteLength).toString()
}

/** Bytes a record takes on the wire, or a little more. */
export function sizeOf({ key, value, headers }: Pick<KafkaRecord, 'key' | 'value' | 'headers'>): number {
  let size = 32 + (key?.length ?? 0) + (value?.length ?? 0)
  for (const name in headers) {
    const header = headers[name]
    if (!Array.isArray(header)) size += name.length + 4 + bytesIn(header as KafkaHeader | undefined)
    else for (const one of header) size += name.length + 4 + bytesIn(one)
  }
  return size
}

function bytesIn(header: KafkaHeader | undefined): number {
  return typeof header === 'string' ? Buffer.byteLength(header) : (header?.length ?? 0)
}

/** What Kafka allows. */
const TOPIC = /^[A-Za-z0-9._-]{1,249}$/

export function checkedTopic(where: string, topic: unknown, code = 'INVALID_OPTION'): string {
  if (typeof topic === 'string' && TOPIC.test(topic) && topic !== '.' && topic !== '..') return topic
  throw new WaybillError(
    code,
    `${where}: ${describe(topic)} is no name for a topic; allowed are up to 249 letters, digits, dots, dashes and underscores`,
  )
}
