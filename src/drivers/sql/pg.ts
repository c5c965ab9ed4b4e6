import { Unavailable, untilAborted, WaybillError } from '../../core/index.ts'
import {
  ANSWER_WITHIN,
  answered,
  CHECKOUT_WITHIN,
  COMMIT_WITHIN,
  cellOf,
  channelName,
  Loss,
  refuseListening,
  STATEMENT_WITHIN,
  statementName,
  Turns,
  UNDER_WAY_WITHIN,
} from './connection.ts'
import { answersAtOnce, type PgClient, type PgPool, type PgQuery, type PgResult, pgResult } from './pg-shapes.ts'
import { fromPool, keepAlive, poolSize } from './pool.ts'
import type { Cell, Connection, Database, SqlConnectOptions, SqlResult, SqlValue } from './sql.ts'
import {
  cannotBegin,
  commitUnknown,
  endedInside,
  Failures,
  gaveUp,
  guarded,
  isStatementError,
  keepOriginal,
  rolledBack,
  TransactionGuard,
} from './transaction.ts'

/** Leaves every column as the text the server sent. */
const asText = { getTypeParser: (type: number) => (text: string) => cellOf(text, type) }

/** One client of a `pg.Pool`, kept for long. */
export class PgConnection implements Connection {
  readonly pooled: boolean
  readonly #client: PgClient
  readonly #giveBack: (broken: boolean) => void
  readonly #prepare: boolean
  readonly #timeout: number | undefined
  readonly #loss = new Loss()
  readonly #turns = new Turns()
  readonly #onError = (error: unknown): void => this.#loss.report(error)
  readonly #onEnd = (): void => this.#loss.report(new Error('PostgreSQL closed the connection'))
  readonly #channels = new Map<string, () => void>()
  #touched = false
  #released = false

  static async open(
    client: PgClient,
    options: SqlConnectOptions,
    giveBack: (broken: boolean) => void,
  ): Promise<PgConnection> {
    try {
      const asked = client.query('SELECT pg_backend_pid() AS pid')
      const [row] = (await answered(asked, options.timeout, () => {})).rows as { pid: number }[]
      const pooled = client.processID != null && client.processID !== row?.pid
      const connection = new PgConnection(client, options, giveBack, pooled)
      if (options.applicationName !== undefined && !pooled) await connection.#introduce(options.applicationName)
      return connection
    } catch (error) {
      giveBack(true)
      throw error
    }
  }

