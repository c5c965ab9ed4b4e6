import { describe, nearest, WaybillError } from '../core/index.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import { type Database, type SqlValue, textArray } from '../drivers/sql/sql.ts'
import { isStatementError } from '../drivers/sql/transaction.ts'
import type { RowKey } from '../projection/changes.ts'
import type { RowGroup, WriteStep } from '../projection/collapse.ts'
import type { OpenView, ViewTable } from '../projection/store.ts'
import { sql } from './sql.generated.ts'
import { statements } from './statements.ts'

interface ViewColumn {
  /** To cast to, without a length: the column itself refuses what is too long. */
  readonly type: string
  readonly json: boolean
  readonly list: boolean
  readonly generated: boolean
}

const INTEGERS = ['smallint', 'integer', 'bigint']
/** Types of which two texts are the same value only if they are equal, once made so by `rowKey`. */
const KEY_TYPES = ['uuid', 'text', 'character varying', ...INTEGERS]

/** Creates the table where it is missing, and looks at its columns. */
export async function openView<Tx>(database: Database<Tx>, view: ViewTable, began: boolean): Promise<OpenView<Tx>> {
  const table = tableName(view.table, 'projection: table')
  const there = async () =>
    (await database.query('SELECT to_regclass($1) IS NOT NULL AS there', [table.sql])).rows[0]?.['there'] === true
  if (!(await there())) {
    if (began) throw gone(table)
    if (view.create === undefined) {
      throw new WaybillError('NO_VIEW', `${table.text} does not exist; create it, or give the projection \`create\``)
    }
    const texts = [view.create(table.sql)].flat().flatMap(statements)
    const creating = database.transaction(async (tx) => {
      for (const [at, text] of texts.entries()) {
        await sqlOf(tx)
          .query(text)
          .catch((error: unknown) => {
            throw createRefused(table, at + 1, error)
          })
      }
    })
    // From a broker several processes begin at once, and one of them creates it.
    await creating.catch(async (error: unknown) => {
      if (!(await there().catch(() => false))) throw error
    })
    if (!(await there())) throw new WaybillError('NO_VIEW', `\`create\` has not created ${table.text}`)
  }
  if (!began) {
    const full = await database.query(`SELECT EXISTS (SELECT FROM ${table.sql}) AS rows`)
    if (full.rows[0]?.['rows'] === true) throw notEmpty(table)
  }
  const { rows } = await database.query(sql['projection-columns'], [table.sql])
  const columns = new Map(
    rows.map((row) => {
      const { type, json, list, generated } = row as unknown as ViewColumn
      return [row['name'] as string, { type, json, list, generated }]
    }),
  )
  const key = columns.get(view.key)
  if (key === undefined) {
    const text = `${table.text} has no column ${describe(view.key)}; give the projection a key of ${[...columns.keys()].join(', ')}`
    throw new WaybillError('INVALID_VIEW', text)
  }
  if (!KEY_TYPES.includes(key.type)) {
    const text = `${table.text}: the key ${describe(view.key)} is of type ${key.type}; allowed: ${KEY_TYPES.join(', ')}`
    throw new WaybillError('INVALID_VIEW', text)
  }
  const found = rows.find((row) => row['name'] === view.key)
  if (found?.['ambiguous'] === true) {
    const text = `${table.text}: by the collation of ${describe(view.key)} texts that differ may be equal; give the key a deterministic one`
    throw new WaybillError('INVALID_VIEW', text)
  }
  if (found?.['hides'] === true) {
    const text = `${table.text}: row-level security applies to this role, so changes of rows it hides would be lost without a word; let the owner of the table write it, or a role with BYPASSRLS`
    throw new WaybillError('INVALID_VIEW', text)
  }
  if (found?.['is_unique'] !== true) {
    const text = `${table.text}: the key ${describe(view.key)} is not unique; make it the primary key, or give it a unique index`
    throw new WaybillError('INVALID_VIEW', text)
  }
  return new PostgresView(table, view.key, columns)
}

/** Which statement of `create` it was; not of what passes by itself, such as a lock, or is the server's own trouble. */
function createRefused({ text }: TableName, number: number, error: unknown): unknown {
  if (!isStatementError(error) || /^(25006|40|53|55|57|58|XX)/.test(String((error as { code?: unknown }).code)))
    return error
  const says = `${text}: statement ${number} of the projection's \`create\` is refused; correct it, or what its role may do`
  return new WaybillError('INVALID_VIEW', says, { cause: error })
}

