import { has } from '../has.ts'
import type { Sql, SqlValue } from './sql.ts'

/**
 * What other libraries call a database or a connection, known by its properties: none is imported. Each has a method
 * that runs SQL outside of any transaction, so that an event written through it would not be undone with the rest.
 */
export interface NotATransaction {
  readonly what: string
  readonly instead: string
  is(given: Record<string, unknown>): boolean
}

export const notTransactions: readonly NotATransaction[] = [
  {
    what: 'a TypeORM DataSource',
    instead: 'give the manager that dataSource.transaction() passes to you',
    is: (given) => has(given, 'query', 'createQueryRunner') && 'manager' in given,
  },
  {
    what: 'a TypeORM QueryRunner without a transaction',
    instead: 'call startTransaction() first',
    is: isIdleRunner,
  },
  {
    what: 'a TypeORM EntityManager outside of a transaction',
    instead: 'give the manager that dataSource.transaction() passes to you',
    is: (given) => has(given, 'query', 'getRepository') && !isActiveRunner(given['queryRunner']),
  },
  {
    what: 'a Sequelize instance',
    instead: 'give the transaction that sequelize.transaction() passes to you',
    is: (given) => has(given, 'query', 'transaction', 'define'),
  },
  {
    what: 'a Knex instance',
    instead: 'give the trx that knex.transaction() passes to you',
    is: (given) => has(given, 'raw', 'transaction') && 'client' in given && given['isTransaction'] !== true,
  },
  {
    what: 'a Prisma client',
    instead: 'give the tx that prisma.$transaction() passes to you',
    is: (given) => has(given, '$queryRawUnsafe', '$transaction', '$connect'),
  },
  {
    what: 'a Kysely instance',
    instead:
      'give (text, values) => trx.executeQuery(CompiledQuery.raw(text, values)), with the trx of its transaction()',
    is: (given) => has(given, 'executeQuery', 'selectFrom', 'transaction') && given['isTransaction'] === false,
  },
  {
    what: 'a Drizzle database',
    instead: 'give a function that runs SQL in the tx that db.transaction() passes to you',
    is: (given) => has(given, 'execute', 'transaction', 'select') && '$client' in given,
  },
  {
    what: 'a pg-promise database or task',
    instead: 'give the t that db.tx() passes to you',
    is: (given) => has(given, 'query', 'tx', 'task') && inTransaction(given['ctx']) !== true,
  },
]

function isIdleRunner(given: Record<string, unknown>): boolean {
  return has(given, 'query', 'startTransaction') && given['isTransactionActive'] === false
}

function isActiveRunner(runner: unknown): boolean {
  return has(runner, 'query') && !isIdleRunner(runner as Record<string, unknown>)
}

function inTransaction(context: unknown): boolean | undefined {
  const { inTransaction: inside, isTX } = (context ?? {}) as Record<string, unknown>
  return inside === true || isTX === true
}

/** The `trx` of Knex: a function that makes query builders. SQL goes through `raw`, which counts its parameters by `?`. */
export function knex(tx: unknown): Sql | undefined {
  if (typeof tx !== 'function' || !has(tx, 'raw', 'commit', 'rollback')) return undefined
  const { raw } = tx as unknown as { raw(text: string, values: readonly SqlValue[]): PromiseLike<unknown> }
  return {
    query: async (text, values = []) => {
      const used: SqlValue[] = []
      const counted = text.replace(/\?/g, '\\?').replace(/\$(\d+)/g, (_, number: string) => {
        used.push(values[Number(number) - 1] ?? null)
        return '?'
      })
      return rowsOf(await raw.call(tx, counted, used))
    },
  }
}

/** A transaction of Sequelize has no method for SQL: its instance runs it. */
export function sequelize(tx: unknown): Sql | undefined {
  const root = (tx as { sequelize?: unknown } | null | undefined)?.sequelize
  if (!has(tx, 'commit', 'rollback') || !has(root, 'query', 'define')) return undefined
  const { query } = root as { query(text: string, options: object): Promise<unknown> }
  return {
    query: async (text, values = []) => {
      const answer = await query.call(root, text, { bind: [...values], transaction: tx })
      return rowsOf({ rows: (answer as unknown[])[0] })
    },
  }
}

/** The `tx` of Prisma. */
export function prisma(tx: unknown): Sql | undefined {
  if (!has(tx, '$queryRawUnsafe')) return undefined
  const client = tx as { $queryRawUnsafe(text: string, ...values: readonly SqlValue[]): Promise<unknown> }
  return { query: async (text, values = []) => rowsOf({ rows: await client.$queryRawUnsafe(text, ...values) }) }
}

function rowsOf(answer: unknown) {
  const { rows, rowCount } = answer as { rows: Record<string, unknown>[]; rowCount?: number | null }
  return { rows, count: rowCount ?? rows.length, command: undefined }
}
