import { errorSummary, WaybillError } from '../core/index.ts'
import { numberArray, textArray } from '../drivers/sql/sql.ts'
import type { Settled, Settlement } from '../flow/index.ts'
import type { State } from '../outbox/admin.ts'
import type { OutboxNames } from './names.ts'
import type { OutboxDelivery } from './row.ts'

/** What a settlement makes of a row. */
export interface Becoming {
  readonly id: string
  readonly becomes: State
  readonly attempts: number
  readonly after?: number
  readonly error?: string
}

/**
 * What is written must be something the table takes: a statement that fails for one row fails for the whole batch. So
 * texts have no NUL and are short, and delays end within the lifetime of a timestamp.
 */
const MAX_DELAY = 100 * 365 * 86_400_000
const MAX_TEXT = 2000

function storable(text: string): string {
  return (text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) : text)
    .replaceAll('\0', '')
    .replace(LONE_SURROGATE, '\ufffd')
}

const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

function delayOf(after: number): number {
  return Number.isNaN(after) ? 0 : Math.min(Math.max(0, after), MAX_DELAY)
}

export function becoming(delivery: OutboxDelivery, settlement: Settlement): Becoming {
  const { eventId: id, attempts } = delivery
  switch (settlement.kind) {
    case 'done':
      return { id, becomes: 'published', attempts }
    case 'retry': {
      const { after, error, charged } = settlement
      const text = storable(errorSummary(error))
      return { id, becomes: 'retrying', attempts: attempts + (charged ? 1 : 0), after: delayOf(after), error: text }
    }
    case 'dead':
      return { id, becomes: 'dead', attempts: attempts + 1, error: storable(settlement.reason) }
    case 'release':
      return { id, becomes: 'ready', attempts }
  }
}

/**
 * What is given back behind one that failed is held with it, in one step. Left ready, it would come after those that are
 * written later: a take that goes on meanwhile finds them blocked and holds them, but not what is still in hand.
 */
export function heldBehind(failing: ReadonlySet<string>, batch: readonly Settled<OutboxDelivery>[]): Becoming[] {
  return batch
    .filter(([{ key, state }, { kind }]) => {
      return kind === 'release' && (state === 'ready' || state === 'scheduled') && key !== undefined && failing.has(key)
    })
    .map(([{ eventId, attempts }]) => ({ id: eventId, becomes: 'held', attempts }))
}

/** As parameters of settle-mixed.sql and lease-settle.sql: ids, what they become, attempts, delays, errors. */
export function updateValues(rows: readonly Becoming[]): string[] {
  return [
    textArray(rows.map((row) => row.id)),
    textArray(rows.map((row) => row.becomes)),
    numberArray(rows.map((row) => row.attempts)),
    textArray(rows.map((row) => (row.after === undefined ? null : String(row.after)))),
    textArray(rows.map((row) => row.error)),
  ]
}

export function unchanged(names: OutboxNames, count: number): WaybillError {
  return new WaybillError(
    'NOT_SETTLED',
    `${names.table.text}: ${count} events were settled and their rows did not change, though nobody else may settle them; a trigger that returns NULL or row-level security without an UPDATE policy does that: let the relay's role update the table`,
  )
}
