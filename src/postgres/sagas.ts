import {
  checkOptions,
  type Duration,
  describe,
  isUuid,
  milliseconds,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { refusePool, sqlOf } from '../drivers/sql/database.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import { type Database, type SqlResult, type SqlValue, textArray } from '../drivers/sql/sql.ts'
import type {
  Claim,
  Claimed,
  NewSaga,
  SagaAudit,
  SagaChange,
  SagaFilter,
  SagaListener,
  SagaPage,
  SagaRecord,
  SagaStore,
  StepRecord,
} from '../saga/port.ts'
import type { SagaState, StepState } from '../saga/state.ts'
import { explained } from './errors.ts'
import type { Discard, TableSchema } from './migrate-tables.ts'
import { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'
import { IdleNotifier } from './wake.ts'

/** The tables of sagas. */
export interface PostgresSagasOptions {
  /** Default `saga_executions`. */
  table?: string
  /** Default `saga_steps`, or the table's name with `_steps`. */
  steps?: string
  /** What `clean` keeps of those that have ended, when it is not told. Default 30 days. */
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
      'attempts', step.attempts, 'spent', step.spent_ms, 'undos', step.undos, 'error', step.error_message,
      'startedAt', step.started_at, 'executedAt', step.executed_at, 'compensatedAt', step.compensated_at) ORDER BY step.ordinal)
    FROM {{steps}} AS step WHERE step.saga_id = saga.id), '[]'))::text`

/** The tables of sagas, and SQL with their names filled in. */
export class SagaNames {
  readonly table: TableName
  readonly steps: TableName
  /** For the idle flag, which is that of any table. */
  readonly flag: OutboxNames

  constructor(options: Pick<PostgresSagasOptions, 'table' | 'steps'> = {}) {
    const { table = DEFAULT_TABLE } = options
    this.table = tableName(table, 'sagas')
    const steps = table === DEFAULT_TABLE ? 'saga_steps' : `${table}_steps`
    this.steps = tableName(options.steps ?? steps, 'sagas: steps')
    this.flag = new OutboxNames(table)
  }

  fill(text: string, wake: 'flag' | 'always' | 'off' = 'off'): string {
    return text
      .replaceAll('{{saga}}', SAGA)
      .replaceAll('{{waking}}', this.flag.fill('{{waking}}', { wake }))
      .replaceAll('{{sagas}}', this.table.sql)
      .replaceAll('{{steps}}', this.steps.sql)
      .replaceAll('{{audit}}', this.table.companion('audit'))
      .replaceAll('{{name}}', this.table.text)
      .replace(/\{\{sagas_(\w+)\}\}/g, (_, suffix: string) => this.table.object(suffix))
  }

  schema(): TableSchema {
    const guard = (discard: readonly Discard[]) =>
      this.fill(sql['saga-down'].replaceAll('{{keep_pending}}', String(!discard.includes('pending'))))
    const versions = [this.fill(sql['saga-create'])]
    return { table: this.table, versions, chosen: [], options: {}, drop: this.fill(sql['saga-drop']), guard }
  }
}

type Statement = Extract<keyof typeof sql, `saga-${string}`>

/** Sagas in PostgreSQL. Each write is one statement; outside of a transaction it is prepared where the driver allows it. */
export class PostgresSagas<Tx = unknown> implements SagaStore<Tx> {
  readonly name: string
  readonly names: SagaNames
  readonly #database: Database<Tx>
  readonly #retention: number
  readonly #texts = new Map<string, string>()

  constructor(database: Database<Tx>, options: PostgresSagasOptions = {}) {
    checkOptions('sagas', options, { table: true, steps: true, retention: true })
    this.names = new SagaNames(options)
    this.name = this.names.table.text
    this.#database = database
    this.#retention = milliseconds(options.retention ?? '30d', 'sagas.retention')
  }

  async insert(tx: Tx | undefined, saga: NewSaga): Promise<boolean> {
    const { id, type, definition, aggregate, tenant, input, traceparent, runner, wakeIn, state } = saga
    const steps = state.steps.map((step, ordinal) => ({ step_name: step.name, ordinal, id: step.key }))
    const values = [id, type, definition, aggregate ?? null, tenant ?? null, input, traceparent ?? null, runner ?? null]
    const more = [String(wakeIn), state.steps.at(-1)?.name ?? null, JSON.stringify(steps)]
    const { rows } = await this.#run(tx, 'saga-insert', [...values, ...more], runner === undefined)
    return rows[0]?.['id'] != null
  }

  async save(tx: Tx | undefined, change: SagaChange): Promise<boolean> {
    const { id, version, runner, state, claim, wakeIn, lease, progress } = change
    const ended = state.status === 'completed' || state.status === 'compensated' || state.status === 'failed'
    const waits = (state.held !== undefined || state.status === 'failed') && change.acknowledged !== true
    const values = [
      id,
      String(version),
      runner ?? null,
      state.status,
      state.steps.at(-1)?.name ?? null,
      state.held ?? null,
      state.error ?? null,
      claim,
      wakeIn === undefined ? null : String(wakeIn),
      String(lease),
      String(progress),
      String(ended),
      String(waits),
      JSON.stringify(change.steps.map((step) => stepJson(state, step))),
    ]
    const { rows } = await this.#run(tx, 'saga-save', values, claim === 'leave')
    return rows[0]?.['id'] != null
  }

  async load(tx: Tx | undefined, id: string, lock = false): Promise<SagaRecord | undefined> {
    if (!isUuid(id)) throw new WaybillError('INVALID_OPTION', `${describe(id)} is not the id of a saga`)
    if (lock) await this.#run(tx, 'saga-lock', [id])
    const { rows } = await this.#run(tx, 'saga-load', [id])
    return rows[0] === undefined ? undefined : recordOf(rows[0]['saga'])
  }

  async claim({ definitions, count, takeovers, runner, lease, from }: Claim): Promise<readonly Claimed[]> {
    const values = [textArray(definitions), String(count), String(takeovers), runner, String(lease)]
    const { rows } = await this.#run(undefined, 'saga-claim', [...values, from?.toISOString() ?? null])
    const claimed = rows.map((row) => ({
      saga: recordOf(row['saga']),
      takenOver: row['taken'] === true,
      dueAt: new Date(JSON.parse(row['due'] as string)),
    }))
    return claimed.sort((a, b) => a.dueAt.getTime() - b.dueAt.getTime())
  }

  async extend(
    claims: readonly { readonly id: string; readonly runner: string }[],
    lease: number,
  ): Promise<readonly string[]> {
    const ids = claims.map(({ id }) => id)
    const runners = claims.map(({ runner }) => runner)
    const { rows } = await this.#run(undefined, 'saga-extend', [textArray(ids), textArray(runners), String(lease)])
    return rows.map((row) => row['id'] as string)
  }

  async nextDue(definitions: readonly string[]): Promise<number | undefined> {
    const { rows } = await this.#run(undefined, 'saga-next', [textArray(definitions)])
    const ms = rows[0]?.['ms']
    return ms == null ? undefined : Number(ms)
  }

  async list(filter: SagaFilter, page: SagaPage): Promise<readonly SagaRecord[]> {
    const { type, aggregate, status, attention = false } = filter
    const statuses = status === undefined ? null : textArray(typeof status === 'string' ? [status] : status)
    const limit = wholeNumber('sagas: limit', page.limit ?? 50, { max: 1000 })
    const values = [type ?? null, aggregate ?? null, statuses, String(attention), page.after ?? null, String(limit)]
    const { rows } = await this.#run(undefined, 'saga-list', values)
    return rows.map((row) => recordOf(row['saga']))
  }

  async overdue(ms: number): Promise<readonly { definition: string; count: number }[]> {
    const { rows } = await this.#run(undefined, 'saga-overdue', [String(ms)])
    return rows.map((row) => ({ definition: row['definition'] as string, count: Number(row['count']) }))
  }

  async audit(tx: Tx | undefined, { sagaId, by, action, note }: Omit<SagaAudit, 'at'>): Promise<void> {
    await this.#run(tx, 'saga-audit', [sagaId, by, action, note])
  }

  async audits(id: string): Promise<readonly SagaAudit[]> {
    const { rows } = await this.#run(undefined, 'saga-audits', [id])
    return rows.map((row) => {
      const { at, ...entry } = JSON.parse(row['entry'] as string) as SagaAudit & { at: string }
      return { ...entry, at: new Date(at) }
    })
  }

  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('sagas.clean', options, { retention: true, limit: true })
    const retention = wholeNumber('sagas.clean: retention', options.retention ?? this.#retention, { min: 0 })
    const limit = wholeNumber('sagas.clean: limit', options.limit ?? 10_000, { max: 1_000_000 })
    return (await this.#run(undefined, 'saga-clean', [String(retention), String(limit)])).count
  }

  /** Two connections of the pool: one hears, one holds the idle flag. Behind a pooler nobody can be told. */
  async listen(): Promise<SagaListener | undefined> {
    const { single } = this.#database
    const connect = () => this.#database.connect({ prepare: false, applicationName: `waybill sagas ${this.name}` })
    const listener = await connect()
    if (listener.pooled) {
      await listener.release()
      return undefined
    }
    const timeout = 5000
    const options = { listener, names: this.names.flag, clock: systemClock, idleTimeout: 600_000, timeout }
    const wake = new IdleNotifier({ ...options, connect: single ? undefined : connect })
    return {
      async wait(ms, signal) {
        // When the flag has just gone up, look once more: what was committed before told nobody.
        if (wake.notified() || ((await wake.goIdle()) && !Number.isFinite(wake.retryIn))) return
        await wake.sleep(Math.min(ms, wake.retryIn), signal)
        wake.notified()
      },
      busy: () => wake.goBusy(),
      close: async () => {
        await wake.close()
        await listener.release(true)
      },
    }
  }

  async #run(tx: Tx | undefined, name: Statement, values: readonly SqlValue[], tells = false): Promise<SqlResult> {
    const wake = !tells ? 'off' : this.#database.single ? 'always' : 'flag'
    const known = `${name} ${wake}`
    const text = this.#texts.get(known) ?? this.names.fill(sql[name], wake)
    this.#texts.set(known, text)
    try {
      if (tx === undefined) return await this.#database.prepared(name, text, values)
      refusePool(tx)
      return await sqlOf(tx).query(text, values)
    } catch (error) {
      throw explained(error, `table ${this.name}`)
    }
  }
}

function stepJson(state: SagaState, step: StepState) {
  return {
    step_name: step.name,
    ordinal: state.steps.findIndex(({ name }) => name === step.name),
    id: step.key,
    status: step.status,
    // SQL knows one NULL only.
    returned: step.output !== undefined,
    output: step.output,
    attempts: step.attempts,
    spent_ms: Math.round(step.spent),
    undos: step.undos,
    error_message: step.error ?? null,
    executed: step.executed,
  }
}

const DATES = ['wakeAt', 'createdAt', 'updatedAt', 'endedAt', 'startedAt', 'executedAt', 'compensatedAt']

function recordOf(text: unknown): SagaRecord {
  const row = JSON.parse(text as string) as SagaRecord
  const steps = row.steps.map((given) => {
    const { returned, ...step } = plain(given) as unknown as StepRecord & { returned: boolean }
    return { ...step, output: returned ? given.output : undefined, executed: step.executedAt !== undefined }
  })
  return { ...(plain(row) as unknown as SagaRecord), input: row.input, steps }
}

/** NULL is undefined, and a time is a Date. */
function plain(row: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(row).map(([name, value]) => {
      if (value === null) return [name, undefined]
      return [name, DATES.includes(name) ? new Date(value as string) : value]
    }),
  )
}
