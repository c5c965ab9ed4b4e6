import type { Duration } from '../core/index.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import type { Discard, TableSchema } from './migrate-tables.ts'
import { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** The tables of sagas. */
export interface PostgresSagasOptions {
  /** Default `saga_executions`. */
  table?: string
  /** Default `saga_steps`, or the table's name with `_steps`. */
  steps?: string
  /** What `clean` keeps of those that have ended, when no retention is given. Default 30 days. */
  retention?: Duration
}

const DEFAULT_TABLE = 'saga_executions'

/** A saga as JSON, so that every driver gives the same. A step without an output has no `output`. */
const SAGA = `json_build_object(
  'id', saga.id, 'type', saga.saga_type, 'definition', saga.definition, 'aggregate', saga.aggregate_id, 'tenant', saga.tenant_id,
  'status', saga.status, 'currentStep', saga.current_step, 'version', saga.version, 'input', saga.input, 'runner', saga.runner,
  'takeovers', saga.takeovers, 'wakeAt', saga.wake_at, 'held', saga.held_reason, 'error', saga.error_message,
  'traceparent', saga.traceparent, 'createdAt', saga.created_at, 'updatedAt', saga.updated_at, 'endedAt', saga.ended_at,
  'steps', COALESCE((SELECT json_agg(json_build_object(
      'name', step.step_name, 'key', step.id, 'status', step.status, 'returned', step.output IS NOT NULL, 'output', step.output,
      'attempts', step.attempts, 'spent', step.spent_ms, 'undos', step.undos, 'sends', step.sends, 'error', step.error_message,
      'startedAt', step.started_at, 'executedAt', step.executed_at, 'compensatedAt', step.compensated_at) ORDER BY step.ordinal)
    FROM {{steps}} AS step WHERE step.saga_id = saga.id), '[]'))::text`

/** The tables of sagas, and SQL with their names filled in. */
export class SagaNames {
  readonly table: TableName
  readonly steps: TableName
  /** For the idle flag, which is that of any table. */
  readonly flag: OutboxNames
  /** How many entries of the two indexes that sagas are claimed by this session has read. Without track_counts always 0. */
  readonly #entries: string

  constructor(options: Pick<PostgresSagasOptions, 'table' | 'steps'> = {}) {
    const { table = DEFAULT_TABLE } = options
    this.table = tableName(table, 'sagas')
    const steps = table === DEFAULT_TABLE ? 'saga_steps' : `${table}_steps`
    this.steps = tableName(options.steps ?? steps, 'sagas: steps')
    this.flag = new OutboxNames(table)
    const { schema } = this.table
    const read = ['due', 'claimed'].map((suffix) => {
      const index = `${schema === undefined ? '' : `"${schema}".`}${this.table.object(suffix)}`
      return `COALESCE(pg_stat_get_xact_tuples_returned(to_regclass('${index}')), 0)`
    })
    this.#entries = `(${read.join(' + ')})`
  }

  fill(text: string, wake: 'flag' | 'always' | 'off' = 'off'): string {
    return text
      .replaceAll('{{saga}}', SAGA)
      .replaceAll('{{entries}}', this.#entries)
      .replaceAll('{{waking}}', this.flag.fill('{{waking}}', { wake }))
      .replaceAll('{{sagas}}', this.table.sql)
      .replaceAll('{{steps}}', this.steps.sql)
      .replaceAll('{{audit}}', this.table.companion('audit'))
      .replaceAll('{{name}}', this.table.text)
      .replace(/\{\{index_(\w+)\}\}/g, (_, suffix: string) => `'${this.table.companion(suffix)}'`)
      .replace(/\{\{sagas_(\w+)\}\}/g, (_, suffix: string) => this.table.object(suffix))
  }

  schema(): TableSchema {
    const guard = (discard: readonly Discard[]) =>
      this.fill(sql['saga-down'].replaceAll('{{keep_pending}}', String(!discard.includes('pending'))))
    const versions = [this.fill(sql['saga-create'])]
    return { table: this.table, versions, chosen: [], options: {}, drop: this.fill(sql['saga-drop']), guard }
  }
}
