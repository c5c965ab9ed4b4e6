import { errorSummary, telemetry, Unavailable, WaybillError } from '../core/index.ts'

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

/** The connection broke before the answer to COMMIT came: it may have happened or not. */
export function commitUnknown(cause: unknown): WaybillError {
  return new WaybillError(
    'COMMIT_UNKNOWN',
    'the connection broke before the answer to COMMIT; it may have taken effect or not, a second try finds out where an inbox or an event id guards it',
    { cause },
  )
}

/** Nothing has begun, so nobody's message is to blame. */
export function cannotBegin(cause: unknown): Unavailable {
  return new Unavailable(`no transaction can be begun: ${errorSummary(cause)}`, { cause })
}

/** An error of the server about this statement, as against one about the connection. */
export function isStatementError(error: unknown): boolean {
  const severity = (error as { severity?: unknown } | undefined)?.severity
  return severity === 'ERROR'
}

/**
 * The work failed and then its rollback did too: the first error is the one that matters. The second is kept beside it
 * as `suppressed`, and told. The server rolls back by itself when the connection is closed.
 */
export function keepOriginal(original: unknown, rollback: unknown): void {
  telemetry.warning.publish({ where: 'transaction', message: `ROLLBACK failed: ${errorSummary(rollback)}` })
  if (original instanceof Error && Object.isExtensible(original)) {
    Object.defineProperty(original, 'suppressed', { value: rollback, configurable: true, writable: true })
  }
}

/** Throws once the transaction has ended: the same connection may already be in another one's hands. */
export class Guard {
  #reason: (() => Error) | undefined

  /** The first reason stays. */
  end(reason?: Error): void {
    this.#reason ??= reason === undefined ? leaked : () => reason
  }

  check(): void {
    if (this.#reason !== undefined) throw this.#reason()
  }
}

function leaked(): WaybillError {
  return new WaybillError(
    'TRANSACTION_ENDED',
    'this transaction has ended; a statement was sent through it afterwards, perhaps by work that was not awaited',
  )
}

/**
 * The driver's own transaction object, that refuses to work after the end. `replaced` are the methods that send
 * something; all others pass through. One that is itself a function (postgres.js) asks `check` with its arguments.
 */
export function guarded<Tx extends object>(
  tx: Tx,
  check: (...args: unknown[]) => void,
  replaced: Readonly<Record<string, unknown>>,
): Tx {
  const bound = new Map<PropertyKey, unknown>()
  return new Proxy(tx, {
    apply(target, self, args) {
      check(...args)
      return Reflect.apply(target as unknown as (...args: unknown[]) => unknown, self, args)
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
