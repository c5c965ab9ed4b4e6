import { toUnambiguous } from '../../cloudevents/binary.ts'
import { contentMode, fromBinary, fromStructured } from '../../cloudevents/index.ts'
import { type RawMessage, WaybillError } from '../../core/index.ts'
import type { NatsMessage } from '../../drivers/nats/nats.ts'

/** A message as NATS has it. */
export interface NatsEnvelope {
  readonly headers: Readonly<Record<string, string>>
  readonly data: string | Uint8Array
}

/** A message as headers and data. What it throws refuses the message for good. */
export type NatsEncode = (message: RawMessage) => NatsEnvelope

/** A message from headers (of a name that occurs twice, the last) and data. What it throws sends it to the dead letters. */
export type NatsDecode = (envelope: {
  readonly headers: Readonly<Record<string, string>>
  readonly data: Uint8Array
  readonly subject: string
  readonly sequence: number
}) => RawMessage

/**
 * CloudEvents' binding for NATS, binary mode: attributes are headers, data is the message's data, byte by byte. Whoever
 * reads it without us sees what he would have sent himself.
 */
export function encode(message: RawMessage): NatsEnvelope {
  const { headers, body } = toUnambiguous(message)
  // This binding has it among the attributes; others look for the usual header.
  const { 'content-type': contentType } = headers
  if (contentType !== undefined && 'ce-id' in headers) headers['ce-datacontenttype'] = contentType
  return { headers, data: body }
}

/** Reads the structured mode too, which senders without headers use. */
export const decode: NatsDecode = ({ headers, data }) => {
  const contentType = headers['content-type'] ?? headers[named(headers, /^content-type$/i) ?? '']
  const mode = contentMode(contentType)
  if (mode === 'unknown') throw unknownFormat(contentType)
  if (mode === 'batch') {
    throw new WaybillError('MALFORMED_MESSAGE', 'a batch of events in one message is not read; send them one by one')
  }
  const bare = contentType === undefined && named(headers, /^ce-/i) === undefined
  return mode === 'structured' || bare ? fromStructured(data) : fromBinary(headers, data)
}

function unknownFormat(contentType: string | undefined): WaybillError {
  return new WaybillError('MALFORMED_MESSAGE', `${contentType} is a format of events that is not read; send JSON`)
}

function named(headers: Readonly<Record<string, string>>, pattern: RegExp): string | undefined {
  return Object.keys(headers).find((name) => pattern.test(name))
}

/**
 * What makes a repeated publish the same to JetStream: the event's source and id, and the subject, since one event may
 * go to two subjects of one stream. Spaces part them, and none is within them.
 */
export function messageId(subject: string, { source, id }: RawMessage): string {
  return `${unspaced(source)} ${unspaced(id)} ${subject}`
}

const PLAIN = /^[!-$&-~]*$/

// No encodeURIComponent: half a surrogate pair would make it throw.
function unspaced(text: string): string {
  if (PLAIN.test(text)) return text
  return text.replace(/[\s%\p{Cc}]/gu, (character) => `%${character.charCodeAt(0).toString(16)}.`)
}

/** Bytes of data and headers, and something for the rest. */
export function sizeOf(message: NatsMessage, headers: Readonly<Record<string, string>>): number {
  let size = 128 + message.data.length
  for (const name in headers) size += name.length + headers[name]!.length
  return size
}
