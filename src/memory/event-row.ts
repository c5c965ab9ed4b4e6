import {
  describe,
  type ExtensionValue,
  encodeData,
  FOREIGN_EVENTS,
  isUuid,
  Message,
  nameUuid,
  type RawMessage,
  WaybillError,
} from '../core/index.ts'
import type { EnqueueOptions } from '../outbox/store.ts'
import type { Row } from './row.ts'

/** As in PostgreSQL, so that a test finds what would fail there. */
const MAX_KEY_BYTES = 1024

/** Its own id where that is a UUID; otherwise one made of source and id, so that the same event is the same row. */
function eventId({ source, id }: { readonly source: string; readonly id: string }): string {
  return isUuid(id) ? id.toLowerCase() : nameUuid(5, FOREIGN_EVENTS, `${source}\0${id}`)
}

/** The row of an event, but for its place. What can be wrong with an event is found here, before anything is written. */
export function eventRow(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): Row {
  if (!(event instanceof Message)) {
    const text = `enqueue: ${describe(event)} is not an event; make one with a definition, such as OrderPlaced({ … })`
    throw new WaybillError('INVALID_OPTION', text)
  }
  const key = options.key ?? event.key
  const tenant = options.tenant ?? event.tenant ?? ''
  const message = stored(event, key, tenant)
  return {
    eventId: eventId(event),
    sequence: 0,
    tenant,
    topic: options.topic ?? topicOf(event),
    key,
    message,
    size: Buffer.byteLength(message.data),
    createdAt: 0,
    state: options.availableAt === undefined ? 'ready' : 'scheduled',
    attempts: 0,
    lastError: undefined,
    availableAt: options.availableAt?.getTime(),
    publishedAt: undefined,
    lease: undefined,
    hand: undefined,
    removed: false,
  }
}

/** The message as it is kept: encoded, without what belongs to the process, and with bytes that nobody else has. */
function stored(event: Message, key: string | undefined, tenant: string): RawMessage {
  const bytes = Buffer.byteLength(key ?? '')
  if (bytes > MAX_KEY_BYTES) {
    const text = `${describe(event.type)}: the key has ${bytes} bytes; at most ${MAX_KEY_BYTES} bytes; use a hash of it`
    throw new WaybillError('TOO_LARGE', text)
  }
  const raw = encodeData(event)
  const extensions: Record<string, ExtensionValue> = { ...raw.extensions, eventversion: raw.version }
  if (key !== undefined) extensions['partitionkey'] = key
  if (tenant !== '') extensions['tenantid'] = tenant
  const data = typeof raw.data === 'string' ? raw.data : new Uint8Array(raw.data)
  return new Message({ ...raw.attributes(), extensions }, data, raw.form)
}
