import { AsyncLocalStorage } from 'node:async_hooks'
import { errorSummary, onAbort, reportOnStderr, telemetry, WaybillError } from '../core/index.ts'

/**
 * A transaction around a piece of work. `Tx` is the driver's own transaction type, so that the caller's code and the
 * outbox write through the same one.
 */
export interface UnitOfWork<Tx = unknown> {
  /**
   * Begins, runs `fn`, commits; rolls back when `fn` throws and throws that. Called within itself it joins the outer
   * transaction, and an inner failure rolls back the whole even when the caller catches it.
   *
   * When `signal` aborts, `fn` is expected to give up. One that does not within a second loses its transaction: it is
   * rolled back without it, and this rejects with the signal's reason. Once `fn` has returned nothing stops the commit.
   */
  withTransaction<T>(fn: (tx: Tx) => Promise<T>, options?: TransactionOptions): Promise<T>
  /** The transaction of the `withTransaction` we are in, if any. */
  current(): Tx | undefined
  /** Runs after the commit of the current transaction, and never when it is rolled back. */
  afterCommit(fn: () => void): void
}

export interface TransactionOptions {
  /** Asks the work to stop. Of a call that joins another's transaction it is not looked at. */
  readonly signal?: AbortSignal
}

/**
 * Begins a transaction, runs `fn` in it, commits; rolls back when it throws, and throws that. When `signal` has aborted
 * by then `fn` may still be at work: nothing it sends later may take effect, and nobody waits for what it has under way.
 */
export type Begin<Tx> = <T>(fn: (tx: Tx) => Promise<T>, signal?: AbortSignal) => Promise<T>

/** How long work that was asked to stop may take for it, in milliseconds. */
export const GIVE_UP_WITHIN = 1_000

/** One transaction, and all who take part in it. */
interface Scope<Tx = unknown> {
  readonly unit: AmbientUnitOfWork<Tx>
  readonly tx: Tx
  /** One of another unit of work that it began in, and that went on then. */
  readonly outer: Scope | undefined
  /** Those who have not finished yet. Most transactions have nobody, and no hooks. */
  joined: Set<Promise<unknown>> | undefined
  hooks: (() => unknown)[] | undefined
  /** The first failure of one that joined. */
  rollbackOnly: { readonly error: unknown } | undefined
  ended: boolean
}

/**
 * The innermost transaction we are in, whatever it is one of. Made with the first: from then on each of these costs
 * every async call in the process a little, which is why there is one for all units of work.
 */
let storage: AsyncLocalStorage<Scope> | undefined

/** The innermost transaction we are in of those that `wanted` says; also one that has ended. */
export function ambient(wanted: (tx: unknown) => boolean): unknown {
  for (let scope = storage?.getStore(); scope !== undefined; scope = scope.outer) {
    if (wanted(scope.tx)) return scope.tx
  }
  return undefined
}

/** A unit of work over anything that can begin a transaction. The current one is found through AsyncLocalStorage. */
export class AmbientUnitOfWork<Tx = unknown> implements UnitOfWork<Tx> {
  readonly #begin: Begin<Tx>

  constructor(begin: Begin<Tx>) {
    this.#begin = begin
    // A process that only writes has no worker, and is heard too: a pool that is used up, a hook that failed.
    reportOnStderr()
  }

