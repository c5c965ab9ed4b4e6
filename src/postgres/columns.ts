import type { Cell } from '../drivers/sql/sql.ts'

/** A payload larger than this is not read with the scan, but on its own and within the byte limit. */
const INLINE_PAYLOAD = 8192
/** What `attempts` can count to. Who allows more means for ever. */
export const MOST_ATTEMPTS = 2_147_483_647

interface Column {
  readonly type: 'uuid' | 'bigint' | 'int' | 'text' | 'jsonb' | 'bytea' | 'timestamptz'
  readonly nullable?: true
  /** Given by whoever enqueues. */
  readonly enqueued?: true
  /** How a relay reads it, where it does. A value that is nearly always the same comes as NULL, to save parsing. */
  readonly scan?: string
  /** Of the relay that works on it: not shown to people, not archived in files. */
  readonly working?: true
}

/**
 * The columns of the outbox, in the order of the table. What relays scan, what is shown and archived, and what an event
 * is written as all follow from here; a test compares the .sql files with it.
 */
export const COLUMNS = {
  event_id: { type: 'uuid', enqueued: true, scan: 'event_id::text' },
  sequence: { type: 'bigint', scan: 'sequence::text' },
  state: { type: 'text', scan: `NULLIF(state, 'ready')` },
  tenant_id: { type: 'text', enqueued: true, scan: `NULLIF(tenant_id, '')` },
  topic: { type: 'text', enqueued: true, scan: 'NULLIF(topic, event_type)' },
  key: { type: 'text', nullable: true, enqueued: true, scan: 'key' },
  source: { type: 'text', enqueued: true, scan: 'source' },
  event_type: { type: 'text', enqueued: true, scan: 'event_type' },
  event_version: { type: 'int', enqueued: true, scan: 'NULLIF(event_version, 1)::text' },
  aggregate_type: { type: 'text', nullable: true, enqueued: true },
  aggregate_id: { type: 'text', nullable: true, enqueued: true },
  foreign_id: { type: 'text', nullable: true, enqueued: true, scan: 'foreign_id' },
  attributes: { type: 'jsonb', nullable: true, enqueued: true, scan: 'attributes::text' },
  payload: {
    type: 'jsonb',
    nullable: true,
    enqueued: true,
    scan: `CASE WHEN pg_column_size(payload) <= ${INLINE_PAYLOAD} THEN payload::text END`,
  },
  payload_bytes: {
    type: 'bytea',
    nullable: true,
    enqueued: true,
    scan: `CASE WHEN octet_length(payload_bytes) <= ${INLINE_PAYLOAD} THEN encode(payload_bytes, 'hex') END`,
  },
  /** As PostgreSQL keeps it: arithmetic would cost every row of a scan, and fail the whole scan for an infinite one. */
  created_at: { type: 'timestamptz', scan: `encode(timestamptz_send(created_at), 'hex')` },
  available_at: { type: 'timestamptz', nullable: true, enqueued: true },
  published_at: { type: 'timestamptz', nullable: true },
  attempts: { type: 'int', scan: 'NULLIF(attempts, 0)::text' },
  locked_at: { type: 'timestamptz', nullable: true, working: true },
  lease: { type: 'uuid', nullable: true, working: true },
  last_error: { type: 'text', nullable: true },
} as const satisfies Record<string, Column>

type OutboxColumns = typeof COLUMNS
export type ColumnName = keyof OutboxColumns
type Having<Property> = { [Name in ColumnName]: OutboxColumns[Name] extends Property ? Name : never }[ColumnName]
export type EnqueuedName = Having<{ enqueued: true }>
export type StoredName = Exclude<ColumnName, Having<{ working: true }>>
type ScannedName = Having<{ scan: string }>

const NAMES = Object.keys(COLUMNS) as ColumnName[]
const declared: Record<ColumnName, Column> = COLUMNS

/** The parameters of enqueue.sql and enqueue-one.sql, in their order. */
export const ENQUEUED = NAMES.filter((name) => declared[name].enqueued) as readonly EnqueuedName[]

/** What is shown to people and archived. */
export const STORED = NAMES.filter((name) => !declared[name].working) as readonly StoredName[]

const SCANNED = NAMES.filter((name) => declared[name].scan !== undefined) as readonly ScannedName[]

/** Where a scanned row has each column; behind them its size if the payload was left out for it, and what a scan adds. */
export const AT = Object.fromEntries(
  [...SCANNED, 'size', 'blocked', 'expired', 'more_expired'].map((name, i) => [name, i]),
) as {
  readonly [Name in ScannedName | 'size' | 'blocked' | 'expired' | 'more_expired']: number
}

const SIZE = 'COALESCE(pg_column_size(payload), octet_length(payload_bytes))'

/** `{{columns}}` of the scans. */
export const SCAN_SQL = [
  ...SCANNED.map((name) => COLUMNS[name].scan),
  `CASE WHEN ${SIZE} > ${INLINE_PAYLOAD} THEN ${SIZE}::text END`,
].join(', ')

/** The same columns as they are. */
export const SCANNED_SQL = SCANNED.join(', ')

/** `{{stored}}`: whole rows as text, of a table with the alias `event`. */
export const STORED_SQL = STORED.map((name) => `${textSql(name)} AS ${name}`).join(', ')

/** A whole row as text, for showing and archiving. Times are ISO 8601, bytes are hex. */
export type StoredRow = {
  readonly [Name in StoredName]: OutboxColumns[Name] extends { nullable: true } ? string | null : string
}

/** A whole row as a scan would have read it. */
export function scannedOf(row: StoredRow): readonly Cell[] {
  return [...SCANNED.map((name) => row[name]), '0']
}

function textSql(name: ColumnName): string {
  switch (declared[name].type) {
    case 'text':
      return `event.${name}`
    case 'bytea':
      return `encode(event.${name}, 'hex')`
    case 'timestamptz':
      return `to_json(event.${name}) #>> '{}'`
    default:
      return `event.${name}::text`
  }
}
