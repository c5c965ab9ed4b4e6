import {
  type Attributes,
  type ExtensionValue,
  errorSummary,
  eventUuid,
  isUuid,
  Message,
  type RawMessage,
  WaybillError,
} from '../core/index.ts'
import { type Cell, type Connection, numberArray, textArray } from '../drivers/sql/sql.ts'
import { type Delivery, type Settled, type Settlement, setTopic } from '../flow/index.ts'
import type { State } from '../outbox/admin.ts'
import { checkedEvent } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'
import {
  checkStored,
  extensionsOf,
  type StoredAttributes,
  sequenceText,
  storedAttributes,
} from '../store/stored-attributes.ts'
import { AT, type EnqueuedName, type StoredRow, scannedOf } from './columns.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** A delivery from the outbox: its place in the table, and the state it was read in. */
export interface OutboxDelivery extends Delivery {
  readonly eventId: string
  readonly sequence: string
  /** The state the row is in while it is unsettled. */
  readonly state: State
}

/** One row as the scans return it, see columns.ts. It is read in place: most of a relay's garbage is rows. */
export type Row = readonly Cell[]

/** The payload was left out for its size. */
const isLarge = (row: Row): boolean =>
  row[AT.payload] === null && row[AT.payload_bytes] === null && row[AT.size] !== null
export const idOf = (row: Row): string => row[AT.event_id] as string
export const sequenceOf = (row: Row): string => row[AT.sequence] as string
/** The same as a number: they are far from where numbers lose digits. */
export const numberOf = (row: Row): number => Number(row[AT.sequence])
export const stateOf = (row: Row): State => (row[AT.state] as State | null) ?? 'ready'
export const keyOf = (row: Row): string | undefined => (row[AT.key] as string | null) ?? undefined
export const tenantOf = (row: Row): string | undefined => (row[AT.tenant_id] as string | null) ?? undefined
export const typeOf = (row: Row): string => row[AT.event_type] as string
/** In milliseconds since 1970. PostgreSQL counts microseconds since 2000. */
export const createdOf = (row: Row): number => Number.parseInt(row[AT.created_at] as string, 16) / 1000 + YEAR_2000
const YEAR_2000 = Date.UTC(2000, 0)
export const attemptsOf = (row: Row): number => (row[AT.attempts] === null ? 0 : Number(row[AT.attempts]))
/** An earlier event of its key has failed or waits. */
export const isBlocked = (row: Row): boolean => row[AT.blocked] === 't'
/** It was claimed, and the lease of another had run out. */
export const isExpired = (row: Row): boolean => row[AT.expired] === 't'
/** There are more of those. */
export const hasMoreExpired = (row: Row): boolean => row[AT.more_expired] === 't'

/** What telemetry says of it. */
export const aboutOf = (row: Row) => ({
  type: typeOf(row),
  id: idOf(row),
  tenant: tenantOf(row),
  topic: (row[AT.topic] as string | null) ?? typeOf(row),
})

/** What the column `attributes` holds. `text`: payload_bytes is text. */
interface RowAttributes extends StoredAttributes {
  text?: true
}

/** As it was read; `undefined` where it was left out for its size. */
export function payloadRead(row: Row): string | Uint8Array | undefined {
  const hex = row[AT.payload_bytes] as string | null
  return (row[AT.payload] as string | null) ?? (hex === null ? undefined : Buffer.from(hex, 'hex'))
}

/** Bytes of the payload as read; of one that was left out, as stored: what is stored may be compressed. */
function sizeOf(row: Row): number {
  const text = row[AT.payload] as string | null
  if (text !== null) return text.length
  const hex = row[AT.payload_bytes] as string | null
  return hex === null ? Number(row[AT.size]) : hex.length / 2
}

/** Throws MALFORMED_ROW when the row is none that a relay can read. `log`: its number is put on the message. */
export function deliveryOf(
  row: Row,
  log = false,
  payload: Cell = row[AT.payload]!,
  hex: Cell = row[AT.payload_bytes]!,
): OutboxDelivery {
  return {
    message: messageOf(row, log, payload as string | null, hex as string | null),
    key: keyOf(row),
    attempts: attemptsOf(row),
    size: sizeOf(row) + 200,
    eventId: idOf(row),
    sequence: sequenceOf(row),
    state: stateOf(row),
    created: createdOf(row),
  }
}

