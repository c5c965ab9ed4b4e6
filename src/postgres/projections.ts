import { fromStructured, toStructured } from '../cloudevents/index.ts'
import {
  checkOptions,
  type Duration,
  errorSummary,
  milliseconds,
  type RawMessage,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { refusePool, sqlOf } from '../drivers/sql/database.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import { type Database, numberArray, type SqlResult, type SqlValue, textArray } from '../drivers/sql/sql.ts'
import type { Audit } from '../outbox/admin.ts'
import type { ParkedEvent, Position, ProjectionId } from '../projection/port.ts'
import type {
  DueEvent,
  KeyPosition,
  NewParked,
  OpenView,
  ParkedFilter,
  ParkedPage,
  ProjectionAudit,
  ProjectionCheckpoint,
  ProjectionLook,
  ProjectionStore,
  ViewTable,
} from '../projection/store.ts'
import { explained } from './errors.ts'
import type { TableSchema } from './migrate-tables.ts'
import { openView } from './projection-view.ts'
import { storable } from './row.ts'
import { sql } from './sql.generated.ts'

/** The tables of projections. The views are yours. */
export interface PostgresProjectionsOptions {
  /** Default `projections`. */
  table?: string
  /** Default: the table's name with `_parked`. */
  parked?: string
  /**
   * A projector that is suspended in the middle of a transaction loses it after so long, so that another can go on. Default
   * 20 s.
   */
  idleTimeout?: Duration
}

/** As JSON, so that every driver gives the same; positions as text, which loses no digits. */
const CHECKPOINT = `json_build_object(
  'name', projection.name, 'version', projection.version, 'log', projection.log, 'incarnation', projection.incarnation,
  'position', projection.position::text,
  'event', CASE WHEN projection.event_position = projection.position THEN projection.event_id END, 'epoch', projection.epoch::text, 'problem', projection.problem,
  'builtAt', projection.built_at, 'updatedAt', projection.updated_at)::text`
const PARKED_COUNT = `(SELECT count(*) FROM {{parked}} AS parked
  WHERE parked.name = projection.name AND parked.version = projection.version)::text`
const EVENT = `json_build_object(
  'name', parked.name, 'version', parked.version, 'position', parked.position::text, 'key', parked.key, 'type', parked.type,
  'attempts', parked.attempts, 'error', parked.error, 'parkedAt', parked.parked_at, 'nextAt', parked.next_at)::text`

/** The tables of projections, and SQL with their names filled in. */
class ProjectionNames {
  readonly table: TableName
  readonly parked: TableName

  constructor({ table = 'projections', parked = `${table}_parked` }: PostgresProjectionsOptions = {}) {
    this.table = tableName(table, 'projections')
    this.parked = tableName(parked, 'projections: parked')
  }

  fill(text: string): string {
    return text
      .replaceAll('{{checkpoint}}', CHECKPOINT)
      .replaceAll('{{parked_count}}', PARKED_COUNT)
      .replaceAll('{{event}}', EVENT)
      .replaceAll('{{projections}}', this.table.sql)
      .replaceAll('{{parked}}', this.parked.sql)
      .replaceAll('{{parked_key}}', this.parked.object('key'))
      .replaceAll('{{keys}}', this.table.companion('keys'))
      .replaceAll('{{audit}}', this.table.companion('audit'))
  }

  schema(): TableSchema {
    const versions = [this.fill(sql['projection-create']), this.fill(sql['projection-upgrade-2'])]
    return { table: this.table, versions, chosen: [], options: {}, drop: this.fill(sql['projection-drop']) }
  }
}

type ProjectionStatement = Extract<keyof typeof sql, `projection-${string}`>

/** Checkpoints, parked events and views of projections in PostgreSQL. */
export class PostgresProjections<Tx = unknown> implements ProjectionStore<Tx> {
  readonly name: string
  readonly names: ProjectionNames
  readonly #database: Database<Tx>
  readonly #texts = new Map<string, string>()
  readonly #idleTimeout: string

  constructor(database: Database<Tx>, options: PostgresProjectionsOptions = {}) {
    checkOptions('projections', options, { table: true, parked: true, idleTimeout: true })
    const idle = milliseconds(options.idleTimeout ?? '20s', 'projections.idleTimeout')
    this.#idleTimeout = String(Math.max(1, Math.ceil(idle)))
    this.names = new ProjectionNames(options)
    this.name = this.names.table.text
    this.#database = database
  }

  async open(
    projection: ProjectionId,
    log: { readonly id: string; readonly incarnation: string },
    epoch: string,
    start: Position,
  ): Promise<ProjectionCheckpoint | undefined> {
    const values = [...idValues(projection), log.id, log.incarnation, epoch, String(start)]
    const [row] = (await this.#run(undefined, 'projection-open', values)).rows
    if (row?.['retired'] === true) throw retired(projection)
    return row === undefined ? undefined : checkpointOf(row['checkpoint'])
  }

  async advance(
    tx: Tx,
    projection: ProjectionId,
    epoch: string,
    from: Position,
    to: Position,
    event?: string | undefined,
  ): Promise<boolean> {
    const values = [...idValues(projection), epoch, String(from), String(to), this.#idleTimeout, event ?? null]
    return (await this.#run(tx, 'projection-advance', values)).count === 1
  }

  async hold(tx: Tx, projection: ProjectionId, epoch: string): Promise<boolean> {
    return (await this.#run(tx, 'projection-hold', [...idValues(projection), epoch, this.#idleTimeout])).count === 1
  }

  async report(
    projection: ProjectionId,
    epoch: string,
    { problem, built }: { readonly problem: string | undefined; readonly built: boolean },
  ): Promise<void> {
    const text = problem === undefined ? null : storable(problem)
    await this.#run(undefined, 'projection-report', [...idValues(projection), epoch, text, String(built)])
  }

  async load(projection: ProjectionId): Promise<ProjectionCheckpoint | undefined> {
    const [row] = (await this.#run(undefined, 'projection-load', idValues(projection))).rows
    return row === undefined ? undefined : checkpointOf(row['checkpoint'], row['parked'])
  }

  async list(log?: string): Promise<readonly ProjectionCheckpoint[]> {
    const { rows } = await this.#run(undefined, 'projection-list', [log ?? null])
    return rows.map((row) => checkpointOf(row['checkpoint'], row['parked']))
  }

  async look(
    asked: readonly { readonly projection: ProjectionId; readonly positions: readonly Position[] }[],
  ): Promise<readonly ProjectionLook[]> {
    const list = asked.map(({ projection: { name, version }, positions }) => {
      return { name, version, positions: positions.map(String) }
    })
    const { rows } = await this.#run(undefined, 'projection-look', [JSON.stringify(list)])
    return rows.map((row) => {
      const parked = JSON.parse((row['parked'] as string | null) ?? '[]') as {
        position: string
        error: string | null
      }[]
      return {
        checkpoint: row['checkpoint'] === null ? undefined : checkpointOf(row['checkpoint'], parked.length),
        parked: parked.map(({ position, error }) => ({ position: BigInt(position), error: error ?? undefined })),
      }
    })
  }

  view(view: ViewTable, began: boolean): Promise<OpenView<Tx>> {
    return openView(this.#database, view, began)
  }

  async park(tx: Tx, projection: ProjectionId, events: readonly NewParked[]): Promise<void> {
    if (events.length === 0) return
    await this.#run(tx, 'projection-park', [
      ...idValues(projection),
      numberArray(events.map(({ position }) => position)),
      textArray(events.map(({ key }) => key)),
      textArray(events.map(({ type }) => storable(type))),
      textArray(events.map(({ message }) => (message === undefined ? null : toStructured(message)))),
      textArray(events.map(({ error }) => (error === undefined ? null : storable(error)))),
      numberArray(events.map(({ retryIn }) => retryIn)),
    ])
  }

  async unpark(tx: Tx, projection: ProjectionId, position: Position): Promise<boolean> {
    return (await this.#run(tx, 'projection-unpark', [...idValues(projection), String(position)])).count === 1
  }

  async failedAgain(
    tx: Tx,
    projection: ProjectionId,
    position: Position,
    error: string,
    retryIn: number,
  ): Promise<void> {
    const values = [...idValues(projection), String(position), storable(error), String(retryIn)]
    await this.#run(tx, 'projection-failed', values)
  }

  async due(projection: ProjectionId, limit: number): Promise<readonly DueEvent[]> {
    const { rows } = await this.#run(undefined, 'projection-due', [...idValues(projection), String(limit)])
    return rows.map((row) => ({ ...parkedOf(row['event']), message: messageOf(row['message'] as string | null) }))
  }

  async parkedKeys(
    projection: ProjectionId,
    tx?: Tx,
  ): Promise<{ readonly keys: readonly string[]; readonly count: number }> {
    const [row] = (await this.#run(tx, 'projection-keys', idValues(projection))).rows
    return { keys: JSON.parse(row!['keys'] as string), count: Number(row!['count']) }
  }

  async parked(filter: ParkedFilter, { limit = 50, after }: ParkedPage, tx?: Tx): Promise<readonly ParkedEvent[]> {
    const { projection, key, failed = false } = filter
    const { rows } = await this.#run(tx, 'projection-parked', [
      ...(projection === undefined ? [null, null] : idValues(projection)),
      key ?? null,
      String(failed),
      after?.name ?? null,
      after === undefined ? null : String(after.version),
      after === undefined ? null : String(after.position),
      String(wholeNumber('parked: limit', limit, { max: 1000 })),
    ])
    return rows.map((row) => parkedOf(row['event']))
  }

  skip(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]> {
    return this.#act('projection-skip', projection, positions, audit)
  }

  retry(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]> {
    return this.#act('projection-retry', projection, positions, audit)
  }

  async retire(projection: ProjectionId, audit: Audit = { by: '', note: '' }): Promise<boolean> {
    const values = [...idValues(projection), storable(audit.by), storable(audit.note)]
    return (await this.#run(undefined, 'projection-retire', values)).rows.length === 1
  }

  async audits(projection: ProjectionId): Promise<readonly ProjectionAudit[]> {
    const { rows } = await this.#run(undefined, 'projection-audits', idValues(projection))
    return rows.map((row) => {
      const { at, positions, ...entry } = JSON.parse(row['entry'] as string)
      return { ...entry, at: new Date(at), positions: positions.map(BigInt) }
    })
  }

  async lockKeys(tx: Tx, projection: ProjectionId, keys: readonly string[]): Promise<ReadonlyMap<string, Position>> {
    const { rows } = await this.#run(tx, 'projection-lock-keys', [...idValues(projection), textArray(keys)])
    return new Map(rows.map((row) => [row['key'] as string, BigInt(row['position'] as string)]))
  }

  async moveKeys(tx: Tx, projection: ProjectionId, keys: readonly KeyPosition[]): Promise<void> {
    const names = textArray(keys.map(({ key }) => key))
    const positions = numberArray(keys.map(({ position }) => position))
    await this.#run(tx, 'projection-move-keys', [...idValues(projection), names, positions])
  }

  async #act(
    name: 'projection-skip' | 'projection-retry',
    projection: ProjectionId,
    positions: readonly Position[],
    { by, note }: Audit,
  ): Promise<readonly Position[]> {
    const values = [...idValues(projection), numberArray(positions), storable(by), storable(note)]
    return (await this.#run(undefined, name, values)).rows.map((row) => BigInt(row['position'] as string))
  }

  async #run(tx: Tx | undefined, name: ProjectionStatement, values: readonly SqlValue[]): Promise<SqlResult> {
    const text = this.#texts.get(name) ?? this.names.fill(sql[name])
    this.#texts.set(name, text)
    try {
      if (tx === undefined) return await this.#database.prepared(name, text, values)
      refusePool(tx)
      return await sqlOf(tx).query(text, values)
    } catch (error) {
      throw explained(error, `table ${this.name}`)
    }
  }
}

function idValues({ name, version }: ProjectionId): [string, string] {
  return [name, String(version)]
}

function retired({ name, version }: ProjectionId): WaybillError {
  const text = `projection ${name} of version ${version} was retired; give it another version, in another table`
  return new WaybillError('RETIRED', text)
}

function checkpointOf(text: unknown, parked: unknown = 0): ProjectionCheckpoint {
  const row = JSON.parse(text as string)
  return {
    ...row,
    position: BigInt(row.position),
    event: row.event ?? undefined,
    problem: row.problem ?? undefined,
    builtAt: dateOf(row.builtAt),
    updatedAt: dateOf(row.updatedAt),
    parked: Number(parked),
  }
}

function parkedOf(text: unknown): ParkedEvent {
  const row = JSON.parse(text as string)
  return {
    ...row,
    position: BigInt(row.position),
    key: row.key ?? undefined,
    error: row.error ?? undefined,
    parkedAt: dateOf(row.parkedAt),
    nextAt: dateOf(row.nextAt),
  }
}

function dateOf(value: string | null): Date | undefined {
  return value === null ? undefined : new Date(value)
}

/** What was put aside is our own writing; whatever is wrong with it must not stop the others. */
function messageOf(text: string | null): RawMessage | undefined {
  if (text === null) return undefined
  try {
    return fromStructured(text)
  } catch (error) {
    telemetry.warning.publish({
      where: 'projections',
      message: `a parked event cannot be read: ${errorSummary(error)}`,
    })
    return undefined
  }
}
