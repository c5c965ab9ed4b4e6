import { checkOptions, describe, isUuid, oneOf, WaybillError } from '../core/index.ts'
import { type Action, type OutboxFilter, type PendingFilter, STATES, type State } from '../outbox/admin.ts'
import type { Row } from './row.ts'

const FILTER = ['eventIds', 'states', 'tenant', 'topic', 'type', 'key', 'since', 'until'] as const

/** What each action may touch. */
const TOUCHES: Readonly<Record<Action, readonly State[]>> = {
  rearm: ['dead'],
  'discard-dead': ['dead'],
  'discard-pending': ['ready', 'scheduled', 'leased', 'held', 'retrying'],
  replay: ['published'],
}

/** What the filter lets through; for an action, only states it may touch. Wrong filters are refused at once. */
export function matches(where: string, filter: OutboxFilter, action?: Action): (row: Row) => boolean {
  checkOptions(where, filter, FILTER)
  const { eventIds, tenant, topic, type, key, since, until } = filter
  for (const id of eventIds ?? []) {
    if (!isUuid(id)) throw new WaybillError('INVALID_OPTION', `${where}: eventIds: ${describe(id)} is not a UUID`)
  }
  for (const [name, value] of Object.entries({ since, until })) {
    if (value === undefined || (value instanceof Date && !Number.isNaN(value.getTime()))) continue
    throw new WaybillError('INVALID_OPTION', `${where}: ${name}: ${describe(value)} is not a date`)
  }
  const allowed = action === undefined ? STATES : TOUCHES[action]
  const states = filter.states?.map((state) => oneOf(`${where}: states`, state, allowed)) ?? allowed
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

export function checkWindow({ tenant, topic, since, until }: PendingFilter): void {
  if ((tenant !== undefined || topic !== undefined) && since !== undefined && until !== undefined && since < until)
    return
  throw new WaybillError(
    'INVALID_OPTION',
    'discardPending: give a tenant or a topic, and since and until with since before until: what is not published goes only by a stated window',
  )
}

/** The order in which a list shows states: first what a person should look at. */
const SHOWN: readonly State[] = ['dead', 'retrying', 'held', 'leased', 'scheduled', 'ready', 'published']

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