function messageOf(row: Row, log: boolean, payload: string | null, hex: string | null): RawMessage {
  const stored = attributesOf(row[AT.attributes] as string | null)
  const attributes = stored as { -readonly [Name in keyof Attributes]: Attributes[Name] }
  const own = {
    version: Number(row[AT.event_version] ?? 1),
    key: row[AT.key] as string | null,
    tenant: row[AT.tenant_id] as string | null,
  }
  const extensions = extensionsOf(stored, own, 'attributes', malformed)
  // It was made here: adding to it is cheaper than a copy.
  if (log) (extensions as Record<string, ExtensionValue>)['sequence'] = sequenceText(sequenceOf(row))
  attributes.extensions = extensions
  attributes.id = (row[AT.foreign_id] ?? row[AT.event_id]) as string
  attributes.source = row[AT.source] as string
  attributes.type = typeOf(row)
  if (attributes.source === '' || attributes.type === '') malformed('source or event_type is empty')
  const message = payload === null ? rawMessage(attributes, hex, stored.text) : new Message(attributes, payload, 'json')
  if (row[AT.topic] !== null) setTopic(message, row[AT.topic] as string)
  return message
}

function attributesOf(text: string | null): RowAttributes & Partial<Attributes> {
  const stored: unknown = text === null ? {} : JSON.parse(text)
  checkStored(stored, 'attributes', malformed)
  return stored as RowAttributes & Partial<Attributes>
}

function malformed(what: string): never {
  throw new WaybillError('MALFORMED_ROW', what)
}

function rawMessage(
  attributes: ConstructorParameters<typeof Message>[0],
  hex: string | null,
  text: true | undefined,
): RawMessage {
  if (hex === null) malformed('there is no payload')
  const bytes = Buffer.from(hex, 'hex')
  return new Message<string | Uint8Array>(attributes, text ? bytes.toString('utf8') : new Uint8Array(bytes), 'raw')
}

/** As many of the first as `bytes` allows, and at least one. */
export function withinBytes(rows: readonly Row[], bytes: number): readonly Row[] {
  let total = 0
  for (let i = 0; i < rows.length; i++) {
    total += sizeOf(rows[i]!)
    if (i > 0 && total > bytes) return rows.slice(0, i)
  }
  return rows
}

/** Rows as deliveries. One that cannot be read costs only itself: it is named here, with the reason, and the others go on. */
export interface Decoded {
  readonly deliveries: OutboxDelivery[]
  readonly unreadable: readonly { readonly row: Row; readonly reason: string }[]
}

/**
 * With the payloads that the scan left out for their size. A row that was removed meanwhile is left out. `archived`: rows of
 * a log, some of which may be in its archive.
 */
export async function deliveriesOf(
  on: Pick<Connection, 'read'>,
  names: OutboxNames,
  rows: readonly Row[],
  archived = false,
): Promise<Decoded> {
  const large = rows.filter(isLarge)
  // The archive has no index by id.
  const named = archived ? sequenceOf : idOf
  const payloads = new Map<string, readonly Cell[]>()
  if (large.length > 0) {
    const file = archived ? 'log-large' : 'large-payloads'
    const which = textArray(large.map(named))
    for (const found of await on.read(file, names.fill(sql[file]), [which])) payloads.set(found[0] as string, found)
  }
  const deliveries: OutboxDelivery[] = []
  const unreadable: { row: Row; reason: string }[] = []
  for (const row of rows) {
    const payload = isLarge(row) ? payloads.get(named(row)) : undefined
    if (payload === undefined && isLarge(row)) continue
    try {
      deliveries.push(
        payload === undefined ? deliveryOf(row, names.log) : deliveryOf(row, names.log, payload[1], payload[2]),
      )
    } catch (error) {
      unreadable.push({ row, reason: errorSummary(malformedBy(error)) })
    }
  }
  return { deliveries, unreadable }
}

/** Whatever a parser says may quote the data: only our own words are kept. */
function malformedBy(error: unknown): WaybillError {
  return error instanceof WaybillError ? error : new WaybillError('MALFORMED_ROW', 'attributes cannot be read')
}

/** The values of one event, by column. */
export type EventRow = Readonly<Record<EnqueuedName, string | null>>

/** jsonb refuses NUL and lone surrogates, high or low. A false alarm costs nothing: the text is then kept as bytes. */
const NOT_FOR_JSONB = /\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})/

