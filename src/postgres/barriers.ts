import { checkOptions, type Duration, milliseconds } from '../core/index.ts'
import { refusePool, sqlOf } from '../drivers/sql/database.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import type { Database, SqlResult, SqlValue } from '../drivers/sql/sql.ts'
import type { BarrierAnswer, BarrierOperation, Barriers } from '../store/barrier.ts'
import { type CleanOptions, cleanOptions } from '../store/inbox.ts'
import { explained } from './errors.ts'
import type { TableSchema } from './migrate-tables.ts'
import { sql } from './sql.generated.ts'

/** The table of a participant's barrier. */
export interface PostgresBarriersOptions {
  /** Default `saga_barriers`, with the function `waybill_barrier`. Another table has a function `<table>_barrier`. */
  table?: string
  /** What `clean` keeps when no retention is given. Longer than any saga may take. Default 60 days. */
  retention?: Duration
}

const DEFAULT_TABLE = 'saga_barriers'

/** The barrier of participants in PostgreSQL: a table and the SQL function that other languages call too. */
export class PostgresBarriers<Tx = unknown> implements Barriers<Tx> {
  readonly name: string
  readonly #table: TableName
  readonly #function: string
  readonly #database: Database<Tx>
  readonly #retention: number

  constructor(database: Database<Tx>, options: PostgresBarriersOptions = {}) {
    checkOptions('barrier', options, { table: true, retention: true })
    this.#table = tableName(options.table ?? DEFAULT_TABLE, 'barrier')
    const { schema, table } = this.#table
    const prefix = schema === undefined ? '' : `"${schema}".`
    this.#function = table === DEFAULT_TABLE ? `${prefix}"waybill_barrier"` : this.#table.companion('barrier')
    this.name = this.#table.text
    this.#database = database
    this.#retention = milliseconds(options.retention ?? '60d', 'barrier.retention')
  }

  async enter(tx: Tx, key: string, operation: BarrierOperation): Promise<BarrierAnswer> {
    const text = `SELECT go, ran, output::text AS output FROM ${this.#function}($1::text, $2::text)`
    const [row] = (await this.#run(tx, text, [key, operation])).rows
    const output = row?.['output'] == null ? undefined : JSON.parse(row['output'] as string)
    return { go: row?.['go'] === true, ran: row?.['ran'] === true, output }
  }

  async leave(tx: Tx, key: string, operation: BarrierOperation, output: unknown): Promise<void> {
    const text = `SELECT go FROM ${this.#function}($1::text, $2::text, $3::text::jsonb)`
    await this.#run(tx, text, [key, operation, JSON.stringify(output ?? null)])
  }

  async clean(options: CleanOptions = {}): Promise<number> {
    const { retention, limit } = cleanOptions(options, this.#retention)
    const text = this.#fill(sql['barrier-clean'])
    return (await this.#database.query(text, [String(retention), String(limit)])).count
  }

  schema(): TableSchema {
    const versions = [this.#fill(sql['barrier-create'])]
    return { table: this.#table, versions, chosen: [], options: {}, drop: this.#fill(sql['barrier-drop']) }
  }

  #fill(text: string): string {
    return text
      .replaceAll('{{barriers}}', this.#table.sql)
      .replaceAll('{{barriers_created}}', this.#table.object('created'))
      .replaceAll('{{function}}', this.#function)
      .replaceAll('{{name}}', this.#table.text)
  }

  async #run(tx: Tx, text: string, values: readonly SqlValue[]): Promise<SqlResult> {
    refusePool(tx)
    try {
      return await sqlOf(tx).query(text, values)
    } catch (error) {
      throw explained(error, `table ${this.name}`)
    }
  }
}
