import { type Backoff, backoff, type Clock, errorSummary, onAbort, telemetry } from '../core/index.ts'
import { answered } from '../drivers/sql/connection.ts'
import type { Connection } from '../drivers/sql/sql.ts'
import { isCancelled } from './errors.ts'
import type { OutboxNames } from './names.ts'

export interface WakeOptions {
  /** Hears the notifications, and is used to look at the lock and to cancel waiting for it. */
  readonly listener: Connection
  /** Opens the connection that holds the lock. Undefined: every enqueue notifies, as on PGlite. */
  readonly connect: (() => Promise<Connection>) | undefined
  readonly names: OutboxNames
  readonly clock: Clock
  /** Milliseconds without a sign of life after which the server ends a session that holds the lock. */
  readonly idleTimeout: number
  /** Milliseconds a short statement may take. */
  readonly timeout: number
}

/**
 * Wakes an idle relay. The flag is an advisory lock: while the relay holds it exclusively, or waits for it, every writer
 * is refused the shared one and notifies. A transaction that got the shared lock before the flag went up and is still
 * open gives it back with its commit: the relay is then given the lock, and that wakes it too. So nothing that is
 * committed while a relay goes idle is missed, and writers pay nothing while it is busy.
 *
 * It waits for the lock rather than trying it: a try would be refused by any transaction left open, and leave only
 * polling.
 *
 * Without the flag the relay polls. So its connection is no part of the session: when it is lost, or the lock is refused,
 * that is reported once, the relay is woken to look, and the flag is put up again on a new connection after a pause.
 */
export class IdleNotifier {
  readonly #options: WakeOptions
  readonly #sql: FlagSql
  readonly #pause: Backoff
  #listens = false
  #opening: Promise<void> | undefined
  #locker: Locker | undefined
  #flag: Flag | undefined
  #unlocking: Promise<void> | undefined
  #failures = 0
  #retryAt = 0
  #notified = false
  #closed = false
  #wake: (() => void) | undefined

