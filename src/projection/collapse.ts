import type { Change, Columns, RowKey } from './changes.ts'
import { sum } from './decimal.ts'

/** Rows that are written by one statement: the same kind, the same columns. */
export interface RowGroup {
  readonly kind: 'put' | 'patch' | 'remove'
  /** Columns that are set, and columns that are added to. */
  readonly set: readonly string[]
  readonly add: readonly string[]
  readonly rows: readonly CollapsedRow[]
}

/** What all events of a segment make of one row. */
export interface CollapsedRow {
  readonly key: string
  readonly set: Columns
  readonly add: Readonly<Record<string, string>>
  /** Which events had a part in it, by their place in the batch. */
  readonly events: readonly number[]
}

/** What is written, one step after the other. Rows of one step are independent of each other. */
export type WriteStep =
  | { readonly kind: 'rows'; readonly groups: readonly RowGroup[] }
  | { readonly kind: 'where'; readonly where: Columns; readonly columns: Columns; readonly event: number }
  | { readonly kind: 'write'; readonly run: Extract<Change, { kind: 'write' }>['run']; readonly event: number }

interface TouchedRow {
  key: string
  kind: 'put' | 'patch' | 'remove'
  set: Record<string, Columns[string]>
  add: Record<string, string>
  events: number[]
}

const NONE: Readonly<Record<string, never>> = Object.freeze({})

/**
 * The changes of a batch as few writes, with the same result as one by one. Changes of one row become one. A change that
 * concerns rows unknown here (`patchWhere`, `write`) cuts: what was before it is written before it. So does one that does
 * not merge with what its row has before it, see `merge`.
 *
 * `rowKey` gives the one text of a key that the database takes for equal; `counts`: whether a missing row matters.
 */
export function collapse(
  batch: readonly (readonly Change[])[],
  rowKey: (key: RowKey) => string,
  counts: boolean,
): readonly WriteStep[] {
  const steps: WriteStep[] = []
  let rows = new Map<string, TouchedRow>()
  const cut = () => {
    if (rows.size > 0) steps.push({ kind: 'rows', groups: grouped(rows.values()) })
    rows = new Map()
  }
  for (let event = 0; event < batch.length; event++) {
    for (const change of batch[event]!) {
      if (change.kind === 'patchWhere' || change.kind === 'write') {
        cut()
        if (change.kind === 'write') steps.push({ kind: 'write', run: change.run, event })
        else steps.push({ kind: 'where', where: change.where, columns: change.columns, event })
        continue
      }
      const key = rowKey(change.key)
      let row = rows.get(key)
      if (row !== undefined && !merge(row, change, counts)) {
        cut()
        row = undefined
      }
      if (row === undefined) rows.set(key, fresh(key, change, event))
      else if (row.events.at(-1) !== event) row.events.push(event)
    }
  }
  cut()
  return steps
}

type RowChange = Extract<Change, { key: RowKey }>

function fresh(key: string, change: RowChange, event: number): TouchedRow {
  const events = [event]
  switch (change.kind) {
    case 'remove':
      return { key, kind: 'remove', set: NONE, add: NONE, events }
    case 'add': {
      const add: Record<string, string> = {}
      for (const name in change.amounts) add[name] = String(change.amounts[name])
      return { key, kind: 'patch', set: NONE, add, events }
    }
    default:
      return { key, kind: change.kind, set: change.columns, add: NONE, events }
  }
}

/** Makes of two changes of a row one, or returns `false` and leaves it as it was. */
function merge(row: TouchedRow, change: RowChange, counts: boolean): boolean {
  // A row that was removed is missing for what comes then.
  if (row.kind === 'remove') return change.kind === 'remove'
  switch (change.kind) {
    case 'remove':
      if (row.kind === 'patch' && counts) return false
      row.kind = 'remove'
      row.set = row.add = NONE
      return true
    case 'put':
      // A patch of a row that is missing changes nothing; its columns must not come in with the put.
      if (row.kind === 'patch' && (counts || !covers(change.columns, row))) return false
      row.kind = 'put'
      row.set = over(row.set, change.columns)
      row.add = NONE
      return true
    case 'patch':
      row.set = over(row.set, change.columns)
      row.add = without(row.add, change.columns)
      return true
    case 'add':
      return addTo(row, change.amounts)
  }
}

function addTo(row: TouchedRow, amounts: Readonly<Record<string, number | bigint | string>>): boolean {
  const set: Record<string, string> = {}
  const add: Record<string, string> = {}
  for (const name in amounts) {
    const known = Object.hasOwn(row.set, name)
    // What a column has in a row that may be there already is for the database to say.
    if (!known && row.kind === 'put') return false
    const before = known ? (row.set[name] ?? 0) : (row.add[name] ?? 0)
    const total = sum(before, amounts[name])
    if (total === undefined) return false
    ;(known ? set : add)[name] = total
  }
  row.set = { ...row.set, ...set }
  row.add = { ...row.add, ...add }
  return true
}

/** These columns over those before. Most handlers name the same ones each time, and a copy costs more than all the rest. */
function over(before: TouchedRow['set'], columns: Columns): TouchedRow['set'] {
  for (const name in before) if (!Object.hasOwn(columns, name)) return { ...before, ...columns }
  return columns
}

function covers(columns: Columns, row: TouchedRow): boolean {
  for (const name in row.set) if (!Object.hasOwn(columns, name)) return false
  for (const name in row.add) if (!Object.hasOwn(columns, name)) return false
  return true
}

function without(add: TouchedRow['add'], columns: Columns): TouchedRow['add'] {
  if (add === NONE) return add
  return Object.fromEntries(Object.entries(add).filter(([name]) => !Object.hasOwn(columns, name)))
}

function grouped(rows: Iterable<TouchedRow>): readonly RowGroup[] {
  const groups = new Map<string, RowGroup & { rows: CollapsedRow[] }>()
  /** The same columns in another order are the same statement. Handlers give few orders: each is sorted once. */
  const sorted = new Map<string, string>()
  for (const row of rows) {
    const [set, add] = [Object.keys(row.set), Object.keys(row.add)]
    const given = `${row.kind} ${set.join('\0')} ${add.join('\0')}`
    let signature = sorted.get(given)
    if (signature === undefined) {
      signature = `${row.kind} ${set.sort().join('\0')} ${add.sort().join('\0')}`
      sorted.set(given, signature)
    }
    const group = groups.get(signature)
    if (group === undefined) groups.set(signature, { kind: row.kind, set: set.sort(), add: add.sort(), rows: [row] })
    else group.rows.push(row)
  }
  return [...groups.values()]
}
