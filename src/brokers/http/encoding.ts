import { toUnambiguous } from '../../cloudevents/binary.ts'
import { STRUCTURED_TYPE, toStructured } from '../../cloudevents/index.ts'
import { eventUuid, type RawMessage } from '../../core/index.ts'
import { attributesText, type Secret, signatureOf } from './signature.ts'

export const MODES = ['binary', 'structured'] as const
/** `binary`: attributes in headers and the data as the body. `structured`: all of it as one JSON body. */
export type Mode = (typeof MODES)[number]

export interface Encoded {
  readonly headers: Record<string, string>
  readonly body: string | Uint8Array
}

/** A message as an HTTP request, signed at `now`. What it throws refuses the message for good. */
export function encode(message: RawMessage, mode: Mode, secrets: readonly Secret[], now: number): Encoded {
  const { headers, body } = content(message, mode)
  const id = webhookId(message)
  const timestamp = String(Math.floor(now / 1000))
  headers['content-length'] = String(Buffer.byteLength(body))
  if (secrets.length === 0) return { headers, body }
  const attributes = 'ce-id' in headers ? attributesText(headers) : undefined
  headers['webhook-id'] = id
  headers['webhook-timestamp'] = timestamp
  headers['webhook-signature'] = signatureOf(secrets, { id, timestamp, body, attributes })
  return { headers, body }
}

function content(message: RawMessage, mode: Mode): Encoded {
  if (mode === 'binary') return toUnambiguous(message)
  return { headers: { 'content-type': `${STRUCTURED_TYPE}; charset=utf-8` }, body: toStructured(message) }
}

/**
 * The same with every try, and another for every event: an event's id is unique within its source only, and may hold
 * what a header cannot.
 */
export function webhookId(event: { readonly id: string; readonly source: string }): string {
  return eventUuid(event)
}