  /** Nothing is sent before the relay is idle for the first time. */
  constructor(options: WakeOptions) {
    this.#options = options
    this.#pause = backoff({ min: 1000, max: 60_000, jitter: 0 }, 'wake')
    const lock = WAKE_LOCK(`'${options.names.table.sql}'::regclass`)
    // A session that nobody can reach any more must not keep the lock. Only while it has it: a busy relay does not use it.
    const limit = (ms: number) => `set_config('idle_session_timeout', '${Math.ceil(ms)}', false)`
    this.#sql = {
      lock: `SELECT ${limit(options.idleTimeout)}, pg_advisory_lock(${lock})`,
      unlock: `SELECT pg_advisory_unlock(${lock}), ${limit(0)}`,
    }
  }

  /** Returns whether a writer has notified since it was last asked. */
  notified(): boolean {
    const notified = this.#notified
    this.#notified = false
    return notified
  }

  /** Milliseconds until the flag is tried again; infinite while it works. */
  get retryIn(): number {
    if (this.#failures === 0 || this.#flag?.up) return Number.POSITIVE_INFINITY
    return Math.max(1, this.#retryAt - this.#options.clock.monotonic())
  }

  /** Puts the flag up; `true` when it was down: earlier commits notified nobody, so look once more. */
  async goIdle(): Promise<boolean> {
    await this.#unlocking
    if (this.#flag?.up) {
      await this.touch()
      return this.#flag === undefined
    }
    const first = !this.#listens
    if (first || this.#locker === undefined) {
      this.#opening ??= this.#open().finally(() => {
        this.#opening = undefined
      })
      // What failed before is tried again beside the polling, which must not wait for it.
      if (this.#failures === 0) await this.#opening
    }
    const locker = this.#locker
    if (locker === undefined) return first || this.#options.connect !== undefined
    const flag = new Flag(locker, this.#options.listener, this.#sql, this.#options.timeout, {
      granted: () => {
        this.#failures = 0
        this.#notify()
      },
      failed: (error) => this.#fail(locker, error),
    })
    this.#flag = flag
    await flag.lock().catch((error) => this.#fail(locker, error))
    if (flag.held) this.#failures = 0
    return true
  }

  /** Takes the flag down: there is work, and writers need not notify. Nobody waits for it. */
  goBusy(): void {
    const flag = this.#flag
    const locker = this.#locker
    if (flag === undefined || locker === undefined) return
    this.#flag = undefined
    this.#unlocking = flag.unlock().catch((error) => this.#fail(locker, error))
  }

  /** Shows the server that this relay is alive, so that it keeps the lock. */
  async touch(): Promise<void> {
    const locker = this.#locker
    if (locker === undefined || this.#flag?.held !== true) return
    await answered(locker.connection.query('SELECT 1'), this.#options.timeout, () => {}).catch((error) =>
      this.#fail(locker, error),
    )
  }

  /** Resolves when a writer notifies, after `ms`, or on `signal`. */
  async sleep(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#notified || signal.aborted) return
    const over = new AbortController()
    const stop = () => over.abort(OVER)
    const forget = onAbort(signal, stop)
    this.#wake = stop
    await this.#options.clock.sleep(ms, over.signal)
    this.#wake = undefined
    forget()
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#locker?.connection.release(true)
  }

  #notify(): void {
    this.#notified = true
    this.#wake?.()
  }

  async #open(): Promise<void> {
    const { connect, clock, timeout } = this.#options
    if (clock.monotonic() < this.#retryAt) return
    let locker: Locker | undefined
    try {
      if (!this.#listens) await this.#listen()
      if (connect === undefined || this.#closed) return
      locker = { connection: await connect(), pid: '' }
      const asked = locker.connection.query('SELECT pg_backend_pid()::text AS pid')
      locker.pid = (await answered(asked, timeout, () => {})).rows[0]!['pid'] as string
    } catch (error) {
      await locker?.connection.release(true)
      return this.#fail(undefined, error)
    }
    if (this.#closed) return locker.connection.release(true)
    this.#locker = locker
    locker.connection.onLost((error) => this.#fail(locker, error))
    // It may have been waited for in vain.
    if (this.#failures > 0) this.#notify()
  }

  async #listen(): Promise<void> {
    const { listener, names } = this.#options
    const { rows } = await listener.query(`SELECT 'waybill_' || '${names.table.sql}'::regclass::oid AS channel`)
    await listener.listen(rows[0]!['channel'] as string, () => this.#notify())
    this.#listens = true
    this.#failures = 0
  }

  #fail(locker: Locker | undefined, error: unknown): void {
    if (this.#locker !== locker || this.#closed) return
    this.#locker = undefined
    this.#flag = undefined
    locker?.connection.release(true).catch(() => {})
    this.#failures++
    this.#retryAt = this.#options.clock.monotonic() + this.#pause(this.#failures)
    if (this.#failures === 1) {
      const text = 'what is new is found by polling, until it is up again'
      const message = `${this.#options.names.table.text}: the idle flag is down (${errorSummary(error)}); ${text}`
      telemetry.warning.publish({ where: 'wake', message })
    }
    this.#notify()
  }
}

/** Why a sleep is over: without a reason an error is made for it, which costs more than all else here. */
const OVER = 'over'

/** A connection for the lock alone, and the process that serves it. */
interface Locker {
  readonly connection: Connection
  pid: string
}

interface FlagSql {
  readonly lock: string
  readonly unlock: string
}

/** The advisory lock on its way up and down. */
class Flag {
  readonly #locker: Locker
  readonly #other: Connection
  readonly #sql: FlagSql
  readonly #timeout: number
  readonly #on: { granted(): void; failed(error: unknown): void }
  #state: 'asking' | 'queued' | 'granted' | 'unlocked' | 'failed' = 'asking'
  #lock: Promise<void> | undefined

  constructor(
    locker: Locker,
    other: Connection,
    sql: FlagSql,
    timeout: number,
    on: { granted(): void; failed(error: unknown): void },
  ) {
    this.#locker = locker
    this.#other = other
    this.#sql = sql
    this.#timeout = timeout
    this.#on = on
  }

  /** Writers are refused. */
  get up(): boolean {
    return this.#state === 'queued' || this.#state === 'granted'
  }

  get held(): boolean {
    return this.#state === 'granted'
  }

  /** Resolves when the lock is held, or known to be waited for: from then on every writer is refused. Or it has failed. */
  async lock(): Promise<void> {
    this.#lock = this.#locker.connection.query(this.#sql.lock).then(
      () => {
        const waited = this.#state === 'queued'
        if (this.#state !== 'unlocked') this.#state = 'granted'
        // Whoever kept us waiting has committed.
        if (waited) this.#on.granted()
      },
      (error) => {
        if (this.#state === 'unlocked') return
        this.#state = 'failed'
        this.#on.failed(error)
      },
    )
    // The lock may be waited for for hours; it is raced with a few times only, until the server says that it is queued.
    await Promise.race([this.#lock, soon()])
    while (this.#state === 'asking') {
      const queued = `SELECT 1 FROM pg_locks WHERE pid = $1::text::int AND locktype = 'advisory' AND NOT granted`
      const { count } = await this.#other.query(queued, [this.#locker.pid])
      if (count > 0 && this.#state === 'asking') this.#state = 'queued'
      else await Promise.race([this.#lock, soon()])
    }
  }

  async unlock(): Promise<void> {
    const before = this.#state
    this.#state = 'unlocked'
    if (before === 'queued') await this.#other.query('SELECT pg_cancel_backend($1::text::int)', [this.#locker.pid])
    await this.#bounded(this.#lock)
    if (before === 'failed') return
    const asked = () => this.#bounded(this.#locker.connection.query(this.#sql.unlock))
    await asked().catch((error) => {
      // The lock was given just before the cancel, which then hit this statement instead.
      if (!isCancelled(error)) throw error
      return asked()
    })
  }

  #bounded(answer: Promise<unknown> | undefined): Promise<unknown> {
    return answered(Promise.resolve(answer), this.#timeout, () => {})
  }
}

/** Long enough for a lock that is free to be given, short enough not to be felt. */
function soon(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 2))
}

/** What a statement that enqueues does about an idle relay. */
export type Waking = 'flag' | 'always' | 'off'

/** Two numbers that mark "a relay of this table is idle": the first keeps clear of other people's advisory locks. */
const WAKE_CLASS = 1463897676
const WAKE_LOCK = (regclass: string) => `${WAKE_CLASS}, (${regclass}::oid::bigint % 2147483647)::int`

/**
 * An idle relay holds, or waits for, an exclusive advisory lock; a writer that is refused the shared one notifies it.
 * Always notifying would take a global lock in every commit. One PGlite session would be given the shared lock under
 * its own exclusive one, so there it always notifies.
 */
export function wakeSql(wake: Waking, regclass: string): string {
  if (wake === 'off') return ''
  const condition = wake === 'flag' ? ` WHERE ${refused(regclass)}` : ''
  return `, wake AS (\n  SELECT ${notify(regclass)}${condition}\n)`
}

/** The same as a column of what one insert returns, which spares it the rest of a larger statement. */
export function wakingSql(wake: Waking, regclass: string): string {
  if (wake === 'off') return ''
  return `,\n  ${wake === 'flag' ? `CASE WHEN ${refused(regclass)} THEN ${notify(regclass)} END` : notify(regclass)} AS woken`
}

/** The default of `state`: for writers that know nothing of the flag. */
export function readyAndWake(wake: Waking, regclass: string): string {
  const always = `'ready' || ${notify(regclass)}::text`
  return wake === 'always' ? always : `CASE WHEN ${refused(regclass)} THEN ${always} ELSE 'ready' END`
}

const refused = (regclass: string) => `NOT pg_try_advisory_xact_lock_shared(${WAKE_LOCK(regclass)})`
/** As text: Prisma cannot read a column of type void. */
const notify = (regclass: string) => `pg_notify('waybill_' || ${regclass}::oid, '')::text`
