import { asError, classify, errorSummary, type TelemetryEvents, telemetry, WaybillError } from '../core/index.ts'
import { isStatementError } from '../drivers/sql/transaction.ts'
import { type Change, changeList } from './changes.ts'
import { type CollapsedRow, collapse, type WriteStep } from './collapse.ts'
import { idText, type Missing, type Projection } from './definition.ts'
import type { Position } from './port.ts'
import { type Prepared, shownOf } from './prepare.ts'
import type { NewParked, OpenView, ProjectionDatabase } from './store.ts'

/** What the owner of a projection applies events to. */
export interface Target<Tx = unknown> {
  readonly db: ProjectionDatabase<Tx>
  readonly projection: Projection
  /** As its table was when it was last looked at. */
  view: OpenView<Tx>
  readonly missing: Missing
  readonly parked: ParkedKeys
  /** Milliseconds until a parked event is tried again, after so many attempts. */
  readonly retryIn: (attempts: number) => number
}

/** Which keys have parked events, as their owner knows. Nobody else parks, so it is never less than what is true. */
export class ParkedKeys {
  readonly keys: Set<string>
  readonly limit: number
  count: number

  constructor(keys: Iterable<string>, count: number, limit: number) {
    this.keys = new Set(keys)
    this.count = count
    this.limit = limit
  }

  get full(): boolean {
    return this.count >= this.limit
  }
}

/** Writes checkpoint or fence in a transaction, before everything else. `false`: another has taken over. */
export type Fence<Tx> = (tx: Tx) => Promise<boolean>

/** Some events cannot be applied, and it is known which. */
class ApplyFailure extends Error {
  readonly failures: ReadonlyMap<Prepared, Error>

  constructor(failures: ReadonlyMap<Prepared, Error>) {
    super([...failures.values()][0]?.message ?? 'events to be parked')
    this.name = 'ApplyFailure'
    this.failures = failures
  }
}

/** What is wrong with the one event that was applied, from what its transaction threw. */
export function failureOfOne(thrown: unknown): Error {
  return thrown instanceof ApplyFailure ? [...thrown.failures.values()][0]! : asError(thrown)
}

/** From one position to another, and the id of the event there, where it is known. */
export type Stretch = readonly [from: Position, to: Position, last: string | undefined]

/**
 * Applies the events between two positions, and moves the checkpoint there. `stubborn`: what is usually over with the next
 * try has failed again and again, so that an event may be to blame.
 *
 * 1. Handlers say what changes. An event that fails is put aside, and so are later ones of its key.
 * 2. Changes are collapsed, and written in one transaction: fence and checkpoint, changes, parked rows.
 * 3. Where it is known which event cannot be written, that one is put aside, and all is done again.
 * 4. Where it is not, the batch is halved, until the culprit is alone.
 */
export async function applyBatch<Tx>(
  target: Target<Tx>,
  epoch: string,
  events: readonly Prepared[],
  [from, to, last]: Stretch,
  stubborn = false,
): Promise<void> {
  const { db, projection } = target
  const fence: Fence<Tx> = (tx) => db.projections.advance(tx, projection, epoch, from, to, last)
  for (;;) {
    try {
      await applyOnce(target, events, fence)
      return
    } catch (error) {
      if (error instanceof ApplyFailure) {
        for (const [event, failure] of error.failures) event.failure = failure
        continue
      }
      if (!blames(error, stubborn)) throw error
      const open = events.filter(({ failure }) => failure === undefined)
      if (open.length === 0) throw error
      if (open.length === 1) {
        open[0]!.failure = asError(error)
        continue
      }
    }
    const half = Math.ceil(events.length / 2)
    const { position: middle, id } = events[half - 1]!
    await applyBatch(target, epoch, events.slice(0, half), [from, middle, id], stubborn)
    await applyBatch(target, epoch, events.slice(half), [middle, to, last], stubborn)
    return
  }
}

/** All or nothing. Rejects with FENCED where another has taken over. */
async function applyOnce<Tx>(target: Target<Tx>, events: readonly Prepared[], fence: Fence<Tx>): Promise<void> {
  const { db, projection, parked } = target
  const { applied, changes, aside, failed } = sortOut(target, events)
  if (aside.length > 0 && parked.count + aside.length > parked.limit) throw full(target)
  await db.withTransaction(async (tx) => {
    if (!(await fence(tx))) throw fenced(projection)
    await writeAll(target, tx, applied, changes)
    await db.projections.park(tx, projection, aside)
  })
  for (const { key } of aside) {
    parked.count++
    if (key !== undefined) parked.keys.add(key)
  }
  for (const one of failed) telemetry['projection.parked'].publish(one)
}

