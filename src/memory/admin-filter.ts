import { describe, WaybillError } from '../core/index.ts'
import type { AdminAction, OutboxFilter } from '../outbox/admin.ts'
import { checkFilter, SHOWN, statesOf } from '../outbox/admin-checks.ts'
import type { Row } from './row.ts'

/** What the filter lets through; for an action, only states it may touch. Wrong filters are refused at once. */
export function matches(where: string, filter: OutboxFilter, action?: AdminAction): (row: Row) => boolean {
  checkFilter(where, filter)
  const { eventIds, tenant, topic, type, key, since, until } = filter
  const states = statesOf(where, filter, action)
  const ids = eventIds === undefined ? undefined : new Set(eventIds.map((id) => id.toLowerCase()))
  return (row) =>
    states.includes(row.state) &&
    (ids === undefined || ids.has(row.eventId)) &&
    (tenant === undefined || row.tenant === tenant) &&
    (topic === undefined || row.topic === topic) &&
    (type === undefined || row.message.type === type) &&
    (key === undefined || row.key === key) &&
    (since === undefined || row.createdAt >= since.getTime()) &&
    (until === undefined || row.createdAt < until.getTime())
}

export type Place = readonly [state: number, order: number, sequence: number]

/** Where a row stands in a list: by state, then by its time, then by sequence; what is published, newest first. */
export function placeOf({ state, sequence, availableAt = 0, publishedAt = 0 }: Row): Place {
  return [SHOWN.indexOf(state), state === 'published' ? -publishedAt : availableAt, sequence]
}

export function compare(a: Place, b: Place): number {
  return a[0] - b[0] || a[1] - b[1] || a[2] - b[2]
}

export function readCursor(cursor: string): Place {
  const place = cursor.split(' ').map(Number)
  if (place.length === 3 && place.every(Number.isFinite)) return place as unknown as Place
  throw new WaybillError('INVALID_OPTION', `list: after: ${describe(cursor)} is not the cursor of an entry`)
}
