import { answered, CHECKOUT_WITHIN, Loss } from './connection.ts'
import type { PostgresJsInner, PostgresJsReserved, PostgresJsResult, PostgresJsRoot } from './postgres-js-shapes.ts'

/**
 * A reserved connection of postgres.js that knows when it is lost. Anything sent on one that was closed raises an
 * exception nobody can catch (it writes to a socket that is not there), so nothing is sent after the loss.
 */
export class Reservation {
  readonly sql: PostgresJsReserved
  readonly #loss = new Loss()
  #inner: PostgresJsInner | undefined
  #over = false

  /** Reserves a connection and sends `first` on it. */
  static async make(root: PostgresJsRoot, first: string, timeout: number | undefined): Promise<Reservation> {
    const coming = root.reserve()
    const sql = await answered(coming, CHECKOUT_WITHIN, () => {
      coming.then(
        (late) => late.release(),
        () => {},
      )
    })
    const reservation = new Reservation(sql)
    try {
      await reservation.wait(sql.unsafe(first, [], { onexecute: reservation.#take }), timeout)
    } catch (error) {
      reservation.giveBack(true)
      throw error
    }
    return reservation
  }

  private constructor(sql: PostgresJsReserved) {
    this.sql = sql
  }

  get lost(): boolean {
    return this.#loss.happened
  }

  send(text: string, timeout: number | undefined): Promise<PostgresJsResult> {
    return this.wait(this.sql.unsafe(text), timeout)
  }

  /** A query runs when it is awaited, so that one made on a lost connection is never sent. */
  async wait(query: PromiseLike<PostgresJsResult>, timeout: number | undefined): Promise<PostgresJsResult> {
    this.#loss.check()
    try {
      return await answered(query, timeout, this.#tell)
    } catch (error) {
      if (isConnectionError(error)) this.#tell(error)
      throw error
    }
  }

  onLost(listener: (error: unknown) => void): void {
    this.#loss.listen(listener)
  }

  /** A broken one is closed and not given back: among the open ones it would be used. */
  giveBack(broken: boolean): void {
    if (this.#over) return
    this.#over = true
    const inner = this.#inner
    if (inner !== undefined) inner.onclose = null
    if (!broken && !this.lost) this.sql.release()
    else if (inner?.reserved) {
      inner.reserved = null
      inner.terminate?.()
    }
    this.#loss.close()
  }

  readonly #tell = (error: unknown): void => this.#loss.tell(error)

  readonly #take = (inner: PostgresJsInner): boolean => {
    this.#inner = inner
    inner.onclose = this.#tell
    return true
  }
}

function isConnectionError(error: unknown): boolean {
  const { code, severity } = (error ?? {}) as { code?: unknown; severity?: unknown }
  return severity === 'FATAL' || (typeof code === 'string' && /^(CONNECTION_|CONNECT_|E[A-Z]{4,})/.test(code))
}
