import { WaybillError } from '../core/index.ts'

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
    `this role may not use ${table}; grant it SELECT, INSERT, UPDATE and DELETE, and USAGE on its sequence`,
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

/** The same error, with words about what to do where we know. */
export function explained(error: unknown, table: string): unknown {
  const code = (error as { code?: unknown } | null)?.code
  const advice = typeof code === 'string' ? ADVICE[code]?.(table) : undefined
  return advice === undefined ? error : new WaybillError(advice[0], advice[1], { cause: error })
}
