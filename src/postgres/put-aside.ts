import { isRefusal } from './errors.ts'
import type { OutboxNames } from './names.ts'
import { attemptsOf, type Becoming, idOf, type Row, unchanged } from './row.ts'
import type { Taken } from './scan.ts'

/** A row that was read and is not handed out, and what is to become of it. */
export interface Aside {
  readonly row: Row
  readonly becoming: Becoming
}

export interface Refused extends Aside {
  readonly error: unknown
}

export function asideOf({ held, early, unreadable }: Taken): readonly Aside[] {
  const as = (row: Row, becomes: Becoming['becomes']): Aside => {
    return { row, becoming: { id: idOf(row), becomes, attempts: attemptsOf(row) } }
  }
  const dead = ({ row, reason }: Taken['unreadable'][number]): Aside => {
    return { row, becoming: { id: idOf(row), becomes: 'dead', attempts: attemptsOf(row) + 1, error: reason } }
  }
  return [...held.map((row) => as(row, 'held')), ...early.map((row) => as(row, 'ready')), ...unreadable.map(dead)]
}

/**
 * Writes them. Returns those that the table refuses, or whose rows do not change: each costs only itself. A statement that is
 * refused is tried in halves until the culprits are alone. Throws for anything else.
 */
export async function writeAside(
  rows: readonly Aside[],
  names: OutboxNames,
  write: (rows: readonly Becoming[]) => Promise<{ holds: boolean; ids: ReadonlySet<string> }>,
): Promise<readonly Refused[]> {
  try {
    const { holds, ids } = await write(rows.map(({ becoming }) => becoming))
    if (!holds) return []
    const left = rows.filter(({ row }) => !ids.has(idOf(row)))
    return left.map((one) => ({ ...one, error: unchanged(names, 1) }))
  } catch (error) {
    if (!isRefusal(error)) throw error
    if (rows.length === 1) return [{ ...rows[0]!, error }]
    const half = rows.length >> 1
    const first = await writeAside(rows.slice(0, half), names, write)
    return [...first, ...(await writeAside(rows.slice(half), names, write))]
  }
}

/** Writes what it can: rows that the table refuses must not cost the others anything. */
export async function inHalves(
  rows: readonly Becoming[],
  write: (rows: readonly Becoming[]) => Promise<unknown>,
): Promise<void> {
  try {
    await write(rows)
  } catch (error) {
    if (rows.length === 1 || !isRefusal(error)) return
    const half = rows.length >> 1
    await inHalves(rows.slice(0, half), write)
    await inHalves(rows.slice(half), write)
  }
}
