import { checkOptions, describe, isUuid, oneOf, WaybillError, wholeNumber } from '../core/index.ts'
import {
  type Action,
  type Audit,
  type OutboxFilter,
  type Page,
  type PendingFilter,
  STATES,
  type State,
} from './admin.ts'

/** What people may ask of an outbox is the same for every store, and so is what they are told when it is wrong. */

/** The most an action touches unless it is told otherwise, and the most that is counted one by one. */
export const MOST_AT_ONCE = 100_000

/** The order in which a list shows states: first what a person should look at. */
export const SHOWN: readonly State[] = ['dead', 'retrying', 'held', 'leased', 'scheduled', 'ready', 'published']

/** What each action may touch. Pending ones are removed in the order in which a relay moves them on. */
export const TOUCHES: Readonly<Record<Action, readonly State[]>> = {
  rearm: ['dead'],
  'discard-dead': ['dead'],
  'discard-pending': ['ready', 'scheduled', 'leased', 'held', 'retrying'],
  replay: ['published'],
}

const FILTER = ['eventIds', 'states', 'tenant', 'topic', 'type', 'key', 'since', 'until'] as const

export function checkFilter(where: string, filter: OutboxFilter): void {
  checkOptions(where, filter, FILTER)
  const { eventIds, since, until } = filter
  for (const id of eventIds ?? []) {
    if (!isUuid(id)) throw new WaybillError('INVALID_OPTION', `${where}: eventIds: ${describe(id)} is not a UUID`)
  }
  for (const [name, value] of Object.entries({ since, until })) {
    if (value === undefined || (value instanceof Date && !Number.isNaN(value.getTime()))) continue
    throw new WaybillError('INVALID_OPTION', `${where}: ${name}: ${describe(value)} is not a date`)
  }
}

/** The states that a filter asks for; for an action, only those it may touch. */
export function statesOf(where: string, { states }: OutboxFilter, action?: Action): readonly State[] {
  const allowed = action === undefined ? STATES : TOUCHES[action]
  return states?.map((state) => oneOf(`${where}: states`, state, allowed)) ?? allowed
}

/** What is not published goes only by a stated window. */
export function checkWindow({ tenant, topic, since, until }: PendingFilter): void {
  if ((tenant !== undefined || topic !== undefined) && since !== undefined && until !== undefined && since < until)
    return
  throw new WaybillError(
    'INVALID_OPTION',
    'discardPending: give a tenant or a topic, and since and until with since before until: what is not published goes only by a stated window',
  )
}

export function pageOf(where: string, page: Page): { limit: number; after: string | undefined } {
  checkOptions(where, page, ['limit', 'after'])
  return { limit: wholeNumber(`${where}: limit`, page.limit ?? 50, { max: 1000 }), after: page.after }
}

export function limitOf(where: string, options: { limit?: number }): number {
  checkOptions(where, options, ['limit'])
  return wholeNumber(`${where}: limit`, options.limit ?? MOST_AT_ONCE, { max: 10_000_000 })
}

export function checkAudit(where: string, audit: Audit): void {
  checkOptions(`${where}: audit`, audit, ['by', 'note'])
  for (const name of ['by', 'note'] as const) {
    if (typeof audit?.[name] === 'string' && audit[name].trim() !== '') continue
    throw new WaybillError('INVALID_OPTION', `${where}: audit.${name} is missing; say who does it and why`)
  }
}
