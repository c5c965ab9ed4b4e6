import { types } from 'node:util'

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
