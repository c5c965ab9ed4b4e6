import { telemetry, WaybillError, withoutData, withoutText } from '../core/index.ts'
import { isLocked, isRefusal } from './errors.ts'
import type { OutboxNames } from './names.ts'
import { aboutOf, attemptsOf, idOf, payloadRead, type Row, type RowUpdate } from './row.ts'
import type { Taken } from './scan.ts'
import { sql } from './sql.generated.ts'

/** A row that was read and is not handed out, and what is to become of it. */
export interface Aside {
  readonly row: Row
  readonly update: RowUpdate
}

export interface Refused extends Aside {
  readonly error: unknown
}

export function asideOf({ held, early, unreadable }: Taken): readonly Aside[] {
  const as = (row: Row, becomes: RowUpdate['becomes']): Aside => {
    return { row, update: { id: idOf(row), becomes, attempts: attemptsOf(row) } }
  }
  const dead = ({ row, reason }: Taken['unreadable'][number]): Aside => {
    return { row, update: { id: idOf(row), becomes: 'dead', attempts: attemptsOf(row) + 1, error: reason } }
  }
  return [...held.map((row) => as(row, 'held')), ...early.map((row) => as(row, 'ready')), ...unreadable.map(dead)]
}

/** A locked row can wait: those that are put aside are not handed out now, and all others would wait with it. */
export function settleMixed(locked: 'wait' | 'skip'): string {
  const unlocked = `
    AND event.event_id IN (SELECT event_id FROM {{outbox}} WHERE event_id = ANY ($3::text::uuid[]) FOR NO KEY UPDATE SKIP LOCKED)`
  return sql['settle-mixed'].replace('{{unlocked}}', locked === 'wait' ? '' : unlocked)
}

/**
 * Writes them. Returns those that the table refuses, or whose rows do not change: each costs only itself. A statement that is
 * refused is tried in halves until the culprits are alone. Throws for anything else.
 */
export async function writeAside(
  rows: readonly Aside[],
  names: OutboxNames,
  write: (rows: readonly RowUpdate[]) => Promise<{ holds: boolean; ids: ReadonlySet<string> }>,
): Promise<readonly Refused[]> {
  try {
    const { holds, ids } = await write(rows.map(({ update }) => update))
    if (!holds) return []
    const left = rows.filter(({ row }) => !ids.has(idOf(row)))
    return left.map((one) => ({ ...one, error: notPutAside(names) }))
  } catch (error) {
    if (!isRefusal(error)) throw error
    if (rows.length === 1) return [{ ...rows[0]!, error }]
    const half = rows.length >> 1
    const first = await writeAside(rows.slice(0, half), names, write)
    return [...first, ...(await writeAside(rows.slice(half), names, write))]
  }
}

/** Reports those that are dead now, and those that could not be written. */
export function publishAside({ table }: OutboxNames, rows: readonly Aside[], refused: readonly Refused[]): void {
  const flow = table.text
  for (const { row, update, error: thrown } of refused) {
    const settlement = update.becomes === 'dead' ? 'dead' : 'release'
    const error = refusalOf(row, thrown)
    telemetry['settlement.refused'].publish({ flow, ...aboutOf(row), settlement, dead: false, error })
  }
  for (const { row, update } of rows) {
    if (update.becomes !== 'dead' || refused.some((one) => one.row === row)) continue
    const { attempts: attempt, error: reason } = update
    telemetry['message.dead'].publish({ flow, table: flow, reason: reason!, attempt, ...aboutOf(row) })
  }
}

/** Why a row was refused, as it may be shown: a trigger may quote the payload. */
export function refusalOf(row: Row, error: unknown): Error {
  if (error instanceof WaybillError) return error
  const data = payloadRead(row)
  return data === undefined ? withoutText(error) : withoutData(error, { data })
}

function notPutAside(names: OutboxNames): WaybillError {
  const text = `${names.table.text}: a row that must wait cannot be marked as waiting: another transaction has locked it, a trigger returns NULL, or row-level security has no UPDATE policy for it; it is passed over for a minute`
  return new WaybillError('NOT_SETTLED', text)
}

/** Writes what it can: rows that the table refuses, or that somebody has locked, must not cost the others anything. */
export async function inHalves(
  rows: readonly RowUpdate[],
  write: (rows: readonly RowUpdate[]) => Promise<unknown>,
): Promise<void> {
  try {
    await write(rows)
  } catch (error) {
    if (rows.length === 1 || !(isRefusal(error) || isLocked(error))) return
    const half = rows.length >> 1
    await inHalves(rows.slice(0, half), write)
    await inHalves(rows.slice(half), write)
  }
}