/** Writes what was collapsed: one statement for each kind and set of columns. */
class PostgresView<Tx> implements OpenView<Tx> {
  readonly table: string
  readonly #name: TableName
  readonly #key: string
  readonly #keyType: string
  readonly #columns: ReadonlyMap<string, ViewColumn>
  readonly #texts = new Map<string, string>()

  constructor(name: TableName, key: string, columns: ReadonlyMap<string, ViewColumn>) {
    this.table = name.sql
    this.#name = name
    this.#key = key
    this.#keyType = columns.get(key)!.type
    this.#columns = columns
  }

  rowKey(key: RowKey): string {
    const text = String(key)
    if (this.#keyType === 'uuid') return uuidText(text)
    if (!INTEGERS.includes(this.#keyType) || typeof key === 'bigint') return text
    return /^\s*[+-]?\d+\s*$/.test(text) ? String(BigInt(text.trim())) : text
  }

  async write(tx: Tx, step: WriteStep, counts: boolean): Promise<readonly string[]> {
    try {
      return await this.#write(tx, step, counts)
    } catch (error) {
      // Dropped while its projection runs. What a handler's own SQL lacks is its own fault.
      if (step.kind !== 'write' && (error as { code?: unknown } | null)?.code === '42P01') throw gone(this.#name, error)
      throw error
    }
  }

  async #write(tx: Tx, step: WriteStep, counts: boolean): Promise<readonly string[]> {
    switch (step.kind) {
      case 'write':
        await step.run({ tx: tx as never, table: this.table })
        return []
      case 'where':
        await this.#where(tx, step)
        return []
      case 'rows': {
        const missing: string[] = []
        for (const group of step.groups) missing.push(...(await this.#rows(tx, group, counts)))
        return missing
      }
    }
  }

  async #rows(tx: Tx, { kind, set, add, rows }: RowGroup, counts: boolean): Promise<readonly string[]> {
    // Whoever puts a row may name its key among the columns.
    const named = set.includes(this.#key)
    if (named) for (const row of rows) this.#sameKey(row.key, row.set[this.#key])
    const setting = named ? set.filter((name) => name !== this.#key) : set
    if (kind === 'patch' && setting.length + add.length === 0) return []
    const values: SqlValue[] = [textArray(rows.map(({ key }) => key))]
    for (const name of setting) {
      const column = this.#column(name)
      values.push(textArray(rows.map((row) => encode(column, row.set[name]))))
    }
    for (const name of add) {
      this.#column(name)
      values.push(textArray(rows.map((row) => row.add[name])))
    }
    const returning = counts && kind === 'patch'
    const signature = `${kind} ${returning} ${setting.join('\0')} \0 ${add.join('\0')}`
    let text = this.#texts.get(signature)
    if (text === undefined) {
      text = this.#statement(kind, setting, add, returning)
      this.#texts.set(signature, text)
    }
    const result = await sqlOf(tx).query(text, values)
    if (!returning || result.count === rows.length) return []
    const found = new Set(result.rows.map((row) => row['key']))
    return rows.flatMap(({ key }) => (found.has(key) ? [] : [key]))
  }

  #statement(kind: RowGroup['kind'], set: readonly string[], add: readonly string[], returning: boolean): string {
    const key = quoted(this.#key)
    if (kind === 'remove') return `DELETE FROM ${this.table} WHERE ${key} = ANY ($1::text::text[]::${this.#keyType}[])`
    const names = [...set, ...add]
    const given = `unnest(${[0, ...names].map((_, i) => `$${i + 1}::text::text[]`).join(', ')})`
    const source = `${given} AS given(key${names.map((_, i) => `, c${i}`).join('')})`
    const cast = names.map((name, i) => `given.c${i}::${this.#column(name).type}`)
    if (kind === 'put') {
      const columns = [key, ...names.map(quoted)].join(', ')
      const update = names.map((name) => `${quoted(name)} = excluded.${quoted(name)}`).join(', ')
      return `INSERT INTO ${this.table} (${columns}) SELECT ${[`given.key::${this.#keyType}`, ...cast].join(', ')} FROM ${source}
ON CONFLICT (${key}) DO ${names.length === 0 ? 'NOTHING' : `UPDATE SET ${update}`}`
    }
    const update = names.map((name, i) => {
      return `${quoted(name)} = ${i < set.length ? '' : `COALESCE(view.${quoted(name)}, 0) + `}${cast[i]}`
    })
    return `UPDATE ${this.table} AS view SET ${update.join(', ')} FROM ${source}
WHERE view.${key} = given.key::${this.#keyType}${returning ? ` RETURNING view.${key}::text AS key` : ''}`
  }

  async #where(tx: Tx, { where, columns }: Extract<WriteStep, { kind: 'where' }>): Promise<void> {
    const values: SqlValue[] = []
    const given = (name: string, value: unknown) => {
      const column = this.#column(name)
      values.push(encode(column, value))
      return `$${values.length}::text::${column.type}`
    }
    if (Object.hasOwn(columns, this.#key)) throw invalid(`patchWhere: ${describe(this.#key)} is the key of the rows`)
    const set = Object.entries(columns).map(([name, value]) => `${quoted(name)} = ${given(name, value)}`)
    const equal = Object.entries(where).map(([name, value]) => {
      return value === null ? `${quoted(this.#known(name))} IS NULL` : `${quoted(name)} = ${given(name, value)}`
    })
    await sqlOf(tx).query(`UPDATE ${this.table} SET ${set.join(', ')} WHERE ${equal.join(' AND ')}`, values)
  }

  #column(name: string): ViewColumn {
    const column = this.#columns.get(this.#known(name))!
    if (column.generated) throw invalid(`${this.#name.text}: ${describe(name)} is generated by PostgreSQL`)
    return column
  }

  #known(name: string): string {
    if (this.#columns.has(name)) return name
    const near = nearest(name, [...this.#columns.keys()])
    const byHand = '; add it by hand: `create` runs only where the table is missing'
    const hint = near === undefined ? byHand : `; did you mean ${JSON.stringify(near)}?`
    throw invalid(`${this.#name.text} has no column ${describe(name)}${hint}`)
  }

  #sameKey(key: string, value: unknown): void {
    if (value !== undefined && value !== null && this.rowKey(value as RowKey) === key) return
    throw invalid(`${this.#name.text}: ${describe(this.#key)} is the key of the row, and was given another value`)
  }
}

/** PostgreSQL takes a UUID in braces, and with hyphens after any four digits or none, for the same. */
function uuidText(text: string): string {
  const digits = text
    .toLowerCase()
    .replace(/^\{(.*)\}$/, '$1')
    .replaceAll('-', '')
  if (!/^[0-9a-f]{32}$/.test(digits)) return text
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

/** As PostgreSQL reads it. What JSON columns get is always a value, never the text of one. */
function encode(column: Pick<ViewColumn, 'json' | 'list'>, value: unknown): string | null {
  if (value === null || value === undefined) return null
  if (column.json) return JSON.stringify(value)
  if (typeof value === 'string') return value
  if (value instanceof Date) return value.toISOString()
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`
  if (Array.isArray(value) && column.list) return list(value)
  return typeof value === 'object' ? JSON.stringify(value) : String(value)
}

function list(values: readonly unknown[]): string {
  const items = values.map((value) => {
    if (Array.isArray(value)) return list(value)
    const text = encode({ json: false, list: false }, value)
    return text === null ? 'NULL' : `"${text.replace(/["\\]/g, '\\$&')}"`
  })
  return `{${items.join(',')}}`
}

function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`
}

function invalid(text: string): WaybillError {
  return new WaybillError('INVALID_CHANGE', text)
}

function gone({ text }: TableName, cause?: unknown): WaybillError {
  return new WaybillError(
    'NO_VIEW',
    `${text} does not exist any more, and its projection has applied events to it; restore it, or project it anew under another version`,
    cause === undefined ? {} : { cause },
  )
}

function notEmpty({ text }: TableName): WaybillError {
  return new WaybillError(
    'VIEW_NOT_EMPTY',
    `${text} has rows, and its projection has applied no event yet; empty it, or name another table: what is there would be counted twice`,
  )
}
