import { wholeNumber } from './options.ts'

/**
 * What becomes of a delivery. The words are the same for every source.
 * - `done`: handled; it never comes again.
 * - `retry`: it comes again after `after` milliseconds; `charged` says whether an attempt is spent.
 * - `dead`: kept aside with the reason, until a person re-arms or discards it.
 * - `release`: given back untouched, as if it had never been taken.
 */
export type Settlement =
  | { readonly kind: 'done' }
  | { readonly kind: 'retry'; readonly after: number; readonly error: unknown; readonly charged: boolean }
  | { readonly kind: 'dead'; readonly reason: string; readonly error: unknown }
  | { readonly kind: 'release' }

export const DONE: Settlement = Object.freeze({ kind: 'done' })
export const RELEASE: Settlement = Object.freeze({ kind: 'release' })

/** Ack or nack of one message. Whichever comes first counts; everything later is ignored and answered `false`. */
export interface Acking {
  /** The message is handled. */
  ack(): boolean
  /** It is not; `error` says why, and decides whether it is tried again. */
  nack(error: unknown): boolean
  readonly settled: 'ack' | 'nack' | undefined
}

/**
 * Acking over callbacks. They may be async and may fail; a failure goes to `onFailure` and is never swallowed.
 * Nothing here listens to an abort signal: a cancelled receive must not stop the ack of finished work.
 */
export function acking(
  onAck: () => unknown,
  onNack: (error: unknown) => unknown,
  onFailure: (error: unknown) => void,
): Acking {
  let settled: 'ack' | 'nack' | undefined
  const settle = (how: 'ack' | 'nack', callback: () => unknown): boolean => {
    if (settled !== undefined) return false
    settled = how
    try {
      const result = callback()
      // Query builders answer with thenables that are no Promise.
      if (isThenable(result)) result.then(undefined, onFailure)
    } catch (error) {
      onFailure(error)
    }
    return true
  }
  return {
    ack: () => settle('ack', onAck),
    nack: (error) => settle('nack', () => onNack(error)),
    get settled() {
      return settled
    },
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | undefined | null)?.then === 'function'
}

/**
 * One acking shared by `count` parts of a fan-out: it acks when every part has, and the first nack settles it at
 * once. With no parts it acks now. Each part settles once of its own.
 */
export function sharedAcking(whole: Acking, count: number): Acking[] {
  wholeNumber('sharedAcking: count', count, { min: 0 })
  if (count === 0) whole.ack()
  let waiting = count
  return Array.from({ length: count }, () =>
    acking(
      () => {
        waiting--
        if (waiting === 0) whole.ack()
      },
      (error) => whole.nack(error),
      (error) => whole.nack(error),
    ),
  )
}
