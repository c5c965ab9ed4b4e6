import {
  describe,
  type Extensions,
  type ExtensionValue,
  encodeData,
  eventUuid,
  isUuid,
  Message,
  type RawMessage,
  WaybillError,
} from '../core/index.ts'
import type { RedisArg } from '../drivers/redis/redis.ts'
import { setTopic } from '../flow/index.ts'
import { checkEvent, checkKey, checkTexts } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'

const MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

/** What the header of an entry says: all of a CloudEvent but its data. */
export interface Header {
  readonly topic: string
  readonly type: string
  readonly source: string
  readonly version: number
  readonly tenant?: string
  /** Only where it is not the event id. */
  readonly id?: string
  readonly time?: string
  readonly subject?: string
  readonly datacontenttype?: string
  readonly dataschema?: string
  readonly extensions?: Readonly<Record<string, string | number | boolean | { readonly base64: string }>>
  readonly aggregate?: { readonly type: string; readonly id: string }
  /** What the data is: JSON made here, other text, or bytes. */
  readonly form: 'json' | 'text' | 'bytes'
}

/** An event as it is enqueued. */
export interface Entry {
  readonly id: string
  readonly key: string | undefined
  /** Milliseconds since 1970, or now. */
  readonly due: number | undefined
  readonly body: RedisArg
}

const OWN_EXTENSIONS = new Set(['partitionkey', 'tenantid', 'eventversion'])

/** What can be wrong with an event is found here, before anything is written. */
export function entryOf(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): Entry {
  checkEvent(event)
  const key = options.key ?? event.key
  checkKey(event, key)
  checkTexts(event, options, options.topic ?? topicOf(event))
  const raw = encodeData(event)
  const size = typeof raw.data === 'string' ? Buffer.byteLength(raw.data) : raw.data.byteLength
  if (size > MAX_PAYLOAD_BYTES) {
    const advice = `at most ${MAX_PAYLOAD_BYTES} bytes; keep large data elsewhere and send a reference`
    tooLarge(event, 'payload', size, advice)
  }
  // The key comes first, and by its length: scripts read it too.
  const prefix = key === undefined ? '-' : `${Buffer.byteLength(key)}:${key}`
  const head = prefix + headerText(raw, options, topicOf(event))
  const body =
    typeof raw.data === 'string' ? `${head}\n${raw.data}` : Buffer.concat([Buffer.from(`${head}\n`), raw.data])
  return { id: eventUuid(event), key, due: dueOf(event.type, options.availableAt), body }
}

function headerText(raw: RawMessage, options: EnqueueOptions, topic: string): string {
  const { id, source, type, time, subject, datacontenttype, dataschema, version } = raw
  const header: Record<string, unknown> = { topic: options.topic ?? topic, type, source, version }
  const tenant = options.tenant ?? raw.tenant ?? ''
  if (tenant !== '') header['tenant'] = tenant
  if (!isUuid(id) || id !== id.toLowerCase()) header['id'] = id
  for (const [name, value] of Object.entries({ time, subject, datacontenttype, dataschema })) {
    if (value !== undefined) header[name] = value
  }
  const extensions: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(raw.extensions)) {
    if (OWN_EXTENSIONS.has(name)) continue
    extensions[name] = value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value
  }
  if (Object.keys(extensions).length > 0) header['extensions'] = extensions
  if (options.aggregate !== undefined) header['aggregate'] = { type: options.aggregate.type, id: options.aggregate.id }
  header['form'] = typeof raw.data !== 'string' ? 'bytes' : raw.form === 'json' ? 'json' : 'text'
  return JSON.stringify(header)
}

/** Reads what `entryOf` has written. Throws for what it has not. */
export function headerOf(text: string): Header {
  const header = JSON.parse(text) as Header
  const { topic, type, source, form } = header ?? {}
  if ([topic, type, source].every((word) => typeof word === 'string') && /^(json|text|bytes)$/.test(form)) return header
  throw new WaybillError('MALFORMED_ENTRY', 'its header lacks topic, type, source or form')
}

export function messageOf(id: string, body: Buffer): RawMessage {
  const { key, header, data } = partsOf(id, body)
  const extensions = extensionsOf(header, key)
  const { source, type, time, subject, datacontenttype, dataschema } = header
  const attributes = { id: header.id ?? id, source, type, time, subject, datacontenttype, dataschema, extensions }
  const message: RawMessage =
    header.form === 'bytes'
      ? new Message<string | Uint8Array>(attributes, new Uint8Array(data), 'raw')
      : new Message<string | Uint8Array>(attributes, data.toString('utf8'), header.form === 'json' ? 'json' : 'raw')
  setTopic(message, header.topic)
  return message
}

const [DASH, COLON, LINE] = [45, 58, 10]

function partsOf(id: string, body: Buffer): { key: string | undefined; header: Header; data: Buffer } {
  let key: string | undefined
  let from = 1
  if (body[0] !== DASH) {
    const colon = body.indexOf(COLON)
    const length = colon < 0 ? Number.NaN : Number(body.toString('latin1', 0, colon))
    if (!Number.isInteger(length)) unreadable(id, 'it does not begin with a key')
    from = colon + 1 + length
    key = body.toString('utf8', colon + 1, from)
  }
  const line = body.indexOf(LINE, from)
  const end = line < 0 ? body.length : line
  try {
    return { key, header: headerOf(body.toString('utf8', from, end)), data: body.subarray(end + 1) }
  } catch (error) {
    // A parser quotes what it has read, which may be data.
    return unreadable(id, error instanceof WaybillError ? error.message : 'its header is no JSON')
  }
}

function unreadable(id: string, why: string): never {
  throw new WaybillError('MALFORMED_ENTRY', `the entry of event ${id} cannot be read: ${why}`)
}

function extensionsOf({ version, tenant, extensions = {} }: Header, key: string | undefined): Extensions {
  const all: Record<string, ExtensionValue> = { eventversion: version }
  if (key !== undefined) all['partitionkey'] = key
  if (tenant !== undefined) all['tenantid'] = tenant
  for (const [name, value] of Object.entries(extensions)) {
    all[name] = typeof value === 'object' ? new Uint8Array(Buffer.from(value.base64, 'base64')) : value
  }
  return all
}

function dueOf(type: string, at: Date | undefined): number | undefined {
  if (at === undefined) return undefined
  if (at instanceof Date && !Number.isNaN(at.getTime())) return at.getTime()
  const text = `${describe(type)}: availableAt is ${describe(at)}; give a Date, such as new Date(Date.now() + 60_000)`
  throw new WaybillError('INVALID_OPTION', text)
}

function tooLarge({ type }: Message, what: string, size: number, allowed: string): never {
  throw new WaybillError('TOO_LARGE', `${describe(type)}: the ${what} has ${size} bytes; ${allowed}`)
}

/** What outbox-enqueue.lua takes for each event. */
export function enqueueArgs(entries: readonly Entry[]): RedisArg[] {
  return entries.flatMap(({ id, key, due, body }) => [
    id,
    key ?? '',
    key === undefined ? '0' : '1',
    due === undefined ? '' : String(due),
    body,
  ])
}
