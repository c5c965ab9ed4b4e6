import {
  type Attributes,
  describe,
  type Extensions,
  type ExtensionValue,
  errorSummary,
  Message,
  type RawMessage,
  WaybillError,
} from '../core/index.ts'
import { type Cell, type Connection, textArray } from '../drivers/sql/sql.ts'
import { type Delivery, setTopic } from '../flow/index.ts'
import type { State } from '../outbox/admin.ts'

/** A delivery from the outbox: the row's place and the lane it came from. */
export interface OutboxDelivery extends Delivery {
  readonly eventId: string
  readonly sequence: string
  /** The state the row is in while it is in hand. */
  readonly state: State
}

/** One row as the scans return it, see COLUMNS in names.ts. It is read in place: most of a relay's garbage is rows. */
export type Row = readonly Cell[]

/** The payload was left out for its size. */
const isLarge = (row: Row): boolean => row[13] === null && row[14] === null && row[12] !== null
export const idOf = (row: Row): string => row[0] as string
export const sequenceOf = (row: Row): string => row[1] as string
/** The same as a number: they are far from where numbers lose digits. */
export const numberOf = (row: Row): number => Number(row[1])
export const stateOf = (row: Row): State => (row[2] as State | null) ?? 'ready'
export const keyOf = (row: Row): string | undefined => (row[4] as string | null) ?? undefined
export const tenantOf = (row: Row): string | undefined => (row[5] as string | null) ?? undefined
export const typeOf = (row: Row): string => row[7] as string
export const attemptsOf = (row: Row): number => (row[11] === null ? 0 : Number(row[11]))
/** An earlier event of its key has failed or waits. */
export const isBlocked = (row: Row): boolean => row[15] === 't'

/** What `attributes` holds: everything of a CloudEvent that has no column of its own. */
export interface StoredAttributes {
  time?: string
  subject?: string
  datacontenttype?: string
  dataschema?: string
  extensions?: Record<string, string | number | boolean | { base64: string }>
  /** payload_bytes is text. */
  text?: true
}

/** Bytes of the payload as read; of one that was left out, as stored: what is stored may be compressed. */
function sizeOf(row: Row): number {
  const text = row[13] as string | null
  if (text !== null) return text.length
  const hex = row[14] as string | null
  return hex === null ? Number(row[12]) : hex.length / 2
}

/** Throws MALFORMED_ROW when the row is none that a relay can read. */
export function deliveryOf(row: Row, payload: Cell = row[13]!, hex: Cell = row[14]!): OutboxDelivery {
  return {
    message: messageOf(row, payload as string | null, hex as string | null),
    key: keyOf(row),
    attempts: attemptsOf(row),
    size: sizeOf(row) + 200,
    eventId: idOf(row),
    sequence: sequenceOf(row),
    state: stateOf(row),
  }
}

function messageOf(row: Row, payload: string | null, hex: string | null): RawMessage {
  const stored = attributesOf(row[10] as string | null)
  const attributes = stored as { -readonly [Name in keyof Attributes]: Attributes[Name] }
  const extensions = extensionsOf(stored, row[4] as string | null, row[5] as string | null, row[8] as string | null)
  attributes.id = (row[9] ?? row[0]) as string
  attributes.source = row[6] as string
  attributes.type = row[7] as string
  attributes.extensions = extensions
  if (attributes.source === '' || attributes.type === '') malformed('source or event_type is empty')
  const message = payload === null ? rawMessage(attributes, hex, stored.text) : new Message(attributes, payload, 'json')
  if (row[3] !== null) setTopic(message, row[3] as string)
  return message
}

/** Rows are written by others too: whoever else may write to the table need not know what a relay can read. */
function attributesOf(text: string | null): StoredAttributes & Partial<Attributes> {
  const stored: unknown = text === null ? {} : JSON.parse(text)
  if (!isObject(stored)) malformed('attributes is not a JSON object')
  const { time, subject, datacontenttype, dataschema, extensions } = stored
  if (!isText(time) || !isText(subject) || !isText(datacontenttype) || !isText(dataschema)) {
    malformed('attributes: time, subject, datacontenttype and dataschema must be strings')
  }
  if (extensions !== undefined && !isObject(extensions)) malformed('attributes: extensions is not a JSON object')
  return stored as StoredAttributes & Partial<Attributes>
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

const isText = (value: unknown): boolean => value === undefined || typeof value === 'string'

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

function extensionsOf(
  stored: StoredAttributes,
  key: string | null,
  tenant: string | null,
  version: string | null,
): Extensions {
  const extensions: Record<string, ExtensionValue> = { eventversion: Number(version ?? 1) }
  if (key !== null) extensions['partitionkey'] = key
  if (tenant !== null && tenant !== '') extensions['tenantid'] = tenant
  for (const name in stored.extensions) {
    extensions[name] = extensionOf(name, stored.extensions[name])
  }
  return extensions
}

function extensionOf(name: string, value: unknown): ExtensionValue {
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean') return value
  if (isObject(value) && typeof value['base64'] === 'string') {
    return new Uint8Array(Buffer.from(value['base64'], 'base64'))
  }
  return malformed(`attributes: extension ${describe(name)} is no string, number, boolean or bytes`)
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

/** With the payloads that the scan left out for their size. A row that was removed meanwhile is left out. */
export async function deliveriesOf(on: Connection, text: string, rows: readonly Row[]): Promise<Decoded> {
  const large = rows.filter(isLarge).map(idOf)
  const payloads = new Map<string, readonly Cell[]>()
  if (large.length > 0) {
    for (const found of await on.read('large-payloads', text, [textArray(large)])) payloads.set(idOf(found), found)
  }
  const deliveries: OutboxDelivery[] = []
  const unreadable: { row: Row; reason: string }[] = []
  for (const row of rows) {
    const payload = isLarge(row) ? payloads.get(idOf(row)) : undefined
    if (payload === undefined && isLarge(row)) continue
    try {
      const delivery = payload === undefined ? deliveryOf(row) : deliveryOf(row, payload[1], payload[2])
      deliveries.push(delivery)
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
