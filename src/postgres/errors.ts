import { classify, Unavailable, WaybillError } from '../core/index.ts'
import { isStatementError } from '../drivers/sql/transaction.ts'

/** What a person should do about an error of PostgreSQL's that has to do with how Waybill was set up. */
const ADVICE: Record<string, (table: string) => [code: string, text: string]> = {
  '42P01': (table) => ['NOT_MIGRATED', `${table} does not exist; run migrate(), or the SQL it prints`],
  '42703': (table) => [
    'NOT_MIGRATED',
    `${table} has not all the columns it needs, so it is of another version; run migrate()`,
  ],
  '42883': (table) => ['NOT_MIGRATED', `a function ${table} needs does not exist; PostgreSQL 14 or later is needed`],
  '42501': (table) => [
    'NO_PERMISSION',
    table.startsWith('sequence ')
      ? `this role may not use ${table}; grant it USAGE on it`
      : `this role may not use ${table}; grant it what the guide lists for its role, or SELECT, INSERT, UPDATE and DELETE`,
  ],
  '25006': (table) => [
    'READ_ONLY',
    `this connection is read-only, and ${table} must be written; connect to the primary`,
  ],
  '40001': (table) => [
    'CONFLICT',
    `another transaction touched the same event of ${table}; under REPEATABLE READ or SERIALIZABLE run the transaction again`,
  ],
}

/**
 * The same error, with words about what to do where we know. A table that is missing or may not be written is nobody's
 * message's fault: it is `Unavailable`, so that a flow waits until it is mended. A conflict is over when it is tried again.
 */
export function explained(error: unknown, table: string): unknown {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown }
  const advice = typeof code === 'string' ? ADVICE[code]?.(namedIn(message) ?? table) : undefined
  if (advice === undefined) return error
  const [ours, text] = advice
  if (ours === 'CONFLICT') return new WaybillError(ours, text, { cause: error })
  return new Unavailable(text, { cause: error, code: ours })
}

/** What the server says it is about: a companion of the table, or its sequence. Its words may be in another language. */
function namedIn(message: unknown): string | undefined {
  if (typeof message !== 'string') return undefined
  const denied = /^permission denied for (table|sequence|view|schema|function) "?([^"]{1,200})"?$/.exec(message)
  if (denied !== null) return `${denied[1]} ${denied[2]}`
  const missing = /^relation "([^"]{1,200})" does not exist$/.exec(message)
  return missing === null ? undefined : `table ${missing[1]}`
}

/**
 * The server refuses what a statement would write, and will again: a constraint, a trigger, a limit. Not what passes by
 * itself (conflicts, locks, time limits), nor what is no row's fault.
 */
export function isRefusal(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown }
  if (!isStatementError(error) || typeof code !== 'string' || /^(40|55|57)/.test(code)) return false
  return classify(error) !== 'down'
}

/** The server gave the statement up: for its time (`statement_timeout`), or because somebody asked it to. */
export function isCancelled(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '57014'
}
