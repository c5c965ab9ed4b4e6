import { type Extensions, type ExtensionValue, Message, type RawMessage } from '../core/index.ts'
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

/** One row as the scans return it, see COLUMNS in names.ts. */
export interface Row {
  readonly eventId: string
  readonly sequence: string
  readonly state: State
  readonly blocked: boolean
  readonly key: string | undefined
  /** Bytes of the payload as read; of one that was left out, as stored. */
  readonly size: number
  /** The payload was left out for its size. */
  readonly large: boolean
  readonly cells: readonly Cell[]
}

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

export function rowOf(cells: readonly Cell[]): Row {
  return {
    eventId: cells[0] as string,
    sequence: cells[1] as string,
    state: (cells[2] as State | null) ?? 'ready',
    key: (cells[4] as string | null) ?? undefined,
    size: sizeOf(cells),
    large: cells[13] === null && cells[14] === null,
    blocked: cells[15] === 't',
    cells,
  }
}

/** What is stored may be compressed: a payload that was read along is as large as its text. */
function sizeOf(cells: readonly Cell[]): number {
  const [text, hex] = [cells[13] as string | null, cells[14] as string | null]
  if (text !== null) return text.length
  return hex === null ? Number(cells[12]) : hex.length / 2
}

export function deliveryOf(
  row: Row,
  payload = row.cells[13] as string | null,
  hex = row.cells[14] as string | null,
): OutboxDelivery {
  const { eventId, sequence, state, key, cells } = row
  const message = messageOf(cells, payload, hex)
  return { message, key, attempts: Number(cells[11] ?? 0), size: row.size + 200, eventId, sequence, state }
}

function messageOf(cells: readonly Cell[], payload: string | null, hex: string | null): RawMessage {
  const stored: StoredAttributes = cells[10] === null ? {} : JSON.parse(cells[10] as string)
  const { time, subject, datacontenttype, dataschema } = stored
  const attributes = {
    id: (cells[9] ?? cells[0]) as string,
    source: cells[6] as string,
    type: cells[7] as string,
    time,
    subject,
    datacontenttype,
    dataschema,
    extensions: extensionsOf(stored, cells[4] as string | null, cells[5] as string | null, cells[8] as string | null),
  }
  const message =
    payload === null ? rawMessage(attributes, hex ?? '', stored.text) : new Message(attributes, payload, 'json')
  if (cells[3] !== null) setTopic(message, cells[3] as string)
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
    total += rows[i]!.size
    if (i > 0 && total > bytes) return rows.slice(0, i)
  }
  return rows
}

export interface LargePayload {
  readonly json: string | null
  readonly hex: string | null
}

/** Payloads that the scan left out for their size, by event id. */
export async function largePayloads(
  on: Connection,
  text: string,
  rows: readonly Row[],
): Promise<Map<string, LargePayload>> {
  const large = rows.filter((row) => row.large).map((row) => row.eventId)
  if (large.length === 0) return new Map()
  const found = await on.read('large-payloads', text, [textArray(large)])
  return new Map(found.map(([id, json, hex]) => [id as string, { json, hex } as LargePayload]))
}
