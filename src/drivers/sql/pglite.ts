import { answered, cellOf, channelName, Loss, STATEMENT_WITHIN } from './connection.ts'
import { fromPool } from './pool.ts'
import type { Cell, Connection, Database, SqlConnectOptions, SqlResult, SqlValue } from './sql.ts'
import { cannotBegin, endedInside, Failures, guarded, IN_FAILED_TRANSACTION, rolledBack } from './transaction.ts'

/** What is called of PGlite. */
export interface PgliteResult {
  readonly rows: readonly unknown[]
  readonly affectedRows?: number
  readonly rowCount?: number
  readonly command?: string
}

export interface PgliteOptions {
  rowMode?: 'array' | 'object'
  parsers?: Record<number, (text: string) => unknown>
}

export interface PgliteTransaction {
  // biome-ignore lint/suspicious/noExplicitAny: PGlite takes any value.
  query(text: string, values?: any[], options?: PgliteOptions): Promise<PgliteResult>
  readonly closed: boolean
}

export interface PgliteRoot {
  // biome-ignore lint/suspicious/noExplicitAny: PGlite takes any value.
  query(text: string, values?: any[], options?: PgliteOptions): Promise<PgliteResult>
  // biome-ignore lint/suspicious/noExplicitAny: the caller's own transaction type.
  transaction<T>(fn: (tx: any) => Promise<T>): Promise<T>
  listen(channel: string, onNotify: (payload: string) => void): Promise<unknown>
  unlisten(channel: string, onNotify: (payload: string) => void): Promise<void>
  readonly parsers: Record<number | string, unknown>
  readonly closed: boolean
}

/** A PGlite instance: PostgreSQL in this process. It has one session, and its own lock gives it to one at a time. */
export class PgliteDatabase implements Database<PgliteTransaction> {
  readonly driver = 'pglite'
  readonly single = true
  readonly size = undefined
  readonly poolName = 'PGlite'
  readonly within: number
  readonly #db: PgliteRoot
  #options: PgliteOptions | undefined

  constructor(db: PgliteRoot, within = STATEMENT_WITHIN) {
    this.#db = db
    this.within = within
  }

  get pool(): object {
    return this.#db
  }

  async query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return pgliteResult(await this.#db.query(text, values as unknown[]))
  }

  prepared(_name: string, text: string, values: readonly SqlValue[]): Promise<SqlResult> {
    return this.query(text, values)
  }

  async read(_name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    this.#options ??= { rowMode: 'array', parsers: asText(this.#db) }
    return (await this.#db.query(text, values as unknown[], this.#options)).rows as Cell[][]
  }

  async connect(options: SqlConnectOptions): Promise<Connection> {
    await answered(this.#db.query('SELECT 1'), options.timeout, () => {})
    return new PgliteConnection(this.#db, options.timeout)
  }

  /** The session is waited for as a pool's connection is. A statement under way cannot be stopped: it runs in here. */
  async transaction<T>(fn: (tx: PgliteTransaction) => Promise<T>, signal?: AbortSignal): Promise<T> {
    let begun = false
    let late = false
    let start: () => void = ignore
    const started = new Promise<void>((resolve) => {
      start = resolve
    })
    try {
      const whole = this.#db.transaction(async (tx: PgliteTransaction) => {
        if (late) throw new Error('it was given up before it began')
        begun = true
        start()
        const failures = new Failures()
        const value = await fn(watched(tx, failures))
        if (tx.closed) throw endedInside()
        await refuseAborted(tx, failures)
        return value
      })
      // Begun, or over before it could begin. Both promises are of this transaction alone.
      const begins = Promise.race([started, whole.then(ignore)])
      await fromPool(
        begins,
        { ms: undefined, signal },
        () => ONE_SESSION,
        ignore,
        () => {
          late = true
        },
      )
      return await whole
    } catch (error) {
      throw begun ? error : cannotBegin(error)
    }
  }
}

const ONE_SESSION = { name: 'PGlite', size: 1, taken: 1 }
const ignore = (): void => {}

/**
 * PGlite does not look at the answer to COMMIT, so the transaction is asked before: a savepoint can be set only in one
 * that is open and not aborted.
 */
async function refuseAborted(tx: PgliteTransaction, failures: Failures): Promise<void> {
  try {
    await tx.query('SAVEPOINT waybill_end')
  } catch (error) {
    const { code } = error as { code?: unknown }
    throw code === IN_FAILED_TRANSACTION ? rolledBack(failures.last) : code === '25P01' ? endedInside() : error
  }
}

type SendQuery = (...args: unknown[]) => Promise<unknown>

function watched(tx: PgliteTransaction, failures: Failures): PgliteTransaction {
  const methods = tx as unknown as Record<string, SendQuery>
  const watch =
    (name: string): SendQuery =>
    (...args) =>
      failures.watch(methods[name]!(...args))
  return guarded(tx, { query: watch('query'), sql: watch('sql'), exec: watch('exec') })
}

export function pgliteResult(result: PgliteResult): SqlResult {
  const count = result.rowCount ?? (result.affectedRows || result.rows.length)
  return { rows: result.rows as Record<string, unknown>[], count, command: result.command }
}

/** The one session again: transactions and other connections wait in the same line. */
class PgliteConnection implements Connection {
  readonly pooled = false
  readonly #db: PgliteRoot
  readonly #timeout: number | undefined
  readonly #loss = new Loss()
  readonly #unlisten: (() => Promise<void>)[] = []
  #options: PgliteOptions | undefined

  constructor(db: PgliteRoot, timeout: number | undefined) {
    this.#db = db
    this.#timeout = timeout
  }

  async query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return pgliteResult(await this.#send(text, values))
  }

  async read(_name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    this.#options ??= { rowMode: 'array', parsers: asText(this.#db) }
    return (await this.#send(text, values, this.#options)).rows as Cell[][]
  }

  async run(_name: string, text: string, values: readonly SqlValue[]): Promise<number> {
    return pgliteResult(await this.#send(text, values)).count
  }

  async listen(channel: string, onNotify: () => void): Promise<void> {
    this.#loss.check()
    const name = channelName(channel)
    const heard = () => onNotify()
    await this.#db.listen(name, heard)
    // The function that listen() returns forgets the quotes, and with them the case.
    this.#unlisten.push(() => this.#db.unlisten(name, heard))
  }

  onLost(listener: (error: unknown) => void): void {
    this.#loss.listen(listener)
  }

  async release(): Promise<void> {
    this.#loss.close()
    if (this.#db.closed) return
    await Promise.all(this.#unlisten.splice(0).map((unlisten) => unlisten().catch(() => {})))
  }

  /** A long transaction of the program itself keeps everybody waiting here, so being late is an error but no loss. */
  async #send(text: string, values?: readonly SqlValue[], options?: PgliteOptions): Promise<PgliteResult> {
    this.#loss.check()
    try {
      return await answered(this.#db.query(text, values as unknown[], options), this.#timeout, () => {})
    } catch (error) {
      if (this.#db.closed) this.#loss.report(error)
      throw error
    }
  }
}

/** Every parser it knows of replaced: what has none stays text anyhow. */
function asText(db: PgliteRoot): Record<number, (text: string) => unknown> {
  const types = Object.keys(db.parsers).map(Number)
  return Object.fromEntries(types.map((type) => [type, (text: string) => cellOf(text, type)]))
}
