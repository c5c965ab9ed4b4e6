import { type Clock, telemetry, Unavailable } from '../core/index.ts'
import { answered } from '../drivers/sql/connection.ts'
import type { Connection, Database } from '../drivers/sql/sql.ts'
import type { OutboxNames } from './names.ts'
import { IdleNotifier } from './wake.ts'

export interface RelayConnectionsOptions {
  readonly db: Database
  readonly names: OutboxNames
  readonly prepare: boolean
  /** Whether to be woken by writers. */
  readonly wake: boolean
  /** Milliseconds. */
  readonly lease: number
  readonly clock: Clock
}

/** How many connections one session keeps: to settle, to read, and to be woken. */
export function connectionsOf(wake: boolean): number {
  return wake ? 3 : 2
}

/**
 * How long a settlement waits for a row that somebody else has locked (a person at a prompt, say), in milliseconds. All
 * others wait with it; then the flow writes those, and tries that one again now and then.
 */
const LOCKED_WITHIN = 1000

/** How long a short statement on the connection of the idle flag may take. Nothing but being woken depends on it. */
const FLAG_TIMEOUT = 5000

/**
 * What the role or the database may have set, and what a relay's own connections need instead. A time-out that is meant
 * for the statements of a web request would end the wait for the idle flag; one for idle sessions the session itself;
 * under REPEATABLE READ a claim fails where another relay was faster. Those that this server does not know are left out.
 *
 * Each statement of a relay has an index, and no other plan is any good (`enable_seqscan`). The planner cannot know: it plans
 * while the table is empty, or from statistics that hardly ever see what is ready, due or held, and keeps that plan for minutes.
 */
function settings(statementTimeout: number, lockTimeout: number): Readonly<Record<string, string>> {
  return {
    statement_timeout: String(Math.floor(statementTimeout)),
    lock_timeout: String(Math.floor(lockTimeout)),
    transaction_timeout: '0',
    idle_session_timeout: '0',
    idle_in_transaction_session_timeout: '0',
    default_transaction_isolation: 'read committed',
    default_transaction_deferrable: 'off',
    enable_seqscan: 'off',
  }
}

/**
 * The connections of one session of a relay. No answer for a third of the lease is as good as none: the right to settle
 * must not run out while we wait. The server gives a statement up a little earlier, which says more than silence does.
 */
export class RelayConnections {
  readonly writer: Connection
  readonly reader: Connection
  readonly wake: IdleNotifier | undefined
  #read = true
  #closed = false

  static async open(options: RelayConnectionsOptions): Promise<RelayConnections> {
    const { db, names, clock, lease } = options
    const timeout = Math.max(1000, lease / 3)
    const opened: Connection[] = []
    try {
      for (const locked of [Math.min(LOCKED_WITHIN, timeout / 3), 0]) {
        opened.push(await open(options, timeout, true, locked))
      }
      const [writer, reader] = opened as [Connection, Connection]
      const wakes = options.wake && !reader.pooled
      if (options.wake && !wakes) {
        const message = `${names.table.text}: behind a pooler in transaction mode the relay cannot be notified; it polls`
        telemetry.warning.publish({ where: 'relay', message })
      }
      if (!wakes) return new RelayConnections(writer, reader, undefined)
      const wake = new IdleNotifier({
        listener: reader,
        // The wait for the lock has no end, so there is no limit to statements here; each short one has its own.
        connect: db.single ? undefined : () => open(options, Math.min(FLAG_TIMEOUT, timeout), false),
        names,
        clock,
        idleTimeout: Math.max(1000, lease),
        timeout: Math.min(FLAG_TIMEOUT, timeout),
      })
      return new RelayConnections(writer, reader, wake)
    } catch (error) {
      await Promise.all(opened.map((connection) => connection.release(true)))
      throw error
    }
  }

  private constructor(writer: Connection, reader: Connection, wake: IdleNotifier | undefined) {
    this.writer = writer
    this.reader = reader
    this.wake = wake
  }

  onLost(listener: (error: unknown) => void): void {
    for (const connection of [this.writer, this.reader]) connection.onLost(listener)
  }

  /** The reader has just been used, so it need not be tried. */
  used(): void {
    this.#read = true
  }

  /** One that nobody uses may have been cut off, and what it should hear is not heard: a statement finds out. */
  async touch(): Promise<void> {
    const idle = !this.#read
    this.#read = false
    await Promise.all([idle ? this.reader.query('SELECT 1') : undefined, this.wake?.touch()])
  }

  /** What is under way when a session is closed fails, and nobody needs the error. */
  async unlessClosed(work: Promise<unknown>): Promise<void> {
    try {
      await work
    } catch (error) {
      if (!this.#closed) throw error
    }
  }

  async close(broken: boolean): Promise<void> {
    this.#closed = true
    await Promise.all([this.writer.release(broken), this.reader.release(broken), this.wake?.close()])
  }
}

/** A connection of the pool with our settings. `limited`: every statement must end within `timeout`. */
async function open(
  { db, names, prepare }: RelayConnectionsOptions,
  timeout: number,
  limited: boolean,
  lockTimeout = 0,
): Promise<Connection> {
  const applicationName = `waybill relay ${names.table.text}`
  const connection = await within(
    db,
    timeout,
    db.connect({ prepare, applicationName, ...(limited ? { timeout } : {}) }),
  )
  // A session that is shared, with the program itself or by a pooler, keeps the settings it has.
  if (db.single || connection.pooled) return connection
  try {
    const wanted = Object.entries(settings(limited ? timeout * 0.9 : 0, lockTimeout))
    const values = wanted.map((_, i) => `($${2 * i + 1}, $${2 * i + 2})`).join(', ')
    const text = `SELECT set_config(name, wanted.value, false) FROM (VALUES ${values}) AS wanted (name, value) JOIN pg_settings USING (name)`
    await answered(connection.query(text, wanted.flat()), timeout, () => {})
    return connection
  } catch (error) {
    await connection.release(true)
    throw error
  }
}

/** A connection of the pool. One that comes late goes back. */
function within(db: Database, ms: number, coming: Promise<Connection>): Promise<Connection> {
  return answered(coming, ms * 0.95, () => {
    coming.then(
      (late) => late.release(true),
      () => {},
    )
  }).catch((error) => {
    throw poolOrServer(db, ms, error)
  })
}

/** An exhausted pool and a server that does not respond look alike, so both are named. */
export function poolOrServer(db: Database, ms: number, error: unknown): unknown {
  if (!(error instanceof Unavailable) || db.single) return error
  const size = db.size === undefined ? '' : ` of ${db.size}`
  const text = `${db.poolName}${size} gave the relay no connection within ${Math.round(ms)} ms: others use all of them, or PostgreSQL does not respond`
  return new Unavailable(text, { cause: error })
}
