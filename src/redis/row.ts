import { errorSummary, eventUuid, isUuid, Message, type RawMessage, WaybillError, withoutCode } from '../core/index.ts'
import type { RedisArg } from '../drivers/redis/redis.ts'
import { type Settlement, setTopic } from '../flow/index.ts'
import { checkedEvent } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'
import { checkStored, extensionsOf, type StoredAttributes, storedAttributes } from '../store/stored-attributes.ts'

/** What the header of an entry says: all of a CloudEvent but its data. */
export interface Header extends Readonly<StoredAttributes> {
  readonly topic: string
  readonly type: string
  readonly source: string
  readonly version: number
  readonly tenant?: string
  /** Only where it is not the event id. */
  readonly id?: string
  readonly aggregate?: { readonly type: string; readonly id: string }
  /** What the data is: JSON made here, other text, or bytes. */
  readonly form: 'json' | 'text' | 'bytes'
}

/** An event as it is enqueued. */
export interface NewEntry {
  readonly id: string
  readonly key: string | undefined
  /** Milliseconds since 1970, or now. */
  readonly due: number | undefined
  readonly topic: string
  readonly body: RedisArg
}

/** What can be wrong with an event is found here, before anything is written. */
export function entryOf(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): NewEntry {
  const { raw, key, tenant, topic } = checkedEvent(event, options, topicOf)
  // The key comes first, and by its length: scripts read it too.
  const prefix = key === undefined ? '-' : `${Buffer.byteLength(key)}:${key}`
  const head = prefix + headerText(raw, { tenant, topic, aggregate: options.aggregate })
  const body =
    typeof raw.data === 'string' ? `${head}\n${raw.data}` : Buffer.concat([Buffer.from(`${head}\n`), raw.data])
  return { id: eventUuid(event), key, due: options.availableAt?.getTime(), topic, body }
}

function headerText(
  raw: RawMessage,
  { tenant, topic, aggregate }: { tenant: string; topic: string; aggregate: EnqueueOptions['aggregate'] },
): string {
  const { id, source, type, version } = raw
  const header: { -readonly [Name in keyof Header]: Header[Name] } = {
    topic,
    type,
    source,
    version,
    ...(tenant === '' ? {} : { tenant }),
    ...(isUuid(id) && id === id.toLowerCase() ? {} : { id }),
    ...storedAttributes(raw),
    ...(aggregate === undefined ? {} : { aggregate: { type: aggregate.type, id: aggregate.id } }),
    form: typeof raw.data !== 'string' ? 'bytes' : raw.form === 'json' ? 'json' : 'text',
  }
  return JSON.stringify(header)
}

/** Reads what `entryOf` has written. Throws for what it has not. */
export function headerOf(text: string): Header {
  const header = JSON.parse(text) as Header
  checkStored(header, 'its header', malformed)
  const { topic, type, source, form } = header
  if ([topic, type, source].every((word) => typeof word === 'string') && /^(json|text|bytes)$/.test(form)) return header
  return malformed('its header lacks topic, type, source or form')
}

export function messageOf(id: string, body: Buffer): RawMessage {
  const { key, header, data } = partsOf(id, body)
  const { version, tenant } = header
  const extensions = extensionsOf(header, { version, key, tenant }, 'its header', (what) => unreadable(id, what))
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
    return unreadable(id, error instanceof WaybillError ? withoutCode(error) : 'its header is no JSON')
  }
}

function malformed(what: string): never {
  throw new WaybillError('MALFORMED_ENTRY', what)
}

function unreadable(id: string, why: string): never {
  throw new WaybillError('MALFORMED_ENTRY', `the entry of event ${id} cannot be read: ${why}`)
}

/** What outbox-enqueue.lua takes for each event. */
export function enqueueArgs(entries: readonly NewEntry[]): RedisArg[] {
  return entries.flatMap(({ id, key, due, body }) => [
    id,
    key ?? '',
    key === undefined ? '0' : '1',
    due === undefined ? '' : String(due),
    body,
  ])
}

/** A member is its sequence in 16 digits and the event id. */
export function idOf(member: string): string {
  return member.slice(16)
}

/** When it was enqueued, in milliseconds since 1970 on the server's clock: numbers follow it, a thousand of them each. */
export function createdOf(member: string): number {
  return Math.floor(Number(member.slice(0, 16)) / 1000)
}

/** A settlement as outbox-settle.lua takes it. */
export function wordsOf(settlement: Settlement): string[] {
  switch (settlement.kind) {
    case 'retry':
      return [
        'retry',
        String(Math.ceil(settlement.after)),
        settlement.charged ? '1' : '0',
        errorSummary(settlement.error),
      ]
    case 'dead':
      return ['dead', '0', '1', settlement.reason]
    default:
      return ['release', '0', '0', '']
  }
}
