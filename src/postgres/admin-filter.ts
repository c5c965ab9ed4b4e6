import { describe, WaybillError } from '../core/index.ts'
import { textArray } from '../drivers/sql/sql.ts'
import type { Action, OutboxFilter, State } from '../outbox/admin.ts'
import { checkFilter, TOUCHES } from '../outbox/admin-checks.ts'
import { sql } from './sql.generated.ts'

const MOST_IDS = 10_000

/** Each state has an index of its own, and lists go in its order. Published events are shown newest first. */
interface Lane {
  readonly order: readonly string[]
  /** How each column of `order` is cast back from text. */
  readonly types: readonly string[]
  readonly descending?: true
}

const BY_SEQUENCE: Lane = { order: ['sequence'], types: ['bigint'] }
const BY_TIME: Lane = { order: ['available_at', 'sequence'], types: ['timestamptz', 'bigint'] }

export const LANES: Readonly<Record<State, Lane>> = {
  dead: BY_SEQUENCE,
  retrying: BY_TIME,
  held: { order: ['key', 'sequence'], types: ['text', 'bigint'] },
  leased: BY_TIME,
  scheduled: BY_TIME,
  ready: BY_SEQUENCE,
  published: { order: ['published_at', 'sequence'], types: ['timestamptz', 'bigint'], descending: true },
}

/** The order in which a list shows states: first what a person should look at. */
export const LANE_ORDER = Object.keys(LANES) as State[]

/** Which of the states an action may touch the filter asks for. */
export function statesOf(action: Action, filter: OutboxFilter): readonly State[] {
  checkFilter(action, filter)
  const touched = TOUCHES[action]
  if (filter.states === undefined) return touched
  const wrong = filter.states.find((state) => !touched.includes(state))
  if (wrong === undefined && filter.states.length > 0) return touched.filter((state) => filter.states!.includes(state))
  const text = `${action}: states: ${describe(wrong)} is not allowed. Allowed: ${touched.join(', ')}`
  throw new WaybillError('INVALID_OPTION', text)
}

/** The values of `admin-filter.sql`. */
export function filterValues(where: string, filter: OutboxFilter): (string | null)[] {
  checkFilter(where, filter)
  const { eventIds, states, tenant, topic, type, key, since, until } = filter
  if (eventIds !== undefined && eventIds.length > MOST_IDS) {
    throw new WaybillError('INVALID_OPTION', `${where}: eventIds: ${eventIds.length} are too many; at most ${MOST_IDS}`)
  }
  for (const state of states ?? []) {
    if (LANES[state] === undefined) {
      const text = `${where}: states: ${describe(state)} is not allowed. Allowed: ${LANE_ORDER.join(', ')}`
      throw new WaybillError('INVALID_OPTION', text)
    }
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

export interface LaneOptions {
  /** Goes on behind a place, whose values come after the others. */
  readonly after?: boolean
  /** One tenant is asked for, and there is an index by tenant. */
  readonly byTenant?: boolean
  /** Without what a competing relay has leased and works on: it would be taken away under its hands. */
  readonly free?: boolean
}

/** SQL of one state: the condition, the order, and the place to go on behind. */
export function laneSql(text: string, state: State, options: LaneOptions = {}): string {
  const { after = false } = options
  const { order, types, descending } = LANES[state]
  // A tenant may have published millions, and those are listed by their own index.
  const byTenant = (options.byTenant ?? false) && state !== 'published'
  const columns = order.map((column) => `event.${column}`)
  const values = types.map((type, i) => `$${9 + i}::text::${type}`)
  const sorted = byTenant && order[0] === 'sequence' ? ['event.tenant_id', 'event.state', ...columns] : columns
  const parts: Record<string, string> = {
    lane: (byTenant ? tenantLane(state) : laneOf(state)) + (options.free && state === 'leased' ? EXPIRED : ''),
    order: sorted.map((column) => `${column}${descending ? ' DESC' : ''}`).join(', '),
    place: `json_build_array(${columns.map((column) => `${column}::text`).join(', ')})::text`,
    behind: after ? ` AND (${columns.join(', ')}) ${descending ? '<' : '>'} (${values.join(', ')})` : '',
    filter: sql['admin-filter'],
  }
  return text.replace(/\{\{(\w+)\}\}/g, (all, name: string) => parts[name] ?? all)
}

const EXPIRED = ' AND event.available_at <= clock_timestamp()'

function laneOf(state: State): string {
  return state === 'held' ? `event.state = 'held' AND event.key IS NOT NULL` : `event.state = '${state}'`
}

/**
 * The same, such that the index of the state, which holds all tenants, cannot serve it. Statistics know a tenant and a
 * state each by itself: of a tenant with much published and little ready the planner expects much ready, and would walk
 * through everybody's.
 */
function tenantLane(state: State): string {
  return `event.state BETWEEN '${state}' AND '${state}'`
}
