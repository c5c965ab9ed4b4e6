import { type Attributes, type Extensions, type ExtensionValue, Message, type RawMessage } from '../core/index.ts'
import { type Cell, type Connection, textArray } from '../drivers/sql.ts'
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
export const isLarge = (row: Row): boolean => row[13] === null && row[14] === null
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

export function deliveryOf(
  row: Row,
  payload = row[13] as string | null,
  hex = row[14] as string | null,
): OutboxDelivery {
  return {
    message: messageOf(row, payload, hex),
    key: keyOf(row),
    attempts: attemptsOf(row),
    size: sizeOf(row) + 200,
    eventId: idOf(row),
    sequence: sequenceOf(row),
    state: stateOf(row),
  }
}

function messageOf(row: Row, payload: string | null, hex: string | null): RawMessage {
  const stored = (row[10] === null ? {} : JSON.parse(row[10] as string)) as StoredAttributes & Partial<Attributes>
  const attributes = stored as { -readonly [Name in keyof Attributes]: Attributes[Name] }
  const extensions = extensionsOf(stored, row[4] as string | null, row[5] as string | null, row[8] as string | null)
  attributes.id = (row[9] ?? row[0]) as string
  attributes.source = row[6] as string
  attributes.type = row[7] as string
  attributes.extensions = extensions
  const message =
    payload === null ? rawMessage(attributes, hex ?? '', stored.text) : new Message(attributes, payload, 'json')
  if (row[3] !== null) setTopic(message, row[3] as string)
  return message
}

function rawMessage(
  attributes: ConstructorParameters<typeof Message>[0],
  hex: string,
  text: true | undefined,
): RawMessage {
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
    const value = stored.extensions[name]!
    extensions[name] = typeof value === 'object' ? new Uint8Array(Buffer.from(value.base64, 'base64')) : value
  }
  return extensions
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

export interface LargePayload {
  readonly json: string | null
  readonly hex: string | null
}

/** The deliveries of these rows, with the payloads that the scan left out for their size. */
export async function deliveriesOf(on: Connection, text: string, rows: readonly Row[]): Promise<OutboxDelivery[]> {
  const large = rows.filter(isLarge).map(idOf)
  if (large.length === 0) return rows.map((row) => deliveryOf(row))
  const found = await on.read('large-payloads', text, [textArray(large)])
  const payloads = new Map(found.map(([id, json, hex]) => [id as string, { json, hex } as LargePayload]))
  return rows.map((row) => {
    const payload = payloads.get(idOf(row))
    return payload === undefined ? deliveryOf(row) : deliveryOf(row, payload.json, payload.hex)
  })
}
