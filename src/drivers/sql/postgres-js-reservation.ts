import { answered, Loss } from './connection.ts'
import type { PostgresJsInner, PostgresJsReserved, PostgresJsResult, PostgresJsRoot } from './postgres-js-shapes.ts'
import { isConnectionError } from './transaction.ts'

/**
 * A reserved connection of postgres.js that knows when it is lost. Anything sent on one that was closed raises an
 * exception nobody can catch (it writes to a socket that is not there), so nothing is sent after the loss.
 */
export class Reservation {
  readonly sql: PostgresJsReserved
  readonly #loss = new Loss()
  #inner: PostgresJsInner | undefined
  #over = false

  static async make(root: PostgresJsRoot, timeout: number | undefined): Promise<Reservation> {
    await warm(root, timeout)
    const coming = root.reserve()
    const sql = await answered(coming, timeout, () => {
      coming.then(
        (late) => late.release(),
        () => {},
      )
    })
    const reservation = new Reservation(sql)
    try {
      await reservation.wait(sql.unsafe('SELECT 1', [], { onexecute: reservation.#take }), timeout)
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
      return await answered(this.#loss.orElse(query), timeout, this.#lost)
    } catch (error) {
      if (isConnectionError(error)) this.#lost(error)
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

  readonly #lost = (error: unknown): void => this.#loss.report(error)

  readonly #take = (inner: PostgresJsInner): boolean => {
    this.#inner = inner
    inner.onclose = this.#lost
    return true
  }
}

/**
 * Makes sure that a connection is open. `reserve()` would otherwise open one, and then it waits for ever with
 * `fetch_types: false`, and loses a place of the pool where the connection before it died with a statement under way:
 * the next statement in that place is rejected with the error of the dead connection.
 */
async function warm(root: PostgresJsRoot, timeout: number | undefined): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await answered(root.unsafe('SELECT 1'), timeout, () => {})
      return
    } catch (error) {
      if (tries === 3 || !isConnectionError(error)) throw error
    }
  }
}
