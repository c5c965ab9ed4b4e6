import { Deadlines } from '../core/deadlines.ts'
import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  type OptionNames,
  systemClock,
  telemetry,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../core/index.ts'
import { Task } from '../flow/index.ts'

/** What a cleaner works on: an outbox's `admin`, or an inbox. */
export interface Cleanable {
  readonly name: string
  /**
   * Removes what is older than `retention` milliseconds and no longer needed, at most `limit`; returns how many. Without
   * a retention the store's own counts.
   */
  clean(options: { retention?: number; limit?: number }): Promise<number>
  /** What else is to be done once a round, such as dropping partitions; returns how many were. */
  maintain?(options: { retention?: number }): Promise<number>
}

export interface CleanerOptions {
  /** One store, or several. */
  of: Cleanable | readonly Cleanable[]
  name?: string
  /** What is kept. Default: what each store says itself, 7 days for an outbox. */
  retention?: Duration
  /** Default every minute. */
  every?: Duration
  /** `false`: it starts, removes nothing, and says so. Default true. */
  enabled?: boolean
  /** Rows of one statement. Default 1000. */
  batch?: number
  clock?: Clock
}

const OPTIONS: OptionNames<CleanerOptions> = {
  of: true,
  name: true,
  retention: true,
  every: true,
  enabled: true,
  batch: true,
  clock: true,
}

/** How many were removed, by the name of the store. */
export type Cleaned = Readonly<Record<string, number>>

/**
 * Removes what was published, or handled, long enough ago.
 *
 * 1. Each round goes through its stores in turn, in small statements until one comes back less than full.
 * 2. After each it pauses for as long as that took: at most half of one connection's time is spent here.
 * 3. A store that fails does not keep the others from their turn, nor does what fails of one keep the rest of it.
 * 4. A statement that takes longer than the server allows is tried with fewer rows. One that does not end, since something
 *    holds a lock, is waited for: it is `failing` until then, and says in which store.
 */
export class Cleaner extends Task<Cleaned> {
  constructor(options: CleanerOptions) {
    checkOptions('cleaner', options, OPTIONS)
    const stores = [options?.of].flat() as readonly Cleanable[]
    stores.forEach(checkStore)
    const { every = '1m', clock = systemClock } = options
    const limit = wholeNumber('cleaner: batch', options.batch ?? 1000, { max: 100_000 })
    const name = options.name ?? `cleaner ${stores.map((store) => store.name).join(', ')}`
    const retention =
      options.retention === undefined ? {} : { retention: milliseconds(options.retention, 'cleaner: retention') }
    const sizes = new Map<Cleanable, number>()
    const { enabled = true } = options
    const deadlines = new Deadlines(clock)
    const watch: Watch = async (store, work) => {
      const reason = `${store}: a statement has taken more than ${SLOW / 1000} s; is it held up by a lock?`
      const deadline = deadlines.add(SLOW, () => this.condition.hinder('slow', 'failing', reason))
      try {
        return await work
      } finally {
        deadlines.delete(deadline)
        this.condition.clear('slow')
      }
    }
    super({
      name,
      every,
      enabled,
      clock,
      // A round in the foreground does nothing either.
      run: async (signal) => (enabled ? cleanAll(stores, sizes, retention, limit, clock, signal, watch) : {}),
    })
  }
}

/** Milliseconds. */
const SLOW = 30_000

/** Reports what a store takes too long for. */
type Watch = <T>(store: string, work: Promise<T>) => Promise<T>

function checkStore(store: unknown): void {
  if (typeof (store as Partial<Cleanable> | undefined)?.clean === 'function') return
  throw new WaybillError(
    'INVALID_OPTION',
    `cleaner: of: ${describe(store)} has no clean(); give the admin of an outbox, or an inbox: [db.outbox.admin, db.inbox]`,
  )
}

async function cleanAll(
  stores: readonly Cleanable[],
  sizes: Map<Cleanable, number>,
  retention: { retention?: number },
  limit: number,
  clock: Clock,
  signal: AbortSignal,
  watch: Watch,
): Promise<Cleaned> {
  const cleaned: Record<string, number> = {}
  const errors: unknown[] = []
  const reasons: string[] = []
  for (const store of stores) {
    if (signal.aborted) break
    // A store that was slow may be quick again.
    const size = new BatchSize(limit, Math.min(limit, (sizes.get(store) ?? limit) * 2))
    const failed = (error: unknown) => {
      errors.push(error)
      reasons.push(`${store.name}: ${errorSummary(error)}`)
    }
    cleaned[store.name] = await cleanOne(store, retention, size, clock, signal, watch, failed)
    sizes.set(store, size.rows)
  }
  if (errors.length === 1) throw errors[0]
  if (errors.length > 1) {
    const which = stores.length === 1 ? `${stores[0]!.name} could not be cleaned` : 'Not all could be cleaned'
    throw new AggregateError(errors, `${which}. ${reasons.join('. ')}`)
  }
  return cleaned
}

/** What cannot be maintained is cleaned all the same. */
async function cleanOne(
  store: Cleanable,
  retention: { retention?: number },
  size: BatchSize,
  clock: Clock,
  signal: AbortSignal,
  watch: Watch,
  failed: (error: unknown) => void,
): Promise<number> {
  const began = clock.monotonic()
  let count = 0
  let partitions = 0
  try {
    if (store.maintain !== undefined) partitions = await watch(store.name, store.maintain(retention))
  } catch (error) {
    failed(error)
  }
  try {
    for (let more = true; more && !signal.aborted; ) {
      const asked = clock.monotonic()
      const limit = size.rows
      const removed = await watch(store.name, store.clean({ ...retention, limit })).catch((error) =>
        size.shrink(store.name, error),
      )
      count += removed ?? 0
      more = removed === undefined || removed >= limit
      if (more) await clock.sleep(clock.monotonic() - asked, signal)
    }
  } catch (error) {
    failed(error)
  }
  if (count > 0 || partitions > 0) {
    telemetry['cleaner.cleaned'].publish({ store: store.name, count, partitions, took: clock.monotonic() - began })
  }
  return count
}

/** How many rows one statement may remove: fewer where the server ends statements that take longer than it allows. */
class BatchSize {
  readonly #limit: number
  rows: number

  constructor(limit: number, rows: number) {
    this.#limit = limit
    this.rows = rows
  }

  /** Throws what cannot be helped by asking for less. */
  shrink(store: string, error: unknown): undefined {
    if (!tookTooLong(error) || this.rows === 1) throw error
    this.rows = Math.max(1, Math.floor(this.rows / 4))
    warnOnce(
      'cleaner',
      `${store}: removing ${this.#limit} rows takes longer than the server allows (statement_timeout); it is done with fewer at a time`,
    )
    return undefined
  }
}

/** What a store says, or PostgreSQL itself. */
function tookTooLong(error: unknown): boolean {
  const code = (error as { code?: unknown } | null | undefined)?.code
  return code === 'TOO_SLOW' || code === '57014'
}
