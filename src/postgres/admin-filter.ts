import { describe, WaybillError } from '../core/index.ts'
import { textArray } from '../drivers/sql/sql.ts'
import type { AdminAction, AuditEntry, OutboxEntry, OutboxFilter, State } from '../outbox/admin.ts'
import { checkFilter } from '../outbox/admin-checks.ts'
import { sql } from './sql.generated.ts'

const MOST_IDS = 10_000

/** Each state has an index of its own, and lists go in its order. Published events are shown newest first. */
interface StateIndex {
  readonly order: readonly string[]
  /** How each column of `order` is cast back from text. */
  readonly types: readonly string[]
  readonly descending?: true
}

const BY_SEQUENCE: StateIndex = { order: ['sequence'], types: ['bigint'] }
const BY_TIME: StateIndex = { order: ['available_at', 'sequence'], types: ['timestamptz', 'bigint'] }

export const STATE_INDEXES: Readonly<Record<State, StateIndex>> = {
  dead: BY_SEQUENCE,
  retrying: BY_TIME,
  held: { order: ['key', 'sequence'], types: ['text', 'bigint'] },
  leased: BY_TIME,
  scheduled: BY_TIME,
  ready: BY_SEQUENCE,
  published: { order: ['published_at', 'sequence'], types: ['timestamptz', 'bigint'], descending: true },
}

/** The values of `admin-filter.sql`. */
export function filterValues(where: string, filter: OutboxFilter): (string | null)[] {
  checkFilter(where, filter)
  const { eventIds, tenant, topic, type, key, since, until } = filter
  if (eventIds !== undefined && eventIds.length > MOST_IDS) {
    throw new WaybillError('INVALID_OPTION', `${where}: eventIds: ${eventIds.length} are too many; at most ${MOST_IDS}`)
  }
  return [
    eventIds === undefined ? null : textArray(eventIds),
    tenant ?? null,
    topic ?? null,
    type ?? null,
    key ?? null,
    since?.toISOString() ?? null,
    until?.toISOString() ?? null,
  ]
}

export interface StateSqlOptions {
  /** Goes on behind a place, whose values come after the others. */
  readonly after?: boolean
  /** One tenant is asked for, and there is an index by tenant. */
  readonly byTenant?: boolean
  /** Without what a competing relay has leased and works on: it would be taken away under its hands. */
  readonly free?: boolean
}

/** SQL of one state: the condition, the order, and the place to go on behind. */
export function stateSql(text: string, state: State, options: StateSqlOptions = {}): string {
  const { after = false } = options
  const { order, types, descending } = STATE_INDEXES[state]
  // A tenant may have published millions, and those are listed by their own index.
  const byTenant = (options.byTenant ?? false) && state !== 'published'
  const columns = order.map((column) => `event.${column}`)
  const values = types.map((type, i) => `$${9 + i}::text::${type}`)
  const sorted = byTenant && order[0] === 'sequence' ? ['event.tenant_id', 'event.state', ...columns] : columns
  const parts: Record<string, string> = {
    condition:
      (byTenant ? tenantConditionOf(state) : conditionOf(state)) + (options.free && state === 'leased' ? EXPIRED : ''),
    order: sorted.map((column) => `${column}${descending ? ' DESC' : ''}`).join(', '),
    place: `json_build_array(${columns.map((column) => `${column}::text`).join(', ')})::text`,
    behind: after ? ` AND (${columns.join(', ')}) ${descending ? '<' : '>'} (${values.join(', ')})` : '',
    filter: sql['admin-filter'],
  }
  return text.replace(/\{\{(\w+)\}\}/g, (all, name: string) => parts[name] ?? all)
}

const EXPIRED = ' AND event.available_at <= clock_timestamp()'

function conditionOf(state: State): string {
  return state === 'held' ? `event.state = 'held' AND event.key IS NOT NULL` : `event.state = '${state}'`
}

/**
 * The same, such that the index of the state, which holds all tenants, cannot serve it. Statistics know a tenant and a
 * state each by itself: of a tenant with much published and little ready the planner expects much ready, and would walk
 * through everybody's.
 */
function tenantConditionOf(state: State): string {
  return `event.state BETWEEN '${state}' AND '${state}'`
}

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
    action: row['action'] as AdminAction,
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

/** The place of a whole row in the list of its state, as admin-list.sql returns it. */
export function placeOf(row: Fields): string {
  return JSON.stringify(STATE_INDEXES[row['state'] as State].order.map((column) => row[column]))
}

function cursorOf(state: State, place: string): string {
  return Buffer.from(JSON.stringify([state, ...JSON.parse(place)])).toString('base64url')
}

/** The state a list was in, and the place within it. */
export function readCursor(cursor: string): { state: State; place: string[] } {
  try {
    const [state, ...place] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as [State, ...string[]]
    const known = STATE_INDEXES[state]?.order.length === place.length
    if (known && place.every((part) => typeof part === 'string')) return { state, place }
  } catch {
    // Said below.
  }
  throw new WaybillError('INVALID_OPTION', `list: after: ${describe(cursor)} is not the cursor of an entry`)
}
