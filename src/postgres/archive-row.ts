import type { RawMessage } from '../core/index.ts'
import type { Cell } from '../drivers/sql/sql.ts'
import { deliveryOf } from './row.ts'

/** A whole row as text, for showing and archiving. Times are ISO 8601, bytes are hex. */
export interface StoredRow {
  readonly event_id: string
  readonly sequence: string
  readonly state: string
  readonly tenant_id: string
  readonly topic: string
  readonly key: string | null
  readonly source: string
  readonly event_type: string
  readonly event_version: string
  readonly aggregate_type: string | null
  readonly aggregate_id: string | null
  readonly foreign_id: string | null
  readonly attributes: string | null
  readonly payload: string | null
  readonly payload_bytes: string | null
  readonly created_at: string
  readonly available_at: string | null
  readonly published_at: string | null
  readonly attempts: string
  readonly last_error: string | null
}

/** The columns of a `StoredRow`, of a table with the alias `event`. */
export const STORED = `event.event_id::text AS event_id, event.sequence::text AS sequence, event.state, event.tenant_id,
  event.topic, event.key, event.source, event.event_type, event.event_version::text AS event_version,
  event.aggregate_type, event.aggregate_id, event.foreign_id, event.attributes::text AS attributes,
  event.payload::text AS payload, encode(event.payload_bytes, 'hex') AS payload_bytes,
  to_json(event.created_at) #>> '{}' AS created_at, to_json(event.available_at) #>> '{}' AS available_at,
  to_json(event.published_at) #>> '{}' AS published_at, event.attempts::text AS attempts, event.last_error`

/** The message as a relay would have it. */
export function messageOfStored(row: StoredRow): RawMessage {
  const cells: Cell[] = [
    row.event_id,
    row.sequence,
    row.state,
    row.topic,
    row.key,
    row.tenant_id,
    row.source,
    row.event_type,
    row.event_version,
    row.foreign_id,
    row.attributes,
    row.attempts,
    '0',
    row.payload,
    row.payload_bytes,
  ]
  return deliveryOf(cells).message as RawMessage
}
