import { describe, WaybillError } from '../core/index.ts'

/** A value of a column: what JSON can hold, and dates, bigints and bytes. Lists and objects suit arrays and JSON columns. */
export type ColumnValue =
  | string
  | number
  | bigint
  | boolean
  | null
  | Date
  | Uint8Array
  | readonly unknown[]
  | { readonly [name: string]: unknown }

/** Columns and their values. */
export type Columns = Readonly<Record<string, ColumnValue>>

/** What identifies a row of a view. */
export type RowKey = string | number | bigint

/** Numbers to be added to columns. Decimals as text, where a number would lose digits: `'0.10'`. */
export type Amounts = Readonly<Record<string, number | bigint | string>>

/** What an event changes in a view. Made by `put`, `patch`, `patchWhere`, `add`, `remove` and `write`. */
export type Change =
  | { readonly kind: 'put' | 'patch'; readonly key: RowKey; readonly columns: Columns }
  | { readonly kind: 'add'; readonly key: RowKey; readonly amounts: Amounts }
  | { readonly kind: 'remove'; readonly key: RowKey }
  | { readonly kind: 'patchWhere'; readonly where: Columns; readonly columns: Columns }
  | { readonly kind: 'write'; readonly run: (context: WriteContext<never>) => Promise<unknown> }

/** What a handler returns: changes, one after the other, or none. */
export type Changes = Change | readonly Change[] | undefined | null

/** What `write` is given. */
export interface WriteContext<Tx = unknown> {
  /** The transaction that the checkpoint is written in. */
  readonly tx: Tx
  /** The view's table, quoted. It may be another one than you named: a rebuild writes into a shadow of it. */
  readonly table: string
}

/** The row of this key has these values. Created if it is missing; columns that are not named stay as they are. */
export function put(key: RowKey, columns: Columns): Change {
  return { kind: 'put', key: checkedKey('put', key), columns: checkedColumns('put', columns) }
}

/** Changes these columns of the row. If there is none, `missing` of the projection decides. */
export function patch(key: RowKey, columns: Columns): Change {
  return { kind: 'patch', key: checkedKey('patch', key), columns: checkedColumns('patch', columns, 1) }
}

/** Changes these columns of all rows whose columns are equal to `where`: a buyer's new name in every order. */
export function patchWhere(where: Columns, columns: Columns): Change {
  const checked = checkedColumns('patchWhere: where', where, 1)
  return { kind: 'patchWhere', where: checked, columns: checkedColumns('patchWhere', columns, 1) }
}

/** Adds to columns of the row; a column without a value counts as 0. If there is no row, `missing` decides. */
export function add(key: RowKey, amounts: Amounts): Change {
  for (const [name, amount] of Object.entries(checkedColumns('add', amounts, 1))) {
    if (!/^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(String(amount))) {
      throw invalid(`add: ${describe(amount)} is not a number to be added to ${describe(name)}`)
    }
  }
  return { kind: 'add', key: checkedKey('add', key), amounts }
}

/** The row of this key is gone. One that is not there is no error. */
export function remove(key: RowKey): Change {
  return { kind: 'remove', key: checkedKey('remove', key) }
}

/**
 * SQL of your own, in the same transaction as the checkpoint: for what does not fit. Slow: it cuts the batch, and awaits
 * each of its statements.
 */
export function write<Tx = unknown>(run: (context: WriteContext<Tx>) => Promise<unknown>): Change {
  if (typeof run !== 'function') throw invalid(`write: ${describe(run)} is not a function`)
  return { kind: 'write', run }
}

const KINDS: ReadonlySet<unknown> = new Set(['put', 'patch', 'add', 'remove', 'patchWhere', 'write'])

const PROMISED = 'it is a promise, and handlers are not async: what must be awaited belongs into `enrich`'

/** What a handler returned, as a list. */
export function changeList(given: unknown): readonly Change[] {
  if (given === undefined || given === null) return []
  const list = Array.isArray(given) ? given : [given]
  for (const one of list) {
    if (!KINDS.has((one as Change | undefined | null)?.kind)) {
      const advice =
        typeof (one as { then?: unknown } | null)?.then === 'function'
          ? PROMISED
          : 'return put(), patch(), patchWhere(), add(), remove(), write(), or a list of them'
      throw invalid(`a handler returned ${describe(one)}; ${advice}`)
    }
  }
  return list as readonly Change[]
}

function checkedKey(where: string, key: RowKey): RowKey {
  if (typeof key === 'string' || typeof key === 'bigint') return key
  if (typeof key === 'number' && Number.isFinite(key)) return key
  throw invalid(`${where}: ${describe(key)} is not the key of a row; give a text or a number`)
}

/** Undefined is a forgotten value far more often than it is meant as NULL. */
function checkedColumns<Values extends object>(where: string, values: Values, least = 0): Values {
  if (typeof values !== 'object' || values === null || Array.isArray(values)) {
    throw invalid(`${where}: ${describe(values)} is not an object of columns`)
  }
  const names = Object.keys(values)
  if (names.length < least) throw invalid(`${where}: there is no column`)
  for (const name of names) {
    const value: unknown = values[name as keyof Values]
    if (value === undefined) throw invalid(`${where}: ${describe(name)} is undefined; give null, or leave it out`)
    if (typeof value === 'function' || typeof value === 'symbol') {
      throw invalid(`${where}: ${describe(name)} is ${describe(value)}, which no column holds`)
    }
    if (value instanceof Date && Number.isNaN(value.getTime())) {
      throw invalid(`${where}: ${describe(name)} is an invalid date`)
    }
  }
  return values
}

function invalid(text: string): WaybillError {
  return new WaybillError('INVALID_CHANGE', text)
}
