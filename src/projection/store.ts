import type { RawMessage } from '../core/index.ts'
import type { Audit } from '../outbox/admin.ts'
import type { Leadership } from '../outbox/leadership.ts'
import type { RowKey } from './changes.ts'
import type { WriteStep } from './collapse.ts'
import type { Checkpoint, CheckpointStore, ParkedEvent, Position, ProjectionId } from './port.ts'

/** The table of a view, as a projection names it. */
export interface ViewTable {
  readonly table: string
  /** The column that identifies a row. */
  readonly key: string
  readonly create: ((table: string) => string | readonly string[]) | undefined
}

/** A view that can be written. Its columns were looked at when it was opened. */
export interface OpenView<Tx = unknown> {
  /** Its table, quoted. */
  readonly table: string
  /** The one text of a key that the store takes for equal. */
  rowKey(key: RowKey): string
  /**
   * Writes one step. `counts`: returns the keys of rows that a `patch` or `add` was for, and that are missing. Rejects with
   * INVALID_CHANGE for what the table has no place for.
   */
  write(tx: Tx, step: WriteStep, counts: boolean): Promise<readonly string[]>
}

/** How far a projection has come, and how it is. */
export interface ProjectionCheckpoint extends Checkpoint {
  /** When it had read everything for the first time; `undefined`: it is still being built. */
  readonly builtAt: Date | undefined
  /** Why it stands still, as its owner says. */
  readonly problem: string | undefined
  readonly parked: number
}

/** An event that is put aside. */
export interface NewParked {
  readonly position: Position
  readonly key: string | undefined
  readonly type: string
  /** `undefined`: it cannot be read. */
  readonly message: RawMessage | undefined
  /** `undefined`: it waits behind another of its key. */
  readonly error: string | undefined
  /** Milliseconds until it is tried again, where there is an error. */
  readonly retryIn: number
}

/** A parked event that is due, with what is needed to try it again. */
export interface DueEvent extends ParkedEvent {
  readonly message: RawMessage | undefined
}

/** Which parked events. All that is given must hold. */
export interface ParkedFilter {
  readonly projection?: ProjectionId
  readonly key?: string
  /** Those that failed themselves, without those that wait behind them. */
  readonly failed?: boolean
}

/** How many parked events a list shows, and after which. */
export interface ParkedPage {
  /** Default 50, at most 1000. */
  readonly limit?: number
  /** The last one seen. */
  readonly after?: Pick<ParkedEvent, 'name' | 'version' | 'position'>
}

/** What a person did to a projection. */
export interface ProjectionAudit extends ProjectionId, Audit {
  readonly at: Date
  readonly action: 'skip' | 'retry' | 'retire'
  /** The events it was done to. */
  readonly positions: readonly Position[]
}

/** A key of a broker projection: the highest number that was applied. */
export interface KeyPosition {
  readonly key: string
  readonly position: Position
}

/**
 * Where projections keep how far they have come, what is parked, and their views. With a `tx` a write is part of that
 * transaction. Times that decide are the store's. A write under an epoch that is not the checkpoint's changes nothing.
 */
export interface ProjectionStore<Tx = unknown> extends CheckpointStore<Tx> {
  readonly name: string
  open(...given: Parameters<CheckpointStore<Tx>['open']>): Promise<ProjectionCheckpoint | undefined>
  load(projection: ProjectionId): Promise<ProjectionCheckpoint | undefined>
  list(log?: string): Promise<readonly ProjectionCheckpoint[]>
  /** Several at once, and which of these positions are parked, with the reason. For those who wait. */
  look(
    asked: readonly { readonly projection: ProjectionId; readonly positions: readonly Position[] }[],
  ): Promise<readonly ProjectionLook[]>
  /** Creates the table where it is missing. `began`: events have been applied to it, so that it must be there. */
  view(view: ViewTable, began: boolean): Promise<OpenView<Tx>>
  /** Keeps the checkpoint until the end of the transaction, and does not move it. `false`: the epoch is another's. */
  hold(tx: Tx, projection: ProjectionId, epoch: string): Promise<boolean>
  /** Says why it stands still, or that it does not, or that it has been built. */
  report(
    projection: ProjectionId,
    epoch: string,
    says: { readonly problem: string | undefined; readonly built: boolean },
  ): Promise<void>
  park(tx: Tx, projection: ProjectionId, events: readonly NewParked[]): Promise<void>
  /** Takes one away, because it was applied. `false`: somebody else has. */
  unpark(tx: Tx, projection: ProjectionId, position: Position): Promise<boolean>
  /** It failed again. */
  failedAgain(tx: Tx, projection: ProjectionId, position: Position, error: string, retryIn: number): Promise<void>
  /** The first of each key, if it is due; those without a key each for itself. By position. */
  due(projection: ProjectionId, limit: number): Promise<readonly DueEvent[]>
  /** The keys that have parked events, and how many events there are. */
  parkedKeys(projection: ProjectionId, tx?: Tx): Promise<{ readonly keys: readonly string[]; readonly count: number }>
  parked(filter: ParkedFilter, page: ParkedPage, tx?: Tx): Promise<readonly ParkedEvent[]>
  /** Removes parked events for good, with a note. Returns those that were there. */
  skip(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]>
  /** Makes them due now. Returns those that were there. */
  retry(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]>
  retire(projection: ProjectionId, audit?: Audit): Promise<boolean>
  /** What people did, newest first. */
  audits(projection: ProjectionId): Promise<readonly ProjectionAudit[]>
  /** For projections from a broker: locks these keys, in order, and returns how far each has come; 0 at first. */
  lockKeys(tx: Tx, projection: ProjectionId, keys: readonly string[]): Promise<ReadonlyMap<string, Position>>
  moveKeys(tx: Tx, projection: ProjectionId, keys: readonly KeyPosition[]): Promise<void>
}

/** What those who wait for a write see. */
export interface ProjectionLook {
  readonly checkpoint: ProjectionCheckpoint | undefined
  /** Those of the asked positions that are parked. */
  readonly parked: readonly { readonly position: Position; readonly error: string | undefined }[]
}

/** What a projector needs of a database: transactions, checkpoints and views in it, and who may write them. */
export interface ProjectionDatabase<Tx = unknown> {
  readonly projections: ProjectionStore<Tx>
  withTransaction<T>(fn: (tx: Tx) => Promise<T>, options?: { readonly signal?: AbortSignal }): Promise<T>
  leadership(scope: string): Leadership
}
