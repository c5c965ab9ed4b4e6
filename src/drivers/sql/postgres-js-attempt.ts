import { Unavailable } from '../../core/index.ts'
import { ANSWER_WITHIN, answered, CHECKOUT_WITHIN, COMMIT_WITHIN, UNDER_WAY_WITHIN } from './connection.ts'
import { fromPool, type PoolState } from './pool.ts'
import type { PostgresJsInner, PostgresJsRoot, PostgresJsSent, PostgresJsTransaction } from './postgres-js-shapes.ts'
import {
  cannotBegin,
  commitUnknown,
  Failures,
  gaveUp,
  guarded,
  isConnectionError,
  isStatementError,
  keepOriginal,
  rolledBack,
  TransactionGuard,
} from './transaction.ts'

type TransactionWork<R> = (tx: PostgresJsTransaction) => Promise<R>

/**
 * One `sql.begin()`. When the connection breaks, postgres.js rejects the whole at once; but when the function ends it
 * sends a ROLLBACK or COMMIT to the socket that is gone, an exception nobody can catch. So a function that ends after
 * the loss never seems to end to postgres.js, and through a transaction that is lost nothing is sent.
 *
 * postgres.js rolls back for every statement that failed outside of a `savepoint()` of its own, caught or not, and
 * rejects with its error: that is how a caught error shows here.
 */
export class PostgresJsAttempt<T> {
  readonly #fn: TransactionWork<T>
  readonly #signal: AbortSignal | undefined
  readonly #guard = new TransactionGuard()
  readonly #failures = new Failures()
  /** Statements that have no answer yet. */
  readonly #underWay = new Set<PostgresJsSent>()
  #inner: PostgresJsInner | undefined
  #whole: Promise<unknown> = Promise.resolve()
  #outcome: Promise<{ value: T } | { error: unknown }> | undefined
  #rejected = false
  #statementFailed = false

  constructor(fn: TransactionWork<T>, signal: AbortSignal | undefined) {
    this.#fn = fn
    this.#signal = signal
  }

  get begun(): boolean {
    return this.#outcome !== undefined
  }

  async run(sql: PostgresJsRoot, pool: PoolState): Promise<T> {
    try {
      await this.#begin(sql, pool)
    } catch (error) {
      throw cannotBegin(error)
    }
    const outcome = await this.#outcome!
    const aborted = 'error' in outcome && this.#signal?.aborted === true
    this.#guard.end(aborted ? gaveUp() : undefined)
    if ('error' in outcome) {
      const rolledBack = this.#rollback(outcome.error)
      if (!aborted) await rolledBack
      throw this.#failures.verdict(outcome.error)
    }
    try {
      await answered(this.#whole, COMMIT_WITHIN, ignore)
    } catch (error) {
      throw verdict(error)
    }
    return outcome.value
  }

  /** What is still under way is cancelled, since ROLLBACK comes after it. Without an answer the connection is closed. */
  async #rollback(original: unknown): Promise<void> {
    const within = this.#underWay.size > 0 ? UNDER_WAY_WITHIN : ANSWER_WITHIN
    for (const sent of this.#underWay) cancel(sent)
    try {
      await answered(this.#whole, within, () => this.#inner?.terminate?.())
    } catch (error) {
      if (error !== original) keepOriginal(original, error)
    }
  }

  /** Resolves when the function runs. */
  #begin(sql: PostgresJsRoot, pool: PoolState): Promise<void> {
    let late = false
    const begun = new Promise<void>((resolve, reject) => {
      this.#whole = sql.begin((tx) => {
        if (late) throw new Error('it was given up before it began')
        const work = this.#scope(tx, this.#record)
        resolve()
        return work
      })
      this.#whole.catch((error: unknown) => {
        this.#rejected = true
        if (isConnectionError(error)) this.#failures.lost(error)
        this.#guard.end(new Unavailable('the connection to PostgreSQL is lost', { cause: error }))
        reject(error)
      })
    })
    const giveUp = () => {
      late = true
    }
    const limits = { ms: CHECKOUT_WITHIN, signal: this.#signal }
    return fromPool(begun, limits, () => pool, ignore, giveUp)
  }

  readonly #record: TransactionWork<T> = (tx) => {
    const work = (async () => this.#fn(tx))()
    this.#outcome = work.then(
      (value) => ({ value }),
      (error: unknown) => ({ error }),
    )
    return work
  }

  async #scope<R>(tx: PostgresJsTransaction, fn: TransactionWork<R>): Promise<R> {
    try {
      const value = await fn(this.#inside(tx))
      if (this.#statementFailed) await untilClosed()
      return this.#rejected ? await never() : value
    } catch (error) {
      await untilClosed()
      if (this.#rejected) return await never()
      throw error
    }
  }

  /** The `sql` of the transaction, that checks and watches what is sent through it. */
  #inside(tx: PostgresJsTransaction): PostgresJsTransaction {
    const send = (query: unknown) => {
      // Not by its own `then`, which would run it.
      if (query instanceof Promise) this.#watch(query as PostgresJsSent)
      return query
    }
    return guarded(
      tx,
      {
        unsafe: (...args: [string, unknown[]?, object?]) => {
          this.#guard.check(args[0])
          return send(tx.unsafe(...args))
        },
        savepoint: (...args: [string, TransactionWork<unknown>] | [TransactionWork<unknown>]) => {
          const fn = args.at(-1) as TransactionWork<unknown>
          return tx.savepoint(...args.slice(0, -1), (inner: PostgresJsTransaction) => this.#scope(inner, fn))
        },
      },
      (call, args) => {
        this.#guard.check(Array.isArray(args[0]) ? args[0][0] : undefined)
        return send(call())
      },
    )
  }

  #watch(sent: PostgresJsSent): void {
    this.#underWay.add(sent)
    if (this.#inner === undefined && sent.options !== undefined) sent.options.onexecute ??= this.#take
    const over = () => this.#underWay.delete(sent)
    Promise.prototype.then.call(sent, over, (error: unknown) => {
      over()
      this.#statementFailed = true
      this.#failures.failed(error)
    })
  }

  readonly #take = (inner: PostgresJsInner): boolean => {
    this.#inner = inner
    return true
  }
}

/** The function returned, the whole failed: by a caught error, by COMMIT itself, or because nobody answered. */
function verdict(error: unknown): unknown {
  if (!isStatementError(error)) return commitUnknown(error)
  return (error as { query?: unknown }).query === 'commit' ? error : rolledBack(error)
}

/** A connection that was reset fails its statement first and is closed two turns later: its loss is reported then. */
async function untilClosed(): Promise<void> {
  await new Promise(setImmediate)
  await new Promise(setImmediate)
}

/** By hand: `cancel()` itself leaves a rejection that nobody can catch when the server is away. */
function cancel(sent: PostgresJsSent): void {
  if (sent.state === undefined || sent.state === null) return
  Promise.resolve(sent.canceller?.(sent)).catch(ignore)
}

function never(): Promise<never> {
  return new Promise(() => {})
}

const ignore = (): void => {}
