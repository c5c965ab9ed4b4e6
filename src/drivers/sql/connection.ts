import { Unavailable, WaybillError } from '../../core/index.ts'
import type { Cell, Sql } from './sql.ts'

/**
 * Every statement of ours has a limit: what gets no answer for so long is given up, since the other end may be gone and
 * TCP has not noticed. BEGIN and ROLLBACK wait for nobody; COMMIT may wait for a standby; the pool's connections may all
 * be in use; any other statement may wait for a lock.
 */
export const ANSWER_WITHIN = 10_000
export const COMMIT_WITHIN = 60_000
export const CHECKOUT_WITHIN = 30_000
export const STATEMENT_WITHIN = 30_000
/** How long statements that are still under way when a transaction has failed are waited for. */
export const UNDER_WAY_WITHIN = 1_000

/**
 * The answer, or after `ms` an error; `onLate` then closes what can no longer be trusted. Not `withDeadline`: every statement
 * has such a limit, and a signal for each would cost ten times as much as the timer alone.
 */
export function answered<T>(
  promise: PromiseLike<T>,
  ms: number | undefined,
  onLate: (error: Error) => void,
  late: (ms: number) => Error = noAnswer,
): Promise<T> {
  if (ms === undefined) return Promise.resolve(promise)
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      const error = late(ms)
      reject(error)
      onLate(error)
    }, ms)
    promise.then(
      (value) => {
        clearTimeout(timer)
        resolve(value)
      },
      (error) => {
        clearTimeout(timer)
        reject(error)
      },
    )
  })
}

/** The same, with a limit for each statement. Whoever has the transaction closes its connection when one was too late. */
export function limited(sql: Sql, ms: number): Sql {
  return { query: (text, values) => answered(sql.query(text, values), ms, ignore) }
}

function noAnswer(ms: number): Unavailable {
  return new Unavailable(`PostgreSQL has not responded for ${ms} ms; the connection is given up`)
}

/** One statement after the other: pg queues them itself, but means to stop doing so. */
export class Turns {
  #last: Promise<unknown> | undefined

  /** The answer is awaited once: a promise that two wait for names none of them in the stack of its error. */
  async run<T>(send: () => Promise<T>): Promise<T> {
    const before = this.#last
    let end = ignore
    const over = new Promise<void>((resolve) => {
      end = resolve
    })
    this.#last = over
    try {
      if (before !== undefined) await before
      return await send()
    } finally {
      if (this.#last === over) this.#last = undefined
      end()
    }
  }

  get busy(): boolean {
    return this.#last !== undefined
  }

  /** Resolves when nothing is under way any more. */
  async idle(): Promise<void> {
    while (this.#last !== undefined) await this.#last
  }
}

const ignore = (): void => {}

/** Notifies every listener once that the connection broke, also one that is added afterwards. */
export class Loss {
  #listeners: ((error: unknown) => void)[] | undefined = []
  #error: unknown

  get happened(): boolean {
    return this.#listeners === undefined
  }

  /** Throws once the connection is lost: nothing may be sent on it any more. */
  check(): void {
    if (this.happened) throw new Unavailable('the connection to PostgreSQL is lost', { cause: this.#error })
  }

  report(error: unknown): void {
    const listeners = this.#listeners
    if (listeners === undefined) return
    this.#listeners = undefined
    this.#error = error
    for (const listener of listeners) listener(error)
  }

  /** The answer, or the loss: postgres.js forgets what was sent on a connection that was reset. */
  orElse<T>(answer: PromiseLike<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const waiting = this.#listeners
      waiting?.push(reject)
      const over = () => {
        const at = waiting?.indexOf(reject) ?? -1
        if (at >= 0) waiting!.splice(at, 1)
      }
      answer.then(resolve, reject).then(over)
    })
  }

  /** It was given back: nothing more is sent on it, and listeners are not notified. */
  close(): void {
    this.#listeners = undefined
    this.#error ??= new WaybillError('RELEASED', 'this connection was released')
  }

  listen(listener: (error: unknown) => void): void {
    if (this.#listeners === undefined) queueMicrotask(() => listener(this.#error))
    else this.#listeners.push(listener)
  }
}

/** One name for each text: a pooled connection may have prepared another table's statement under the same word. */
export function statementName(name: string, text: string): string {
  const known = names.get(text) ?? `waybill_${name}_${names.size + 1}`
  if (!names.has(text)) names.set(text, known)
  return known
}

const names = new Map<string, string>()

/** `LISTEN` takes no parameters. PostgreSQL cuts a channel's name at 63 bytes, and then nobody would be heard. */
export function channelName(channel: string): string {
  if (channel === '' || Buffer.byteLength(channel) > 63 || /["\0]/.test(channel)) {
    throw new WaybillError('INVALID_NAME', "a channel's name has 1 to 63 bytes, and no quotes")
  }
  return `"${channel}"`
}

const BYTEA = 17

/** A column's text as it is; of bytes the bytes. */
export function cellOf(text: string, type: number): Cell {
  return type === BYTEA && text.startsWith('\\x') ? Buffer.from(text.slice(2), 'hex') : text
}

/** A pooler responds for a server process that is not the one a session was promised. */
export const POOLED =
  'LISTEN does not work behind a pooler, which gives each transaction another session; use a direct connection'

export function refuseListening(): WaybillError {
  return new WaybillError('LISTEN_UNAVAILABLE', POOLED)
}
