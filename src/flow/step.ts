import { types } from 'node:util'
import type { Outcome } from './publisher.ts'

/** Handles one message: done when it returns (or what it returns resolves), failed when it throws. */
export type HandleOne<D> = (delivery: D, signal: AbortSignal) => unknown

/** Handles a batch: one outcome each, in order. A throw is a failure of all of them together: `down`. */
export type HandleMany<D> = (
  deliveries: readonly D[],
  signal: AbortSignal,
) => readonly Outcome[] | Promise<readonly Outcome[]>

/** What the flow does with what it took: each on its own, or in batches of `size`. */
export type Step<D> = EachStep<D> | BatchStep<D>

export interface EachStep<D> {
  readonly each: HandleOne<D>
  /**
   * Given what `each` answered, unless that is undefined; the message is done when this is. It saves a promise per
   * message against doing the same inside `each`.
   */
  readonly after?: (result: unknown) => unknown
}

export interface BatchStep<D> {
  readonly batch: HandleMany<D>
  readonly size: number
  /** Takes runs of one key in one call; otherwise it is given at most one message of a key at a time. */
  readonly ordered: boolean
}

/** How a round went. */
export interface Tally {
  taken: number
  done: number
  retry: number
  dead: number
  release: number
}

export function isThenable(value: unknown): value is PromiseLike<unknown> {
  // Query builders and promises of other realms are thenables that are no Promise of ours.
  return value instanceof Promise || typeof (value as PromiseLike<unknown> | undefined | null)?.then === 'function'
}

/**
 * The promise that `value` is, or `undefined` for a plain value. A thenable of others is wrapped: a promise of the
 * language settles once, while a foreign `then` may call back twice, both ways, or throw. A Proxy of a promise looks like
 * one, and its `then` throws. May throw itself, where reading `then` does.
 */
export function promiseOf(value: unknown): Promise<unknown> | undefined {
  if (value instanceof Promise && value.then === Promise.prototype.then && types.isPromise(value)) return value
  return isThenable(value) ? new Promise((resolve) => resolve(value)) : undefined
}
