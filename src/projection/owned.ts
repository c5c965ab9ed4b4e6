import { type Backoff, type Clock, type Random, telemetry, WaybillError } from '../core/index.ts'
import type { Term } from '../outbox/leadership.ts'
import { ParkedKeys, type Target } from './apply.ts'
import { idText, type Projection } from './definition.ts'
import { Lag } from './lag.ts'
import type { LogHead, LogPage, Position } from './port.ts'
import type { EnrichSettings } from './prepare.ts'
import type { OpenView, ProjectionCheckpoint, ProjectionDatabase, ProjectionStore } from './store.ts'
import type { Tail } from './tail.ts'

export interface RunSettings<Tx> {
  readonly db: ProjectionDatabase<Tx>
  readonly projection: Projection
  readonly tail: Tail
  readonly member: string
  /** Milliseconds. */
  readonly lease: number
  readonly poll: number
  readonly enrich: EnrichSettings
  readonly parkedLimit: number
  readonly retryIn: Backoff
  readonly clock: Clock
  readonly random?: Random
}

/** The right to one projection, and all that comes with it. */
export interface Owned<Tx> {
  readonly term: Term
  readonly target: Target<Tx>
  readonly lag: Lag
  readonly incarnation: string
  position: Position
  /** The id of the event there, where it is known. */
  event: string | undefined
  built: boolean
  /** Until when the right holds, by the monotonic clock, unless it is renewed. */
  until: number
  problem: string | undefined
}

/** Opens checkpoint, view and parked keys under a new term, and fences off whoever had it before. */
export async function openOwned<Tx>(settings: RunSettings<Tx>, term: Term, until: number): Promise<Owned<Tx>> {
  const { db, projection, tail, retryIn, parkedLimit, clock } = settings
  const { projections: store } = db
  const head = await tail.log.head()
  const log = { id: tail.log.id, incarnation: head.incarnation }
  if (head.trimmed > 0n && projection.begins === 'first' && (await store.load(projection)) === undefined) {
    throw beginsTooLate(projection, tail.log.id, head.trimmed)
  }
  const checkpoint = await store.open(projection, log, term.epoch, projection.begins === 'first' ? 0n : head.trimmed)
  if (checkpoint === undefined) {
    throw new WaybillError('FENCED', `a newer owner has projection ${idText(projection)}; asking again`)
  }
  checkLog(projection, checkpoint, tail.log.id, head)
  const { position, event, builtAt, problem } = checkpoint
  const view = await openView(store, projection, checkpoint)
  const { keys, count } = await store.parkedKeys(projection)
  const parked = new ParkedKeys(keys, count, parkedLimit)
  const target = { db, projection, view, missing: projection.missing ?? 'skip', parked, retryIn }
  telemetry['projection.owned'].publish({
    projection: idText(projection),
    epoch: term.epoch,
    position: String(position),
  })
  const lag = new Lag(clock, head.position)
  const { incarnation } = head
  return { term, target, lag, incarnation, position, event, built: builtAt !== undefined, until, problem }
}

/** One that begins in the middle may be created, like any other, and may be full, unlike others. */
async function openView<Tx>(
  store: ProjectionStore<Tx>,
  projection: Projection,
  { position, builtAt }: ProjectionCheckpoint,
): Promise<OpenView<Tx>> {
  if (projection.begins === 'first') return store.view(projection, position > 0n)
  return store.view(projection, true).catch((error) => {
    if (builtAt !== undefined || !(error instanceof WaybillError) || error.code !== 'NO_VIEW') throw error
    return store.view(projection, false)
  })
}

function beginsTooLate(projection: Projection, log: string, trimmed: Position): WaybillError {
  return new WaybillError(
    'LOG_TRIMMED',
    `projection ${idText(projection)} would begin at the first event of ${log}, and those up to ${trimmed} are gone, or are no part of it; put what they stand for into ${projection.table} yourself, and give the projection begins: 'kept'`,
  )
}

function checkLog(projection: Projection, checkpoint: ProjectionCheckpoint, id: string, head: LogHead): void {
  const { log, incarnation, position } = checkpoint
  if (log !== id || incarnation !== head.incarnation) {
    const which = log === id ? 'that log was made anew since' : `this one reads ${id}`
    throw new WaybillError(
      'OTHER_LOG',
      `projection ${idText(projection)} stands at ${position} of the log ${log}, and ${which}: positions of two logs are never compared; project it anew under another version`,
    )
  }
  checkEnd(projection, position, head.position)
}

/** Its log was restored: its position is one of events that the log does not have. */
export const AHEAD = 'CHECKPOINT_AHEAD'

/** A log that ends before what was applied was restored to an earlier time. */
export function checkEnd(projection: Projection, position: Position, end: Position): void {
  if (position <= end) return
  throw new WaybillError(
    AHEAD,
    `projection ${idText(projection)} has applied events up to ${position}, and the log ends at ${end}: its database was restored to an earlier time; restore the view with it, or project it anew under another version`,
  )
}

/** A log that has another event where this one was applied was restored to an earlier time, and has been written to since. */
export function checkSame<Tx>(projection: Projection, { position, event }: Owned<Tx>, before: LogPage['before']): void {
  if (event === undefined || before === undefined || event === before) return
  const found = before === null ? 'has no event there' : `has ${before} there`
  throw new WaybillError(
    AHEAD,
    `projection ${idText(projection)} has applied event ${event} at ${position}, and the log ${found} by now: its database was restored to an earlier time; restore the view with it, or project it anew under another version`,
  )
}
