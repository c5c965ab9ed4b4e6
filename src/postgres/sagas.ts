import { checkOptions, describe, isUuid, milliseconds, systemClock, WaybillError, wholeNumber } from '../core/index.ts'
import { refusePool, sqlOf } from '../drivers/sql/database.ts'
import { type Database, type SqlResult, type SqlValue, textArray } from '../drivers/sql/sql.ts'
import type {
  Claim,
  Claimed,
  NewSaga,
  SagaAudit,
  SagaChange,
  SagaEnd,
  SagaFilter,
  SagaListener,
  SagaPage,
  SagaRecord,
  SagaStats,
  SagaStore,
  StepRecord,
} from '../saga/port.ts'
import type { SagaState, StepState } from '../saga/state.ts'
import { explained } from './errors.ts'
import { SagaFloor } from './saga-floor.ts'
import { sagaListener } from './saga-listener.ts'
import { type PostgresSagasOptions, SagaNames } from './saga-names.ts'
import { countSagas, lookAtSagas, type Part, type SagaLook, sagaStatsOf } from './saga-stats.ts'
import { sql } from './sql.generated.ts'
import { TimedCounts } from './timed-counts.ts'

type SagaStatement = Extract<keyof typeof sql, `saga-${string}`>

/** Sagas in PostgreSQL. Each write is one statement; outside of a transaction it is prepared where the driver allows it. */
export class PostgresSagas<Tx = unknown> implements SagaStore<Tx> {
  readonly name: string
  readonly names: SagaNames
  readonly #database: Database<Tx>
  readonly #retention: number
  readonly #counts = new TimedCounts<readonly Part[]>()
  readonly #statements = new Map<string, Statement>()
  /** By the definitions that are looked for. */
  readonly #floors = new Map<string, SagaFloor>()
  /** Also where somebody has put an object of his own before this one. */
  readonly pool = (): object => this.#database.pool

  constructor(database: Database<Tx>, options: PostgresSagasOptions = {}) {
    checkOptions('sagas', options, { table: true, steps: true, retention: true })
    this.names = new SagaNames(options)
    this.name = this.names.table.text
    this.#database = database
    this.#retention = milliseconds(options.retention ?? '30d', 'sagas.retention')
  }

  async insert(tx: Tx | undefined, saga: NewSaga): Promise<boolean> {
    const { id, type, definition, aggregate, tenant, input, traceparent, runner, wakeIn, state } = saga
    const steps = state.steps.map(({ name, key, sends }, ordinal) => ({ step_name: name, ordinal, id: key, sends }))
    const values = [id, type, definition, aggregate ?? null, tenant ?? null, input, traceparent ?? null, runner ?? null]
    const more = [String(wakeIn), currentStep(state), JSON.stringify(steps)]
    const notifies = runner === undefined && wakeIn < SOON
    const { rows } = await this.#run(tx, 'saga-insert', [...values, ...more], notifies)
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
      currentStep(state),
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
    const notifies = claim === 'leave' || (claim === 'release' && (wakeIn ?? SOON) < SOON)
    const { rows } = await this.#run(tx, 'saga-save', values, notifies)
    return rows[0]?.['id'] != null
  }

  async load(tx: Tx | undefined, id: string, lock = false): Promise<SagaRecord | undefined> {
    if (!isUuid(id)) {
      const advice = 'give the UUID that start() returned and list() shows; list({ aggregate }) finds it'
      throw new WaybillError('INVALID_OPTION', `${describe(id)} is not the id of a saga; ${advice}`)
    }
    if (lock) await this.#run(tx, 'saga-lock', [id])
    const { rows } = await this.#run(tx, 'saga-load', [id])
    return rows[0] === undefined ? undefined : recordOf(rows[0]['saga'])
  }

  async ended(ids: readonly string[]): Promise<readonly SagaEnd[]> {
    const { rows } = await this.#run(undefined, 'saga-ended', [textArray(ids)])
    return rows.map(({ id, type, saga }) => ({
      id: id as string,
      type: type as string,
      saga: saga === null ? undefined : recordOf(saga),
    }))
  }

