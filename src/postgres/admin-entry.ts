import { describe, WaybillError } from '../core/index.ts'
import type { Action, AuditEntry, OutboxEntry, State } from '../outbox/admin.ts'
import { LANES } from './admin-filter.ts'

type Fields = Readonly<Record<string, unknown>>

export function entryOf(row: Fields): OutboxEntry {
  const state = row['state'] as State
  return {
    eventId: row['event_id'] as string,
    sequence: row['sequence'] as string,
    state,
    tenant: row['tenant_id'] as string,
    topic: row['topic'] as string,
    key: (row['key'] as string | null) ?? undefined,
    type: row['event_type'] as string,
    version: Number(row['event_version']),
    attempts: Number(row['attempts']),
    lastError: (row['last_error'] as string | null) ?? undefined,
    createdAt: time(row['created_at'])!,
    availableAt: time(row['available_at']),
    publishedAt: time(row['published_at']),
    cursor: cursorOf(state, row['place'] as string),
  }
}

export function auditOf(row: Fields): AuditEntry {
  return {
    id: row['id'] as string,
    at: time(row['at'])!,
    action: row['action'] as Action,
    by: row['by'] as string,
    note: row['note'] as string,
    filter: JSON.parse(row['filter'] as string),
    count: Number(row['count']),
  }
}

/** Times come as ISO 8601 text: drivers differ in what they make of a timestamp. */
function time(value: unknown): Date | undefined {
  return value === null || value === undefined ? undefined : new Date(value as string)
}

/** The place of a whole row in the list of its state, as admin-list.sql answers it. */
export function placeOf(row: Fields): string {
  return JSON.stringify(LANES[row['state'] as State].order.map((column) => row[column]))
}

function cursorOf(state: State, place: string): string {
  return Buffer.from(JSON.stringify([state, ...JSON.parse(place)])).toString('base64url')
}

/** The state a list was in, and the place within it. */
export function readCursor(cursor: string): { state: State; place: string[] } {
  try {
    const [state, ...place] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as [State, ...string[]]
    const known = LANES[state]?.order.length === place.length
    if (known && place.every((part) => typeof part === 'string')) return { state, place }
  } catch {
    // Said below.
  }
  throw new WaybillError('INVALID_OPTION', `list: after: ${describe(cursor)} is not the cursor of an entry`)
}