/** Calls the handlers. What fails goes aside, and whatever comes later of a key that has something there. */
function sortOut<Tx>(target: Target<Tx>, events: readonly Prepared[]) {
  const behind = new Set(target.parked.keys)
  const applied: Prepared[] = []
  const changes: (readonly Change[])[] = []
  const aside: NewParked[] = []
  const failed: TelemetryEvents['projection.parked'][] = []
  for (const event of events) {
    const { position, key, type, message } = event
    const held = key !== undefined && behind.has(key)
    if (!held && event.failure === undefined) {
      try {
        changes.push(changesOf(event))
        applied.push(event)
        continue
      } catch (error) {
        event.failure = asError(error)
      }
    }
    if (key !== undefined) behind.add(key)
    const error = held ? undefined : shownOf(event, event.failure)
    const reason = error && errorSummary(error)
    aside.push({ position, key, type, message, error: reason, retryIn: target.retryIn(1) })
    if (reason === undefined) continue
    failed.push({ projection: idText(target.projection), type, position: String(position), reason, error })
  }
  return { applied, changes, aside, failed }
}

function changesOf({ reaction, typed, found }: Prepared): readonly Change[] {
  return changeList(reaction!.handle(typed!, found))
}

/** The changes of these events, in few statements. Rejects with the events to blame, where that is known. */
export async function writeAll<Tx>(
  { view, missing, projection }: Target<Tx>,
  tx: Tx,
  events: readonly Prepared[],
  changes: readonly (readonly Change[])[],
): Promise<void> {
  const counts = missing !== 'skip'
  for (const step of collapse(changes, (key) => view.rowKey(key), counts)) {
    let absent: readonly string[]
    try {
      absent = await view.write(tx, step, counts)
    } catch (thrown) {
      // What users' code writes itself belongs to one event.
      const error = step.kind === 'write' ? shownOf(events[step.event]!, thrown) : thrown
      // One event alone is behind it, unless it is an outage or a conflict. What users throw themselves is neither.
      const own = step.kind === 'write' && !isStatementError(error) && classify(error) !== 'down'
      if (step.kind !== 'rows' && (own || blames(error, false)))
        throw new ApplyFailure(new Map([[events[step.event]!, asError(error)]]))
      throw error
    }
    if (absent.length === 0) continue
    const text = `projection ${idText(projection)}: the row of ${absent.length} changes is missing`
    if (missing === 'fail') throw new WaybillError('MISSING_ROW', text)
    throw new ApplyFailure(eventsOf(step, absent, events))
  }
}

function eventsOf(step: WriteStep, keys: readonly string[], events: readonly Prepared[]): Map<Prepared, Error> {
  const rows = new Map<string, CollapsedRow>()
  if (step.kind === 'rows') for (const group of step.groups) for (const row of group.rows) rows.set(row.key, row)
  const failures = new Map<Prepared, Error>()
  for (const key of keys) {
    for (const event of rows.get(key)?.events ?? []) {
      failures.set(events[event]!, new WaybillError('MISSING_ROW', 'the row it changes is missing'))
    }
  }
  return failures
}

/** Whether an error is about what was written, so that another try is in vain. */
function blames(error: unknown, stubborn: boolean): boolean {
  if (error instanceof WaybillError && NOT_BLAMED.includes(error.code)) return false
  if (error instanceof WaybillError && error.code === 'INVALID_CHANGE') return true
  const kind = classify(error)
  return kind === 'permanent' || (stubborn && kind === 'transient' && isStatementError(error) && !contends(error))
}

/** Somebody else has a lock, or writes the same rows: deadlocks, `lock_timeout`. Parking the whole log would not help. */
function contends(error: unknown): boolean {
  return /^(40|55)/.test(String((error as { code?: unknown } | undefined)?.code))
}

const NOT_BLAMED = ['FENCED', 'PARKED_FULL', 'MISSING_ROW']

/**
 * Tries a parked event again, alone: fence, the row taken away, its changes. Returns whether it was applied; what is wrong
 * with it is written down otherwise. `applied` is called in the transaction in which it was.
 */
export async function applyParked<Tx>(
  target: Target<Tx>,
  event: Prepared,
  attempts: number,
  fence: Fence<Tx>,
  applied?: (tx: Tx) => Promise<void>,
): Promise<boolean> {
  const { db, projection } = target
  const store = db.projections
  try {
    if (event.failure !== undefined) throw event.failure
    const changes = changesOf(event)
    return await db.withTransaction(async (tx) => {
      if (!(await fence(tx))) throw fenced(projection)
      // A person has skipped it meanwhile.
      if (!(await store.unpark(tx, projection, event.position))) return true
      await writeAll(target, tx, [event], [changes])
      await applied?.(tx)
      return true
    })
  } catch (thrown) {
    const error = failureOfOne(thrown)
    if (error instanceof WaybillError && NOT_BLAMED.slice(0, 2).includes(error.code)) throw error
    if (event.failure === undefined && classify(error) === 'down') throw error
    await db.withTransaction(async (tx) => {
      if (!(await fence(tx))) throw fenced(projection)
      await store.failedAgain(
        tx,
        projection,
        event.position,
        errorSummary(shownOf(event, error)),
        target.retryIn(attempts + 1),
      )
    })
    return false
  }
}

function fenced(projection: Projection): WaybillError {
  return new WaybillError('FENCED', `another runs projection ${idText(projection)} by now; nothing was written`)
}

function full({ projection, parked: { count, limit } }: Target): WaybillError {
  return new WaybillError(
    'PARKED_FULL',
    `projection ${idText(projection)} has stopped: ${count} events are parked, and ${limit} are allowed; mend what fails, retry or skip them, or raise parked.limit`,
  )
}