  async claim({ definitions, count, takeovers, runner, lease }: Claim): Promise<readonly Claimed[]> {
    const floor = this.#floor(definitions)
    const bounds = floor.boundsFor(floor.claims)
    const values = [textArray(definitions), String(count), String(takeovers), runner, String(lease)]
    const { rows } = await this.#run(undefined, 'saga-claim', [...values, bounds.due ?? null, bounds.claimed ?? null])
    const claimed = rows
      .filter((row) => row['saga'] !== null)
      .map((row) => ({
        saga: recordOf(row['saga']),
        takenOver: row['taken'] === true,
        dueAt: new Date(JSON.parse(row['due'] as string)),
      }))
      .sort((a, b) => a.dueAt.getTime() - b.dueAt.getTime())
    const { floor: looked, passed } = rows[0]! as { floor: string; passed: string }
    if (bounds.due === undefined) floor.claims.passed(Number(passed) - claimed.length)
    if (claimed.some(({ takenOver }) => takenOver)) return claimed
    // Where as many came as were asked for, more may be due behind the last.
    const last = claimed.length < count ? undefined : claimed.at(-1)?.dueAt
    const before = new Date(JSON.parse(looked))
    const due = last === undefined || last > before ? before : last
    floor.reached({ due: due.toISOString(), claimed: takeovers > 0 ? before.toISOString() : undefined })
    return claimed
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

  async nextDue(definitions: readonly string[], claimed = false): Promise<number | undefined> {
    const floor = this.#floor(definitions)
    const bounds = floor.boundsFor(floor.nexts)
    const all = bounds.due === undefined
    const values = [bounds.due ?? null, bounds.claimed ?? null, all ? null : String(AHEAD)]
    const { rows } = await this.#run(undefined, 'saga-next', [textArray(definitions), String(claimed), ...values])
    if (all) floor.nexts.passed(Number(rows[0]!['passed']))
    const ms = rows[0]!['ms']
    if (ms == null) return all ? undefined : AHEAD
    return Number(ms)
  }

  #floor(definitions: readonly string[]): SagaFloor {
    const known = definitions.join(' ')
    const floor = this.#floors.get(known) ?? new SagaFloor(systemClock)
    this.#floors.set(known, floor)
    return floor
  }

  async list(filter: SagaFilter, page: SagaPage, tx?: Tx): Promise<readonly SagaRecord[]> {
    const { type, aggregate, status, attention = false } = filter
    const statuses = status === undefined ? null : textArray(typeof status === 'string' ? [status] : status)
    const limit = wholeNumber('sagas: limit', page.limit ?? 50, { max: 1000 })
    const values = [type ?? null, aggregate ?? null, statuses, String(attention), page.after ?? null, String(limit)]
    const { rows } = await this.#run(tx, 'saga-list', values)
    return rows.map((row) => recordOf(row['saga']))
  }

  async overdue(ms: number): Promise<readonly { definition: string; count: number }[]> {
    const { rows } = await this.#run(undefined, 'saga-overdue', [String(ms)])
    return rows.map((row) => ({ definition: row['definition'] as string, count: Number(row['count']) }))
  }

  async stats(exactUpTo = 0, within?: number): Promise<readonly SagaStats[]> {
    const until = within === undefined ? undefined : this.#counts.clock.monotonic() + within
    let look: SagaLook | undefined
    try {
      await this.#database.transaction(async (tx) => {
        look = await lookAtSagas(sqlOf(tx), this.names, exactUpTo || undefined)
        await countSagas(sqlOf(tx), this.names, look, this.#counts, { exactUpTo, until })
      })
    } catch (error) {
      // What the server could not count in time is an estimate; the rest is known.
      const late = look !== undefined && (error as { code?: unknown } | null)?.code === '57014'
      if (!late) throw explained(error, `table ${this.name}`)
    }
    return sagaStatsOf(look!)
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

  listen(): Promise<SagaListener | undefined> {
    return sagaListener(this.#database as Database, this.names)
  }

  async #run(
    tx: Tx | undefined,
    name: SagaStatement,
    values: readonly SqlValue[],
    notifies = false,
  ): Promise<SqlResult> {
    const wake = !notifies ? 'off' : this.#database.single ? 'always' : 'flag'
    const known = `${name} ${wake}`
    const statement = this.#statements.get(known) ?? new Statement(this.names.fill(sql[name], wake))
    this.#statements.set(known, statement)
    try {
      if (tx === undefined) return await this.#database.prepared(name, statement.next(), values)
      refusePool(tx)
      return await sqlOf(tx).query(statement.text, values)
    } catch (error) {
      throw explained(error, `table ${this.name}`)
    }
  }
}

/** After how many runs a statement is planned anew. */
const PLANNED_ANEW = [1000, 10_000, 100_000]

/**
 * A statement that is prepared. Its plan is kept until the table is analysed; one that was made while the table was small
 * reads all of it, and goes on to do so while it grows. So after some runs its text is another one, and is planned anew.
 */
class Statement {
  readonly text: string
  #runs = 0
  #planned: string

  constructor(text: string) {
    this.text = text
    this.#planned = text
  }

  /** Its text for one more run. */
  next(): string {
    if (PLANNED_ANEW.includes(++this.#runs)) this.#planned = `${this.text}\n-- planned anew after ${this.#runs} runs`
    return this.#planned
  }
}

/** What is due later is found by a runner that looks now and then, in milliseconds. */
const SOON = 120_000

/** How far ahead a look goes that spares what is behind the floor, in milliseconds: entries of what was due later are dead too. */
const AHEAD = 5000

/** An early step is not the one it is at. */
function currentStep({ steps }: SagaState): string | null {
  return (steps.findLast(({ status }) => status !== 'completed') ?? steps.at(-1))?.name ?? null
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
    sends: step.sends,
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
