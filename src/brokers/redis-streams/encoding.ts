import { fromStructured, toStructured } from '../../cloudevents/index.ts'
import { type RawMessage, WaybillError } from '../../core/index.ts'
import { ENTRY_EVENT, ENTRY_TOPIC, listOf, type RedisArg, type RedisReply, textOf } from '../../drivers/redis/redis.ts'
import { decodedMessage, setTopic } from '../../flow/index.ts'

/** Fields of a stream entry. */
export type StreamFields = Readonly<Record<string, string | Uint8Array>>

/** A message as fields. What it throws refuses the message for good. */
export type StreamEncode = (message: RawMessage) => StreamFields

/** A message from fields. What it throws sends the entry to the dead letters, alone. */
export type StreamDecode = (fields: Readonly<Record<string, Buffer>>, id: string) => RawMessage

/** Text, so that people and other languages can read it. */
const EVENT_BYTES = Buffer.from(ENTRY_EVENT)
const TOPIC_BYTES = Buffer.from(ENTRY_TOPIC)

/** Lua hands at most some thousand values to one call. */
const MOST_WORDS = 7000

/** Fields and values by turns. */
export function encoderOf(custom: StreamEncode | undefined): (message: RawMessage) => readonly RedisArg[] {
  if (custom === undefined) return (message) => [ENTRY_EVENT, toStructured(message)]
  return (message) => {
    const words = Object.entries(custom(message)).flatMap(([name, value]) => [name, argOf(value)])
    if (words.length > MOST_WORDS) {
      const text = `${message}: encode returned ${words.length / 2} fields, but a script can append at most ${MOST_WORDS / 2}`
      throw new WaybillError('NOT_SERIALISABLE', text)
    }
    if (words.length > 0) return words
    throw new WaybillError('NOT_SERIALISABLE', `${message}: encode returned no fields, but an entry needs at least one`)
  }
}

function argOf(value: string | Uint8Array): RedisArg {
  if (typeof value === 'string' || Buffer.isBuffer(value)) return value
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}

/** What was decoded, and how large it was. */
export type Decoder = (fields: RedisReply, id: string) => RawMessage

export function decoderOf(custom: StreamDecode | undefined): Decoder {
  if (custom !== undefined) return (fields, id) => decodedMessage(custom(recordOf(fields), id))
  return (fields) => {
    const list = listOf(fields)
    let message: RawMessage | undefined
    let topic: string | undefined
    for (let i = 0; i < list.length; i += 2) {
      if (isField(list[i]!, ENTRY_EVENT, EVENT_BYTES)) message ??= fromStructured(eventText(list[i + 1]!))
      // Only an outbox writes one: where the event is to go from here.
      else if (isField(list[i]!, ENTRY_TOPIC, TOPIC_BYTES)) topic = textOf(list[i + 1])
    }
    if (message === undefined) {
      const text = `the entry has no field "${ENTRY_EVENT}"; give the option decode to read entries of other producers`
      throw new WaybillError('MALFORMED_MESSAGE', text)
    }
    if (topic !== undefined && topic !== '') setTopic(message, topic)
    return message
  }
}

function isField(name: RedisReply, text: string, bytes: Buffer): boolean {
  return Buffer.isBuffer(name) ? name.equals(bytes) : name === text
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
