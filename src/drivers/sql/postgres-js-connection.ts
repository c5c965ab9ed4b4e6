import { answered, cellOf, channelName, refuseListening } from './connection.ts'
import { Reservation } from './postgres-js-reservation.ts'
import { type PostgresJsResult, type PostgresJsRoot, postgresJsResult } from './postgres-js-shapes.ts'
import type { Cell, Connection, SqlConnectOptions, SqlResult, SqlValue } from './sql.ts'

/** One reserved connection of postgres.js, kept for long. */
export class PostgresJsConnection implements Connection {
  readonly pooled: boolean
  readonly #root: PostgresJsRoot
  readonly #reserved: Reservation
  readonly #prepare: boolean
  readonly #timeout: number | undefined
  readonly #unlisten: (() => Promise<void>)[] = []
  #touched = false
  #released = false

  static async open(root: PostgresJsRoot, options: SqlConnectOptions): Promise<PostgresJsConnection> {
    const reserved = await Reservation.make(root, options.timeout)
    try {
      const result = await reserved.send('SELECT pg_backend_pid() AS pid', options.timeout)
      const promised = result.state?.pid
      const pooled = typeof promised === 'number' && promised !== (result[0] as { pid: number }).pid
      const connection = new PostgresJsConnection(root, reserved, options, pooled)
      if (options.applicationName !== undefined && !pooled) await connection.#introduce(options.applicationName)
      return connection
    } catch (error) {
      reserved.giveBack(true)
      throw error
    }
  }

  private constructor(root: PostgresJsRoot, reserved: Reservation, options: SqlConnectOptions, pooled: boolean) {
    this.#root = root
    this.#reserved = reserved
    this.pooled = pooled
    this.#prepare = options.prepare && !pooled
    this.#timeout = options.timeout
  }

  async query(text: string, values: readonly SqlValue[] = []): Promise<SqlResult> {
    const query = this.#reserved.sql.unsafe(text, values as unknown[])
    return postgresJsResult(await this.#reserved.wait(query, this.#timeout))
  }

  async read(_name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    const query = this.#reserved.sql.unsafe(text, values as unknown[], { prepare: this.#prepare }).raw()
    return cellsOf(await this.#reserved.wait(query, this.#timeout))
  }

  async run(_name: string, text: string, values: readonly SqlValue[]): Promise<number> {
    const query = this.#reserved.sql.unsafe(text, values as unknown[], { prepare: this.#prepare })
    return (await this.#reserved.wait(query, this.#timeout)).count ?? 0
  }

  /** postgres.js listens on a connection of its own, and again after losing it: what came between is unknown, so wake. */
  async listen(channel: string, onNotify: () => void): Promise<void> {
    channelName(channel)
    if (this.pooled) throw refuseListening()
    let first = true
    const onListen = () => {
      if (!first) onNotify()
      first = false
    }
    const { unlisten } = await answered(this.#root.listen(channel, onNotify, onListen), this.#timeout, () => {})
    this.#unlisten.push(unlisten)
  }

  onLost(listener: (error: unknown) => void): void {
    this.#reserved.onLost(listener)
  }

  async release(broken = false): Promise<void> {
    if (this.#released) return
    this.#released = true
    this.#reserved.giveBack(broken || this.#touched)
    await Promise.all(this.#unlisten.map((unlisten) => unlisten().catch(() => {})))
  }

  async #introduce(name: string): Promise<void> {
    this.#touched = true
    await this.query("SELECT set_config('application_name', $1, false)", [name])
  }
}

/** The rows of a raw result. */
export function cellsOf(result: PostgresJsResult): Cell[][] {
  const types = (result.columns ?? []).map((column) => column.type)
  return (result as unknown as (Uint8Array | null)[][]).map((row) => row.map((cell, i) => decode(cell, types[i]!)))
}

function decode(cell: Uint8Array | null, type: number): Cell {
  if (cell === null) return null
  return cellOf(Buffer.from(cell.buffer, cell.byteOffset, cell.byteLength).toString('utf8'), type)
}
