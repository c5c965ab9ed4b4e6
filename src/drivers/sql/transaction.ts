import { errorSummary, telemetry, Unavailable, WaybillError } from '../../core/index.ts'

/** What is said when the server has undone a transaction whose function returned as if all were well. */
export function rolledBack(cause?: unknown): WaybillError {
  return new WaybillError(
    'ROLLED_BACK',
    'the transaction was rolled back: a statement in it had failed and its error was caught; let such errors through, or wrap the statement in a savepoint',
    cause === undefined ? undefined : { cause },
  )
}

export function endedInside(): WaybillError {
  return new WaybillError(
    'TRANSACTION_ENDED',
    'the transaction was ended inside its function by COMMIT or ROLLBACK; return to commit, throw to roll back',
  )
}

/** The connection broke before the answer to COMMIT came: it may have happened or not. No message is to blame. */
export function commitUnknown(cause: unknown): Unavailable {
  return new Unavailable(
    'the connection broke before COMMIT was confirmed; it may have taken effect or not; run it again only where an inbox or an event id makes that safe',
    { cause, code: 'COMMIT_UNKNOWN' },
  )
}

/** What all transactions need was lost in the middle of this one, so its message is not to blame. */
export function connectionLost(loss: unknown, cause: unknown): Unavailable {
  return new Unavailable(
    `the connection to PostgreSQL was lost inside the transaction, which is rolled back: ${errorSummary(loss)}`,
    {
      cause,
    },
  )
}

/** Of a leaked transaction whose work was asked to stop, and went on. */
export function gaveUp(): WaybillError {
  return new WaybillError(
    'TRANSACTION_ENDED',
    'this transaction was ended because its signal was aborted; a statement was sent through it afterwards',
  )
}

/** Nothing has begun, so nobody's message is to blame. */
export function cannotBegin(cause: unknown): Unavailable {
  return new Unavailable(`no transaction can be begun: ${errorSummary(cause)}`, { cause })
}

/** An error of the server about this statement, as against one about the connection. */
export function isStatementError(error: unknown): boolean {
  return propertyOf(error, 'severity') === 'ERROR'
}

/**
 * The work failed and then its rollback did too: the first error is the one that matters. The second is kept beside it
 * as `suppressed`, and reported. The server rolls back by itself when the connection is closed.
 */
export function keepOriginal(original: unknown, rollback: unknown): void {
  telemetry.warning.publish({ where: 'transaction', message: `ROLLBACK failed: ${errorSummary(rollback)}` })
  try {
    if (!(original instanceof Error) || !Object.isExtensible(original)) return
    Object.defineProperty(original, 'suppressed', { value: rollback, configurable: true, writable: true })
  } catch {
    // What users throw may be a Proxy that refuses.
  }
}

/**
 * Keeps the error of the last statement that failed, to name it when the whole turns out to be rolled back; and those
 * that failed because the connection was lost.
 */
export class Failures {
  last: unknown
  /** What was said first about the loss of the connection. */
  #loss: { readonly error: unknown } | undefined
  readonly #ofLoss = new WeakSet<object>()

  async watch<T>(answer: Promise<T>): Promise<T> {
    try {
      return await answer
    } catch (error) {
      this.failed(error)
      throw error
    }
  }

  /** A statement failed. */
  readonly failed = (error: unknown): void => {
    // What comes after the failure only says that there was one.
    if (propertyOf(error, 'code') !== IN_FAILED_TRANSACTION) this.last = error
    if (isConnectionError(error)) this.lost(error)
    if (this.#loss !== undefined && typeof error === 'object' && error !== null) this.#ofLoss.add(error)
  }

  /** The connection is lost. */
  readonly lost = (error: unknown): void => {
    this.#loss ??= { error }
    if (typeof error === 'object' && error !== null) this.#ofLoss.add(error)
  }

  /** What to throw for a function that returned although the connection was lost: COMMIT cannot be sent any more. */
  get beforeCommit(): Unavailable | undefined {
    return this.#loss === undefined ? undefined : connectionLost(this.#loss.error, this.#loss.error)
  }

  /** What to throw for the error of the function: `Unavailable` where it comes of the loss, else the error itself. */
  verdict(error: unknown): unknown {
    if (this.#loss === undefined) return error
    return [...wrapped(error)].some((one) => this.#ofLoss.has(one)) ? connectionLost(this.#loss.error, error) : error
  }
}

/** Where libraries keep the driver's error that theirs is about: TypeORM, Sequelize, and all others. */
const WRAPS = ['cause', 'driverError', 'original'] as const

function* wrapped(error: unknown, depth = 0): Generator<object> {
  if (typeof error !== 'object' || error === null || depth > 4) return
  yield error
  for (const name of WRAPS) yield* wrapped(propertyOf(error, name), depth + 1)
}

/** What users throw may have a getter that throws. */
function propertyOf(error: unknown, name: string): unknown {
  try {
    return (error as Record<string, unknown> | undefined | null)?.[name]
  } catch {
    return undefined
  }
}

/** An error about the connection: the server's last word, or one of the system's or of the driver's about the socket. */
export function isConnectionError(error: unknown): boolean {
  const severity = propertyOf(error, 'severity')
  if (severity === 'FATAL' || severity === 'PANIC') return true
  const code = propertyOf(error, 'code')
  return typeof code === 'string' && /^(CONNECTION_|CONNECT_|E[A-Z]{4,})/.test(code)
}

export const IN_FAILED_TRANSACTION = '25P02'

/** Throws once the transaction has ended: the same connection may already be in another one's hands. */
export class TransactionGuard {
  #reason: (() => Error) | undefined

  /** The first reason stays. */
  end(reason?: Error): void {
    this.#reason ??= reason === undefined ? leaked : () => reason
  }

  /**
   * Refuses a statement that would end the transaction, too: the connection may go back to the pool while the function still
   * uses it, and where the answer is lost, nobody knows any more whether all is rolled back.
   */
  check(text?: unknown): void {
    if (this.#reason !== undefined) throw this.#reason()
    if (typeof text === 'string' && ENDS.test(text)) throw endedInside()
  }
}

const ENDS = /^\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to\b))\b/i

function leaked(): WaybillError {
  return new WaybillError(
    'TRANSACTION_ENDED',
    'this transaction has ended; a statement was sent through it afterwards, perhaps by work that was not awaited',
  )
}

/**
 * The driver's own transaction object with some methods `replaced`: those that send something, so that they refuse after
 * the end. All others pass through. Where it is itself a function (postgres.js), `apply` is asked to call it.
 */
export function guarded<Tx extends object>(
  tx: Tx,
  replaced: Readonly<Record<string, unknown>>,
  apply: (call: () => unknown, args: unknown[]) => unknown = (call) => call(),
): Tx {
  const bound = new Map<PropertyKey, unknown>()
  return new Proxy(tx, {
    apply(target, self, args) {
      return apply(() => Reflect.apply(target as unknown as (...args: unknown[]) => unknown, self, args), args)
    },
    get(target, property) {
      if (typeof property === 'string' && Object.hasOwn(replaced, property)) return replaced[property]
      const value = Reflect.get(target, property, target)
      if (typeof value !== 'function') return value
      const method = bound.get(property) ?? value.bind(target)
      bound.set(property, method)
      return method
    },
  })
}
