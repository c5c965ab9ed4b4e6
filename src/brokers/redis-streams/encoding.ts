import { fromStructured, type RawMessage, toStructured, WaybillError } from '../../core/index.ts'
import { listOf, type RedisArg, type RedisReply, textOf } from '../../drivers/redis.ts'

/** Fields of a stream entry. */
export type StreamFields = Readonly<Record<string, string | Uint8Array>>

/** A message as fields. What it throws refuses the message for good. */
export type StreamEncode = (message: RawMessage) => StreamFields

/** A message from fields. What it throws sends the entry to the dead letters, alone. */
export type StreamDecode = (fields: Readonly<Record<string, Buffer>>, id: string) => RawMessage

/**
 * One field with the event in structured mode: a stream entry costs the server, the wire and both ends per field, and
 * JSON embedded in JSON costs nothing. It is text, so that people and other languages can read it.
 */
const FIELD = 'event'
const FIELD_BYTES = Buffer.from(FIELD)

/** Fields and values by turns. */
export function encoderOf(custom: StreamEncode | undefined): (message: RawMessage) => readonly RedisArg[] {
  if (custom === undefined) return (message) => [FIELD, toStructured(message)]
  return (message) => {
    const words = Object.entries(custom(message)).flatMap(([name, value]) => [name, argOf(value)])
    if (words.length > 0) return words
    throw new WaybillError('NOT_SERIALISABLE', `${message}: its encoder gave no fields, and an entry needs one`)
  }
}

function argOf(value: string | Uint8Array): RedisArg {
  if (typeof value === 'string' || Buffer.isBuffer(value)) return value
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}

/** What was decoded, and how large it was. */
export type Decoder = (fields: RedisReply, id: string) => RawMessage

export function decoderOf(custom: StreamDecode | undefined): Decoder {
  if (custom !== undefined) return (fields, id) => custom(recordOf(fields), id)
  return (fields) => {
    const list = listOf(fields)
    for (let i = 0; i < list.length; i += 2) if (isField(list[i]!)) return fromStructured(eventText(list[i + 1]!))
    throw new WaybillError(
      'MALFORMED_MESSAGE',
      `the entry has no field "${FIELD}"; give a decoder for entries of others`,
    )
  }
}

function isField(name: RedisReply): boolean {
  return Buffer.isBuffer(name) ? name.equals(FIELD_BYTES) : name === FIELD
}

/** Text where it is UTF-8; what is not is left to the decoder that says so. Faster by half than asking it always. */
function eventText(value: RedisReply): string | Uint8Array {
  if (!Buffer.isBuffer(value)) return textOf(value)
  const text = value.toString()
  return text.includes('\ufffd') ? value : text
}

export function recordOf(fields: RedisReply): Record<string, Buffer> {
  const list = listOf(fields)
  const record: Record<string, Buffer> = Object.create(null)
  for (let i = 0; i < list.length; i += 2) record[textOf(list[i])] = list[i + 1] as Buffer
  return record
}

/** Bytes of the values, and something for the rest. */
export function sizeOf(fields: RedisReply): number {
  const list = listOf(fields)
  let size = 128
  for (let i = 0; i < list.length; i++) size += (list[i] as Buffer).length
  return size
}
