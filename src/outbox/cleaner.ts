import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  systemClock,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { Task } from '../flow/index.ts'

/** What a cleaner works on: an outbox's `admin`, or an inbox. */
export interface Cleanable {
  readonly name: string
  /**
   * Removes what is older than `retention` milliseconds and no longer needed, at most `limit`; answers how many. Without
   * a retention the store's own counts.
   */
  clean(options: { retention?: number; limit?: number }): Promise<number>
  /** What else is to be done once a round, such as dropping partitions; answers how many were. */
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
  /** Rows of one statement. Default 1000. */
  batch?: number
  clock?: Clock
}

const OPTIONS = ['of', 'name', 'retention', 'every', 'batch', 'clock'] as const

/** How many were removed, by the name of the store. */
export type Cleaned = Readonly<Record<string, number>>

/**
 * Removes what was published, or handled, long enough ago.
 *
 * 1. Each round goes through its stores in turn, in small statements until one comes back less than full.
 * 2. After each it pauses for as long as that took: at most half of one connection's time is spent here.
 * 3. A store that fails does not keep the others from their turn.
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
    super({ name, every, clock, run: (signal) => cleanAll(stores, retention, limit, clock, signal) })
  }
}

function checkStore(store: unknown): void {
  if (typeof (store as Partial<Cleanable> | undefined)?.clean === 'function') return
  throw new WaybillError(
    'INVALID_OPTION',
    `cleaner: of: ${describe(store)} has no clean(); give the admin of an outbox, or an inbox: [db.outbox.admin, db.inbox]`,
  )
}

async function cleanAll(
  stores: readonly Cleanable[],
  retention: { retention?: number },
  limit: number,
  clock: Clock,
  signal: AbortSignal,
): Promise<Cleaned> {
  const cleaned: Record<string, number> = {}
  const errors: unknown[] = []
  const reasons: string[] = []
  for (const store of stores) {
    if (signal.aborted) break
    try {
      cleaned[store.name] = await cleanOne(store, retention, limit, clock, signal)
    } catch (error) {
      errors.push(error)
      reasons.push(`${store.name}: ${errorSummary(error)}`)
    }
  }
  if (errors.length === 1) throw errors[0]
  if (errors.length > 1) {
    throw new AggregateError(errors, `${errors.length} stores could not be cleaned. ${reasons.join('. ')}`)
  }
  return cleaned
}

async function cleanOne(
  store: Cleanable,
  retention: { retention?: number },
  limit: number,
  clock: Clock,
  signal: AbortSignal,
): Promise<number> {
  const began = clock.monotonic()
  let count = 0
  let partitions = 0
  try {
    partitions = (await store.maintain?.(retention)) ?? 0
    for (let removed = limit; removed >= limit && !signal.aborted; ) {
      const asked = clock.monotonic()
      removed = await store.clean({ ...retention, limit })
      count += removed
      if (removed >= limit) await clock.sleep(clock.monotonic() - asked, signal)
    }
  } finally {
    if (count > 0 || partitions > 0) {
      telemetry['cleaner.cleaned'].publish({ store: store.name, count, partitions, took: clock.monotonic() - began })
    }
  }
  return count
}
