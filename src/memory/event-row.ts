import { type ExtensionValue, encodeData, eventUuid, Message, type RawMessage } from '../core/index.ts'
import { checkEvent, checkKey, checkTexts } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'
import type { Row } from './row.ts'

/** The row of an event, but for its place. What can be wrong with an event is found here, before anything is written. */
export function eventRow(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): Row {
  checkEvent(event)
  const key = options.key ?? event.key
  const tenant = options.tenant ?? event.tenant ?? ''
  const topic = options.topic ?? topicOf(event)
  checkTexts(event, options, topic)
  const message = stored(event, key, tenant)
  return {
    eventId: eventUuid(event),
    sequence: 0,
    tenant,
    topic,
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
  checkKey(event, key)
  const raw = encodeData(event)
  const extensions: Record<string, ExtensionValue> = { ...raw.extensions, eventversion: raw.version }
  if (key !== undefined) extensions['partitionkey'] = key
  if (tenant !== '') extensions['tenantid'] = tenant
  const data = typeof raw.data === 'string' ? raw.data : new Uint8Array(raw.data)
  return new Message({ ...raw.attributes(), extensions }, data, raw.form)
}