export function eventRow(event: Message, options: EnqueueOptions, topicOf: (event: Message) => string): EventRow {
  const { raw, key, tenant, topic } = checkedEvent(event, options, topicOf)
  const { id } = raw
  const { payload, hex, text } = payloadOf(raw)
  const attributes: RowAttributes = storedAttributes(raw)
  if (text) attributes.text = true
  return {
    event_id: eventUuid(raw),
    tenant_id: tenant,
    topic,
    key: key ?? null,
    source: raw.source,
    event_type: raw.type,
    event_version: String(raw.version),
    aggregate_type: options.aggregate?.type ?? null,
    aggregate_id: options.aggregate?.id ?? null,
    foreign_id: isUuid(id) && id === id.toLowerCase() ? null : id,
    attributes: JSON.stringify(attributes),
    payload,
    payload_bytes: hex,
    available_at: options.availableAt?.toISOString() ?? null,
  }
}

function payloadOf({ data, form }: RawMessage): { payload: string | null; hex: string | null; text: boolean } {
  // Only JSON made here goes into jsonb: it reorders and drops keys, and what passes through must stay as it is.
  if (form === 'json' && typeof data === 'string' && !NOT_FOR_JSONB.test(data) && data !== '') {
    return { payload: data, hex: null, text: false }
  }
  const bytes = typeof data === 'string' ? Buffer.from(data, 'utf8') : data
  const hex = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex')
  return { payload: null, hex, text: typeof data === 'string' }
}

/** What a settlement makes of a row. */
export interface RowUpdate {
  readonly id: string
  readonly becomes: State
  readonly attempts: number
  readonly after?: number
  readonly error?: string
}

/**
 * What is written must be something the table takes: a statement that fails for one row fails for the whole batch. So
 * texts have no NUL and are short, and delays end within the lifetime of a timestamp.
 */
const MAX_DELAY = 100 * 365 * 86_400_000
const MAX_TEXT = 2000

export function storable(text: string): string {
  return (text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) : text)
    .replaceAll('\0', '')
    .replace(LONE_SURROGATE, '\ufffd')
}

const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

function delayOf(after: number): number {
  return Number.isNaN(after) ? 0 : Math.min(Math.max(0, after), MAX_DELAY)
}

export function updateOf(delivery: OutboxDelivery, settlement: Settlement): RowUpdate {
  const { eventId: id, attempts } = delivery
  switch (settlement.kind) {
    case 'done':
      return { id, becomes: 'published', attempts }
    case 'retry': {
      const { after, error, charged } = settlement
      const text = storable(errorSummary(error))
      return { id, becomes: 'retrying', attempts: attempts + (charged ? 1 : 0), after: delayOf(after), error: text }
    }
    case 'dead':
      return { id, becomes: 'dead', attempts: attempts + 1, error: storable(settlement.reason) }
    case 'release':
      return { id, becomes: 'ready', attempts }
  }
}

/**
 * What is given back behind one that failed is held with it, in one step. Left ready, it would come after those that are
 * written later: a take that goes on meanwhile finds them blocked and holds them, but not what is still unsettled.
 */
export function heldBehind(failing: ReadonlySet<string>, batch: readonly Settled<OutboxDelivery>[]): RowUpdate[] {
  return batch
    .filter(([{ key, state }, { kind }]) => {
      return kind === 'release' && (state === 'ready' || state === 'scheduled') && key !== undefined && failing.has(key)
    })
    .map(([{ eventId, attempts }]) => ({ id: eventId, becomes: 'held', attempts }))
}

/** As parameters of settle-mixed.sql and lease-settle.sql: ids, what they become, attempts, delays, errors. */
export function updateValues(rows: readonly RowUpdate[]): string[] {
  return [
    textArray(rows.map((row) => row.id)),
    textArray(rows.map((row) => row.becomes)),
    numberArray(rows.map((row) => row.attempts)),
    textArray(rows.map((row) => (row.after === undefined ? null : String(row.after)))),
    textArray(rows.map((row) => row.error)),
  ]
}

export function unchanged(names: OutboxNames, count: number): WaybillError {
  return new WaybillError(
    'NOT_SETTLED',
    `${names.table.text}: ${count} events were settled and their rows did not change, though nobody else may settle them; a trigger that returns NULL or row-level security without an UPDATE policy does that: let the relay's role update the table`,
  )
}

/** The message of a whole row, as a relay would have it. */
export function messageOfStored(row: StoredRow): RawMessage {
  return deliveryOf(scannedOf(row)).message as RawMessage
}
