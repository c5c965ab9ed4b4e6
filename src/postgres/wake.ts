import type { Clock } from '../core/index.ts'
import type { Connection } from '../drivers/sql.ts'
import { type OutboxNames, WAKE_LOCK } from './names.ts'

/**
 * Wakes an idle relay. The flag is an advisory lock: while the relay holds it exclusively, or waits for it, every writer
 * is refused the shared one and notifies. A transaction that got the shared lock before the flag went up and is still
 * open gives it back with its commit: the relay is then given the lock, and that wakes it too. So nothing that is
 * committed while a relay goes idle is missed, and writers pay nothing while it is busy.
 *
 * It waits for the lock rather than trying it: a try would be refused by any transaction left open, and leave only
 * polling.
 */
export class Wake {
  readonly #listener: Connection
  readonly #locker: Connection | undefined
  readonly #clock: Clock
  readonly #sql: { readonly lock: string; readonly unlock: string }
  #pid = ''
  #flag: Flag | undefined
  #lowering: Promise<void> | undefined
  #rung = false
  #wake: (() => void) | undefined

  /** Without a `locker` every enqueue notifies: one PGlite session would be given any lock it has itself. */
  private constructor(listener: Connection, locker: Connection | undefined, names: OutboxNames, clock: Clock) {
    this.#listener = listener
    this.#locker = locker
    this.#clock = clock
    const lock = WAKE_LOCK(`'${names.table.sql}'::regclass`)
    this.#sql = { lock: `SELECT pg_advisory_lock(${lock})`, unlock: `SELECT pg_advisory_unlock(${lock})` }
  }

  static async open(
    listener: Connection,
    locker: Connection | undefined,
    names: OutboxNames,
    clock: Clock,
  ): Promise<Wake> {
    const wake = new Wake(listener, locker, names, clock)
    const { rows } = await listener.query(`SELECT 'waybill_' || '${names.table.sql}'::regclass::oid AS channel`)
    await listener.listen(rows[0]!['channel'] as string, () => wake.#ring())
    if (locker !== undefined) {
      // One that nobody can reach any more must not keep the lock: it is touched with every wait, or ends.
      await locker.query(`SET idle_session_timeout = '60s'`)
      wake.#pid = String((await locker.query('SELECT pg_backend_pid() AS pid')).rows[0]!['pid'])
    }
    return wake
  }

  /** Answers whether somebody has rung since it was last asked. */
  rung(): boolean {
    const rung = this.#rung
    this.#rung = false
    return rung
  }

  /** Puts the flag up; `true` when it was down: what was committed before told nobody, so look once more. */
  async raise(): Promise<boolean> {
    if (this.#locker === undefined) return false
    await this.#lowering
    if (this.#flag !== undefined) {
      await this.#flag.touch()
      return false
    }
    this.#flag = new Flag(this.#locker, this.#listener, this.#pid, this.#sql, () => this.#ring())
    await this.#flag.up()
    return true
  }

  /** Takes the flag down: there is work, and writers need not tell. Nobody waits for it; a failure shows with `raise`. */
  lower(): void {
    if (this.#flag === undefined) return
    this.#lowering = this.#flag.down()
    this.#lowering.catch(() => {})
    this.#flag = undefined
  }

  /** Resolves when somebody rings, after `ms`, or on `signal`. */
  async sleep(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#rung || signal.aborted) return
    const over = new AbortController()
    const stop = () => over.abort()
    signal.addEventListener('abort', stop, { once: true })
    this.#wake = stop
    await this.#clock.sleep(ms, over.signal)
    this.#wake = undefined
    signal.removeEventListener('abort', stop)
  }

  #ring(): void {
    this.#rung = true
    this.#wake?.()
  }
}

/** The advisory lock on its way up and down. */
class Flag {
  readonly #locker: Connection
  readonly #other: Connection
  readonly #pid: string
  readonly #sql: { readonly lock: string; readonly unlock: string }
  readonly #onGranted: () => void
  #state: 'asking' | 'queued' | 'granted' | 'failed' = 'asking'
  #lock: Promise<void> | undefined
  #error: unknown

  constructor(
    locker: Connection,
    other: Connection,
    pid: string,
    sql: { readonly lock: string; readonly unlock: string },
    onGranted: () => void,
  ) {
    this.#locker = locker
    this.#other = other
    this.#pid = pid
    this.#sql = sql
    this.#onGranted = onGranted
  }

  /** Resolves when the lock is held, or known to be waited for: from then on every writer is refused. */
  async up(): Promise<void> {
    this.#lock = this.#locker.query(this.#sql.lock).then(
      () => {
        // Whoever kept us waiting has committed.
        if (this.#state === 'queued') this.#onGranted()
        this.#state = 'granted'
      },
      (error) => {
        this.#state = 'failed'
        this.#error = error
      },
    )
    await Promise.race([this.#lock, soon()])
    while (this.#state === 'asking') {
      const queued = `SELECT 1 FROM pg_locks WHERE pid = $1::text::int AND locktype = 'advisory' AND NOT granted`
      const { count } = await this.#other.query(queued, [this.#pid])
      if (count > 0 && this.#state === 'asking') this.#state = 'queued'
      else await Promise.race([this.#lock, soon()])
    }
    if (this.#state === 'failed') throw this.#error
  }

  async touch(): Promise<void> {
    if (this.#state === 'granted') await this.#locker.query('SELECT 1')
  }

  async down(): Promise<void> {
    if (this.#state === 'queued') await this.#other.query('SELECT pg_cancel_backend($1::text::int)', [this.#pid])
    await this.#lock
    if (this.#state !== 'granted') return
    // The lock may have been given just before the cancel, which then hits this statement instead.
    await this.#locker.query(this.#sql.unlock).catch(() => this.#locker.query(this.#sql.unlock))
  }
}

/** Long enough for a lock that is free to be given, short enough not to be felt. */
function soon(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 2))
}
