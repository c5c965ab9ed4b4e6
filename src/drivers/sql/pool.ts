import { errorSummary, telemetry, Unavailable, untilAborted } from '../../core/index.ts'
import { answered } from './connection.ts'
import type { PgPool } from './pg-shapes.ts'

/** The `max` that a pool was made with. Both pg and postgres.js keep their options, with their defaults filled in. */
export function poolSize(pool: { readonly options?: { readonly max?: unknown } }): number | undefined {
  const max = Number(pool.options?.max)
  return Number.isInteger(max) && max > 0 ? max : undefined
}

/** What is known of a pool when no connection of it came. */
export interface PoolState {
  readonly name: string
  readonly size: number | undefined
  /** Those that are in use or being opened, where the pool reports it. */
  readonly taken: number | undefined
}

/**
 * A connection of the pool, or the reason why there is none: after `ms`, or when whoever needs it is asked to stop.
 * That is nobody's fault, so it is `Unavailable`, and it names the pool where that may be the cause.
 */
export function fromPool<T>(
  coming: Promise<T>,
  limits: { readonly ms: number | undefined; readonly signal: AbortSignal | undefined; readonly patience?: number },
  state: () => PoolState,
  giveBack: (late: T) => void,
  onLate: () => void = () => {},
): Promise<T> {
  const began = performance.now()
  const none = () => noneFree(state(), performance.now() - began)
  const timer = setTimeout(() => reportWaiting(none().message), limits.patience ?? PATIENCE).unref()
  const over = () => clearTimeout(timer)
  const returned = () => {
    over()
    onLate()
    coming.then(giveBack, () => {})
  }
  coming.then(over, over)
  return untilAborted(answered(coming, limits.ms, returned, none), limits.signal, () => {
    returned()
    throw none()
  })
}

/** A connection that does not come for so long is worth a word, long before those who wait for it give up. */
const PATIENCE = 5_000
const AGAIN_AFTER = 60_000
let reportedAt = Number.NEGATIVE_INFINITY

/** While a pool is used up everybody waits for it: one of them says so, once a minute. */
function reportWaiting(message: string): void {
  if (performance.now() - reportedAt < AGAIN_AFTER) return
  reportedAt = performance.now()
  telemetry.warning.publish({ where: 'pool', message })
}

function noneFree({ name, size, taken }: PoolState, ms: number): Unavailable {
  const waited = `${Math.round(ms)} ms`
  if (taken !== undefined && size !== undefined && taken < size) {
    return new Unavailable(
      `PostgreSQL has not accepted a new connection for ${waited}; ${taken} of ${size} of ${name} are open`,
    )
  }
  const number = size === undefined ? 'all its connections' : `all ${size} connections (max: ${size})`
  return new Unavailable(
    `${name} is empty: ${number} are in use or being opened, and none became free within ${waited}; give it more, or do less at once`,
  )
}

/** An idle client of pg that breaks says so by an event of its pool. One that nobody listens to would end the process. */
export function keepAlive(pool: PgPool): void {
  if (pool.listenerCount('error') > 0) return
  pool.on('error', (error) => {
    telemetry.warning.publish({ where: 'pg', message: `an idle connection broke: ${errorSummary(error)}` })
  })
}
