import { describe, WaybillError } from '../../core/index.ts'

/** PostgreSQL cuts longer names off without a word; suffixes for indexes and companion tables need room too. */
const MAX_NAME = 63
const SUFFIX_ROOM = 16

/** A table name, with its schema when one was given. Validated once, quoted everywhere. */
export interface TableName {
  readonly schema: string | undefined
  readonly table: string
  /** As a person writes it. */
  readonly text: string
  /** Quoted, with its schema. */
  readonly sql: string
  /** A companion in the same schema: `outbox` → `"outbox_terms"`. */
  companion(suffix: string): string
  /** An object of this table that has no schema of its own in its definition, such as an index. */
  object(suffix: string): string
}

export function tableName(text: string, where: string): TableName {
  const parts = typeof text === 'string' ? text.split('.') : []
  if (parts.length < 1 || parts.length > 2) invalid(text, where)
  for (const part of parts) if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(part)) invalid(text, where)
  const table = parts.at(-1)!
  const schema = parts.length === 2 ? parts[0] : undefined
  if (table.length > MAX_NAME - SUFFIX_ROOM || (schema?.length ?? 0) > MAX_NAME) invalid(text, where)
  const prefix = schema === undefined ? '' : `"${schema}".`
  return {
    schema,
    table,
    text,
    sql: `${prefix}"${table}"`,
    companion: (suffix) => `${prefix}"${table}_${suffix}"`,
    object: (suffix) => `"${table}_${suffix}"`,
  }
}

function invalid(text: unknown, where: string): never {
  throw new WaybillError(
    'INVALID_NAME',
    `${where}: ${describe(text)} is not a table name; use letters, digits and underscores, not beginning with a digit, at most ${MAX_NAME - SUFFIX_ROOM} characters, with a schema before it if needed (billing.outbox)`,
  )
}
