import { checkOptions, describe, isUuid, type OptionNames, oneOf, WaybillError, wholeNumber } from '../core/index.ts'
import {
  ACTIONS,
  type AdminAction,
  type Audit,
  type OutboxFilter,
  type Page,
  type PendingFilter,
  type State,
} from './admin.ts'

/** What people may ask of an outbox is the same for every store, and so are the errors when it is wrong. */

/** The most an action touches unless a limit is given, and the most that is counted one by one. */
export const MOST_AT_ONCE = 100_000

/** The order in which a list shows states: first what a person should look at. */
export const SHOWN: readonly State[] = ['dead', 'retrying', 'held', 'leased', 'scheduled', 'ready', 'published']

/** What each action may touch. Pending ones are removed in the order in which a relay moves them on. */
export const TOUCHES: Readonly<Record<AdminAction, readonly State[]>> = {
  rearm: ['dead'],
  'discard-dead': ['dead'],
  'discard-pending': ['ready', 'scheduled', 'leased', 'held', 'retrying'],
  replay: ['published'],
}

const FILTER: OptionNames<OutboxFilter> = {
  eventIds: true,
  states: true,
  tenant: true,
  topic: true,
  type: true,
  key: true,
  since: true,
  until: true,
}

/** A filter that was left out stands for nothing: who means everything says so with `{}`. */
export function checkFilter(where: string, filter: OutboxFilter): void {
  if (filter === undefined) {
    throw new WaybillError('INVALID_OPTION', `${where}: the filter is missing; {} stands for all events`)
  }
  checkOptions(where, filter, FILTER)
  const { eventIds, states, since, until, tenant, topic, type, key } = filter
  for (const [name, value] of Object.entries({ eventIds, states })) {
    if (value === undefined || Array.isArray(value)) continue
    throw new WaybillError('INVALID_OPTION', `${where}: ${name}: ${describe(value)} is not a list`)
  }
  for (const id of eventIds ?? []) {
    if (!isUuid(id)) throw new WaybillError('INVALID_OPTION', `${where}: eventIds: ${describe(id)} is not a UUID`)
  }
  for (const [name, value] of Object.entries({ since, until })) {
    if (value === undefined || (value instanceof Date && !Number.isNaN(value.getTime()))) continue
    throw new WaybillError('INVALID_OPTION', `${where}: ${name}: ${describe(value)} is not a date`)
  }
  for (const [name, value] of Object.entries({ tenant, topic, type, key })) {
    if (value === undefined || isText(value)) continue
    const text = `${where}: ${name}: ${describe(value)} is not a text that can be looked for`
    throw new WaybillError('INVALID_OPTION', text)
  }
}

/** Text that every store can hold: PostgreSQL has no NUL, and nobody half a character. */
function isText(value: unknown): value is string {
  return typeof value === 'string' && !/[\0\p{Cs}]/u.test(value)
}

export function checkAction(action: AdminAction): AdminAction {
  return oneOf('preview: action', action, ACTIONS)
}

/** The states that a filter asks for, in the order of `SHOWN`; for an action those it may touch, in its own order. */
export function statesOf(where: string, { states }: OutboxFilter, action?: AdminAction): readonly State[] {
  const allowed = action === undefined ? SHOWN : TOUCHES[action]
  if (states === undefined) return allowed
  for (const state of states) oneOf(`${where}: states`, state, allowed)
  if (action !== undefined && states.length === 0) {
    const text = `${where}: states is empty; leave it out for all that this may touch: ${allowed.join(', ')}`
    throw new WaybillError('INVALID_OPTION', text)
  }
  return allowed.filter((state) => states.includes(state))
}

/** What is not published goes only by a stated window. */
export function checkWindow(filter: PendingFilter): void {
  checkFilter('discardPending', filter)
  const { tenant, topic, since, until } = filter
  if ((tenant !== undefined || topic !== undefined) && since !== undefined && until !== undefined && since < until)
    return
  throw new WaybillError(
    'INVALID_OPTION',
    'discardPending: give a tenant or a topic, and since and until with since before until: what is not published goes only by a stated window',
  )
}

export function pageOf(where: string, page: Page): { limit: number; after: string | undefined } {
  checkOptions(where, page, { limit: true, after: true })
  if (page.after !== undefined && typeof page.after !== 'string') {
    throw new WaybillError('INVALID_OPTION', `${where}: after: ${describe(page.after)} is not the cursor of an entry`)
  }
  return { limit: wholeNumber(`${where}: limit`, page.limit ?? 50, { max: 1000 }), after: page.after }
}

export function limitOf(where: string, options: { limit?: number }): number {
  checkOptions(where, options, { limit: true })
  return wholeNumber(`${where}: limit`, options.limit ?? MOST_AT_ONCE, { max: 10_000_000 })
}

/** How many the preview has counted. */
export function expectedOf(options: { expected: number }): number {
  checkOptions('discardPending', options, { expected: true })
  return wholeNumber('discardPending: expected', options?.expected, { min: 0, max: MOST_AT_ONCE })
}

/** `found` is one more than expected where there are more. Who expects another number means other events. */
export function refuseUnexpected(found: number, expected: number): void {
  if (found === expected) return
  const are = found > expected ? 'there are more' : `there are ${found}`
  throw new WaybillError(
    'PREVIEW_OUTDATED',
    `discardPending: ${expected} events were expected, and ${are}; nothing was removed, look at the preview again`,
  )
}

export function replayOf(options: { asNew?: boolean; limit?: number }): { asNew: boolean; limit: number } {
  checkOptions('replay', options, { asNew: true, limit: true })
  const { asNew = false, limit = MOST_AT_ONCE } = options
  if (typeof asNew !== 'boolean') {
    throw new WaybillError('INVALID_OPTION', `replay: asNew: ${describe(asNew)} is not true or false`)
  }
  return { asNew, limit: limitOf('replay', { limit }) }
}

export function checkAudit(where: string, audit: Audit): void {
  checkOptions(`${where}: audit`, audit, { by: true, note: true })
  for (const name of ['by', 'note'] as const) {
    const value = audit?.[name]
    if (typeof value !== 'string' || value.trim() === '') {
      throw new WaybillError('INVALID_OPTION', `${where}: audit.${name} is missing; say who does it and why`)
    }
    if (!isText(value)) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: audit.${name}: ${describe(value)} is not a text that can be kept`,
      )
    }
  }
}

/** Some actions need nobody's name. One that is given is a whole one. */
export function auditOr(where: string, audit: Audit | undefined): Audit {
  if (audit === undefined) return { by: '', note: '' }
  checkAudit(where, audit)
  return audit
}