  withTransaction<T>(fn: (tx: Tx) => Promise<T>, options?: TransactionOptions): Promise<T> {
    const joins = this.#scope()
    if (joins !== undefined) return join(joins, fn)
    const signal = options?.signal
    let scope: Scope<Tx> | undefined
    return this.#begin((tx) => {
      scope = {
        unit: this,
        tx,
        outer: goingOn(),
        joined: undefined,
        hooks: undefined,
        rollbackOnly: undefined,
        ended: false,
      }
      storage ??= new AsyncLocalStorage()
      const work = storage.run(scope as Scope, runAll<Tx, T>, scope, fn)
      return signal === undefined ? work : unlessAbandoned(work, scope as Scope, signal)
    }, signal).then((value) => {
      if (scope?.hooks !== undefined) for (const hook of scope.hooks) runHook(hook)
      return value
    })
  }

  current(): Tx | undefined {
    return this.#scope()?.tx
  }

  /** The current transaction; throws when there is none: what must be atomic never falls back to something else. */
  required(): Tx {
    return this.#requiredScope('a transaction is required').tx
  }

  /** For adapters that work either way: the current transaction, or else `fallback`; without one it is required. */
  executor(): Tx
  executor<Fallback>(fallback: Fallback): Tx | Fallback
  executor<Fallback>(fallback?: Fallback): Tx | Fallback {
    return this.current() ?? fallback ?? this.required()
  }

  afterCommit(fn: () => void): void {
    const scope = this.#requiredScope('afterCommit() needs a transaction')
    scope.hooks ??= []
    scope.hooks.push(fn)
  }

  /** Work that outlives its transaction still sees it here, but must not use it any more. */
  #scope(): Scope<Tx> | undefined {
    const scope = this.#lastScope()
    return scope === undefined || scope.ended ? undefined : scope
  }

  #lastScope(): Scope<Tx> | undefined {
    let scope = storage?.getStore()
    while (scope !== undefined && scope.unit !== this) scope = scope.outer
    return scope as Scope<Tx> | undefined
  }

  #requiredScope(what: string): Scope<Tx> {
    const scope = this.#scope()
    if (scope !== undefined) return scope
    const ended = this.#lastScope() !== undefined
    const why = ended
      ? 'the one this work began in has ended; await all work within it'
      : 'call it in withTransaction()'
    throw new WaybillError('NO_TRANSACTION', `${what}, and there is none: ${why}`)
  }
}

/** What began in a transaction that has ended is in none; and keeping it would keep all that it began in. */
function goingOn(): Scope | undefined {
  let scope = storage?.getStore()
  while (scope?.ended) scope = scope.outer
  return scope
}

/** Commit and rollback wait for everybody who joined, so that nobody's work is cut in two. */
function runAll<Tx, T>(scope: Scope<Tx>, fn: (tx: Tx) => Promise<T>): Promise<T> {
  return (async () => fn(scope.tx))().then(
    (value) => ended(scope, () => unlessRollbackOnly(scope, value)),
    (error: unknown) =>
      ended(scope, () => {
        throw error
      }),
  )
}

/** What `work` returns; or, when it was asked to stop and does not, the signal's reason. */
function unlessAbandoned<T>(work: Promise<T>, scope: Scope, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    let timer: NodeJS.Timeout | undefined
    const abandon = () => {
      scope.ended = true
      const message = `work has not ended within ${GIVE_UP_WITHIN} ms of the abort of its signal; its transaction is rolled back without it`
      telemetry.warning.publish({ where: 'transaction', message })
      reject(signal.reason)
    }
    const giveUp = () => {
      timer = setTimeout(abandon, GIVE_UP_WITHIN)
    }
    const forget = onAbort(signal, giveUp)
    const over = () => {
      forget()
      clearTimeout(timer)
    }
    work.then(
      (value) => {
        over()
        resolve(value)
      },
      (error) => {
        over()
        reject(error)
      },
    )
  })
}

/** Most transactions have nobody to wait for. */
function ended<T>(scope: Scope, then: () => T): T | Promise<T> {
  if (scope.joined !== undefined && scope.joined.size > 0) {
    return Promise.allSettled(scope.joined).then(() => ended(scope, then))
  }
  scope.ended = true
  return then()
}

function unlessRollbackOnly<T>(scope: Scope, value: T): T {
  if (scope.rollbackOnly === undefined) return value
  throw new WaybillError(
    'ROLLBACK_ONLY',
    'the transaction is rolled back, because a part of it failed, even though that error was caught',
    { cause: scope.rollbackOnly.error },
  )
}

async function join<Tx, T>(scope: Scope<Tx>, fn: (tx: Tx) => Promise<T>): Promise<T> {
  const work = (async () => {
    try {
      return await fn(scope.tx)
    } catch (error) {
      scope.rollbackOnly ??= { error }
      throw error
    }
  })()
  scope.joined ??= new Set()
  scope.joined.add(work)
  try {
    return await work
  } finally {
    scope.joined.delete(work)
  }
}

/** The commit has happened, so a hook's failure can only be reported. */
function runHook(hook: () => unknown): void {
  const failed = (error: unknown) => {
    telemetry.warning.publish({ where: 'afterCommit', message: `a hook failed: ${errorSummary(error)}` })
  }
  try {
    Promise.resolve(hook()).catch(failed)
  } catch (error) {
    failed(error)
  }
}
