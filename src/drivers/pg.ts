import { errorSummary, telemetry, WaybillError } from '../core/index.ts'
import { ANSWER_WITHIN, answered, CHECKOUT_WITHIN, COMMIT_WITHIN, Turns } from './connection.ts'
import { PgConnection } from './pg-connection.ts'
import { type PgClient, type PgPool, pgResult } from './pg-shapes.ts'
import { poolSize } from './pool.ts'
import type { Connection, ConnectOptions, Database, SqlResult, SqlValue } from './sql.ts'
import {
  cannotBegin,
  commitUnknown,
  endedInside,
  Failures,
  Guard,
  guarded,
  isStatementError,
  keepOriginal,
  rolledBack,
} from './transaction.ts'

/** A `pg.Pool`. */
export class PgDatabase implements Database<PgClient> {
  readonly driver = 'pg'
  readonly single = false
  readonly poolName = 'the pg Pool'
  readonly #pool: PgPool

  constructor(pool: PgPool) {
    this.#pool = pool
    keepAlive(pool)
  }

  get size(): number | undefined {
    return poolSize(this.#pool)
  }

  async query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return pgResult(await this.#pool.query(text, values as unknown[]))
  }

  async connect(options: ConnectOptions): Promise<Connection> {
    const client = await checkOut(this.#pool, options.timeout)
    return PgConnection.open(client, options, (broken) => giveBack(client, broken))
  }

  async transaction<T>(fn: (tx: PgClient) => Promise<T>): Promise<T> {
    const client = await begin(this.#pool)
    const guard = new Guard()
    const turns = new Turns()
    const failures = new Failures()
    let value: T
    try {
      value = await fn(transactionClient(client, guard, turns, failures))
    } catch (error) {
      guard.end()
      await rollback(client, turns, error)
      throw error
    }
    guard.end()
    await commit(client, turns, failures)
    return value
  }
}

/** A client that breaks in our hands says so by an event, and one that nobody hears ends the process. */
const ignore = (): void => {}

/** Nor must an idle one end it, when the server restarts and the pool's owner has not thought of it. */
function keepAlive(pool: PgPool): void {
  if (pool.listenerCount('error') > 0) return
  pool.on('error', (error) => {
    telemetry.warning.publish({ where: 'pg', message: `an idle connection broke: ${errorSummary(error)}` })
  })
}

/** A connection of the pool. One that comes after the time is up goes back to it. */
async function checkOut(pool: PgPool, timeout: number | undefined): Promise<PgClient> {
  const coming = pool.connect()
  const client = await answered(coming, timeout, () => {
    coming.then(
      (late) => late.release(),
      () => {},
    )
  })
  client.on('error', ignore)
  return client
}

function giveBack(client: PgClient, broken: boolean): void {
  client.release(broken)
  // A connection that is being closed may still complain; one that goes back has the pool's own listener.
  if (!broken) client.removeListener('error', ignore)
}

async function begin(pool: PgPool): Promise<PgClient> {
  let client: PgClient
  try {
    client = await checkOut(pool, CHECKOUT_WITHIN)
  } catch (error) {
    throw cannotBegin(error)
  }
  try {
    await answered(client.query('BEGIN'), ANSWER_WITHIN, () => {})
    return client
  } catch (error) {
    giveBack(client, true)
    throw cannotBegin(error)
  }
}

/** PostgreSQL answers the COMMIT of an aborted transaction with ROLLBACK, and with no error. */
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

async function rollback(client: PgClient, turns: Turns, original: unknown): Promise<void> {
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

function transactionClient(client: PgClient, guard: Guard, turns: Turns, failures: Failures): PgClient {
  const send = async (args: [string, unknown[]?]) => {
    guard.check()
    return failures.watch(turns.run(() => client.query(...args)))
  }
  return guarded(client, {
    query: (...args: [string, unknown[]?]) => {
      if (!answersAtOnce(args)) return send(args)
      guard.check()
      return client.query(...args)
    },
    release: () => {
      throw new WaybillError('NOT_YOURS', 'this client belongs to withTransaction(), which releases it itself')
    },
  })
}

/** A cursor or a stream is answered as it is, and a callback is called: there is no promise to wait for. */
function answersAtOnce(args: readonly unknown[]): boolean {
  return (
    typeof (args[0] as { submit?: unknown } | undefined)?.submit === 'function' || typeof args.at(-1) === 'function'
  )
}