  private constructor(
    client: PgClient,
    options: SqlConnectOptions,
    giveBack: (broken: boolean) => void,
    pooled: boolean,
  ) {
    this.#client = client
    this.#giveBack = giveBack
    this.pooled = pooled
    this.#prepare = options.prepare && !pooled
    this.#timeout = options.timeout
    client.on('error', this.#onError)
    client.on('end', this.#onEnd)
    client.on('notification', this.#onNotification)
  }

  async query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return pgResult(await this.#send({ text, values: values as unknown[] }))
  }

  async read(name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    const query: PgQuery = { text, values: values as unknown[], rowMode: 'array', types: asText }
    if (this.#prepare) query.name = statementName(name, text)
    return (await this.#send(query)).rows as Cell[][]
  }

  async run(name: string, text: string, values: readonly SqlValue[]): Promise<number> {
    const query: PgQuery = { text, values: values as unknown[] }
    if (this.#prepare) query.name = statementName(name, text)
    return (await this.#send(query)).rowCount ?? 0
  }

  async listen(channel: string, onNotify: () => void): Promise<void> {
    const name = channelName(channel)
    if (this.pooled) throw refuseListening()
    this.#touched = true
    this.#channels.set(channel, onNotify)
    await this.#send({ text: `LISTEN ${name}` })
  }

  onLost(listener: (error: unknown) => void): void {
    this.#loss.listen(listener)
  }

  /** What the session remembers (a name, channels, locks) must not come to light in another's hands: it is closed. */
  async release(broken = false): Promise<void> {
    if (this.#released) return
    this.#released = true
    const client = this.#client
    client.removeListener('error', this.#onError)
    client.removeListener('end', this.#onEnd)
    client.removeListener('notification', this.#onNotification)
    this.#giveBack(broken || this.#loss.happened || this.#touched)
    this.#loss.close()
  }

  async #introduce(name: string): Promise<void> {
    this.#touched = true
    await this.#send({ text: "SELECT set_config('application_name', $1, false)", values: [name] })
  }

  readonly #onNotification = (notification: { channel: string }): void => {
    this.#channels.get(notification.channel)?.()
  }

  async #send(query: PgQuery): Promise<PgResult> {
    this.#loss.check()
    try {
      return await answered(
        this.#turns.run(() => this.#client.query(query)),
        this.#timeout,
        this.#onError,
      )
    } catch (error) {
      // The server's last words come before the end itself: a client given back in between would be used again.
      if (!isStatementError(error)) this.#onError(error)
      throw error
    }
  }
}

const NAME = 'the pg Pool'

/** A `pg.Pool`. */
export class PgDatabase implements Database<PgClient> {
  readonly driver = 'pg'
  readonly single = false
  readonly poolName = NAME
  readonly within: number
  readonly #pool: PgPool
  #pooled: boolean | undefined

  constructor(pool: PgPool, within = STATEMENT_WITHIN) {
    this.#pool = pool
    this.within = within
    keepAlive(pool)
  }

  get pool(): object {
    return this.#pool
  }

  get size(): number | undefined {
    return poolSize(this.#pool)
  }

  query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return this.#query((client) => client.query(text, values as unknown[]))
  }

  prepared(name: string, text: string, values: readonly SqlValue[]): Promise<SqlResult> {
    return this.#prepared(name, { text, values: values as unknown[] })
  }

  async read(name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    const query: PgQuery = { text, values: values as unknown[], rowMode: 'array', types: asText }
    return (await this.#prepared(name, query)).rows as unknown as Cell[][]
  }

  #prepared(name: string, query: PgQuery): Promise<SqlResult> {
    return this.#query(async (client) =>
      client.query((await this.#isPooled(client)) ? query : { ...query, name: statementName(name, query.text) }),
    )
  }

  /** A pooler responds for a server process that is not the one it named at first. Asked once. */
  async #isPooled(client: PgClient): Promise<boolean> {
    if (this.#pooled !== undefined) return this.#pooled
    const [row] = (await client.query('SELECT pg_backend_pid() AS pid')).rows as { pid: number }[]
    this.#pooled = client.processID != null && client.processID !== row?.pid
    return this.#pooled
  }

  async #query(send: (client: PgClient) => Promise<PgResult>): Promise<SqlResult> {
    const client = await checkOut(this.#pool, CHECKOUT_WITHIN, undefined)
    try {
      const result = await answered(send(client), this.within, () => {})
      giveBack(client, false)
      return pgResult(result)
    } catch (error) {
      giveBack(client, !isStatementError(error))
      throw error
    }
  }

  async connect(options: SqlConnectOptions): Promise<Connection> {
    const client = await checkOut(this.#pool, options.timeout, undefined)
    return PgConnection.open(client, options, (broken) => giveBack(client, broken))
  }

  async transaction<T>(fn: (tx: PgClient) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const failures = new Failures()
    const client = await begin(this.#pool, failures, signal)
    const guard = new TransactionGuard()
    const turns = new Turns()
    let value: T
    try {
      value = await fn(transactionClient(client, guard, turns, failures))
    } catch (error) {
      const aborted = signal?.aborted === true
      guard.end(aborted ? gaveUp() : undefined)
      if (aborted) this.#discard(client, turns)
      else await this.#rollback(client, turns, error)
      throw failures.verdict(error)
    } finally {
      client.removeListener('error', failures.lost)
    }
    guard.end()
    const lost = failures.beforeCommit
    if (lost !== undefined) {
      giveBack(client, true)
      throw lost
    }
    await commit(client, turns, failures)
    return value
  }

  async #rollback(client: PgClient, turns: Turns, original: unknown): Promise<void> {
    try {
      await answered(turns.idle(), UNDER_WAY_WITHIN, () => {})
    } catch (error) {
      this.#discard(client, turns)
      keepOriginal(original, error)
      return
    }
    try {
      await answered(
        turns.run(() => client.query('ROLLBACK')),
        ANSWER_WITHIN,
        () => {},
      )
    } catch (error) {
      giveBack(client, true)
      keepOriginal(original, error)
      return
    }
    giveBack(client, false)
  }

  /**
   * Ends a transaction without its function: the connection is closed, and nothing that goes on in the background can
   * reach another's transaction through it. A server process that is busy (it waits for a lock, say) does not notice
   * that and would keep its locks, so it is ended too.
   */
  #discard(client: PgClient, turns: Turns): void {
    const { processID, connection } = client
    const port = connection?.stream?.localPort
    const busy = turns.busy && processID != null
    giveBack(client, true)
    if (busy) this.#endBackend(processID, port).catch(ignore)
  }

  /** Behind a pooler the pid is not the server's: our port must match too or, where it is unknown, there be no pooler. */
  async #endBackend(pid: number, port: number | undefined): Promise<void> {
    if (port !== undefined) await this.#pool.query(END_BACKEND, [pid, port])
    else await this.#query(async (client) => client.query(END_UNPOOLED, [(await this.#isPooled(client)) ? null : pid]))
  }
}

const END_UNPOOLED = 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1'
const END_BACKEND = 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND client_port = $2'

/** A client that breaks in our hands says so by an event, and one that nobody hears ends the process. */
const ignore = (): void => {}

/** A connection of the pool. One that comes after the time is up goes back to it. */
async function checkOut(pool: PgPool, ms: number | undefined, signal: AbortSignal | undefined): Promise<PgClient> {
  const state = () => ({ name: NAME, size: poolSize(pool), taken: pool.totalCount - pool.idleCount })
  const client = await fromPool(pool.connect(), { ms, signal }, state, (late) => late.release())
  client.on('error', ignore)
  return client
}

function giveBack(client: PgClient, broken: boolean): void {
  client.release(broken)
  // A connection that is being closed may still complain; one that goes back has the pool's own listener.
  if (!broken) client.removeListener('error', ignore)
}

/** `failures` hears of a loss from before BEGIN on: the server's last words may come together with the answer. */
async function begin(pool: PgPool, failures: Failures, signal: AbortSignal | undefined): Promise<PgClient> {
  let client: PgClient
  try {
    client = await checkOut(pool, CHECKOUT_WITHIN, signal)
  } catch (error) {
    throw cannotBegin(error)
  }
  client.on('error', failures.lost)
  try {
    const begun = answered(client.query('BEGIN'), ANSWER_WITHIN, () => {})
    await untilAborted<unknown>(begun, signal, () => {
      throw new Unavailable('PostgreSQL has not responded to BEGIN in time')
    })
    return client
  } catch (error) {
    client.removeListener('error', failures.lost)
    giveBack(client, true)
    throw cannotBegin(error)
  }
}

/** PostgreSQL replies to the COMMIT of an aborted transaction with ROLLBACK, and with no error. */
async function commit(client: PgClient, turns: Turns, failures: Failures): Promise<void> {
  if (client.getTransactionStatus?.() === 'I') {
    giveBack(client, false)
    throw endedInside()
  }
  let tag: string
  try {
    tag = (
      await answered(
        turns.run(() => client.query('COMMIT')),
        COMMIT_WITHIN,
        () => {},
      )
    ).command
  } catch (error) {
    const certain = isStatementError(error)
    giveBack(client, !certain)
    throw certain ? error : commitUnknown(error)
  }
  giveBack(client, false)
  if (tag !== 'COMMIT') throw rolledBack(failures.last)
}

function transactionClient(client: PgClient, guard: TransactionGuard, turns: Turns, failures: Failures): PgClient {
  const send = async (args: [string, unknown[]?]) => {
    guard.check(textOf(args))
    return await failures.watch(turns.run(() => client.query(...args)))
  }
  return guarded(client, {
    query: (...args: [string, unknown[]?]) => {
      if (!answersAtOnce(args)) return send(args)
      guard.check(textOf(args))
      return client.query(...args)
    },
    release: () => {
      throw new WaybillError('NOT_YOURS', 'this client belongs to withTransaction(), which releases it itself')
    },
  })
}

/** Callers may give a configuration of the driver's, or a query object, too. */
function textOf([query]: readonly unknown[]): unknown {
  return typeof query === 'string' ? query : (query as { text?: unknown } | undefined)?.text
}
