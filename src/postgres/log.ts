import {
  type Clock,
  describe,
  type RawMessage,
  systemClock,
  telemetry,
  Unavailable,
  uuidv7,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { Turns } from '../drivers/sql/connection.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import type { HeldBy, Log, LogEvent, LogHead, LogListener, LogPage, LogToken, Position } from '../projection/port.ts'
import { tokenOf } from '../store/log.ts'
import { AT } from './columns.ts'
import { explained } from './errors.ts'
import { LogBound, type Writer } from './log-bound.ts'
import type { OutboxNames } from './names.ts'
import { PoolBudget } from './pool-budget.ts'
import { createdOf, deliveriesOf, idOf, keyOf, numberOf, type Row, sequenceOf, typeOf, withinBytes } from './row.ts'
import { sql } from './sql.generated.ts'
import { IdleNotifier } from './wake.ts'

/** Of payloads in one page. */
const PAGE_BYTES = 16 * 1024 * 1024

/** What log-read.sql adds to the columns of a scan. */
const MARK = AT.size + 1
const TRIMMED = AT.size + 2
const BEFORE = AT.size + 3

/** Rows after a position, their numbers, and how many of the first can be given. */
interface LogRows {
  readonly rows: readonly Row[]
  readonly numbers: readonly Position[]
  readonly given: number
  readonly before: LogPage['before']
}

/** One event, as it was read. When it was written is asked of the first of a page: to parse all would cost more than that. */
class StoredEvent implements LogEvent {
  readonly position: Position
  readonly id: string
  readonly key: string | undefined
  readonly type: string
  readonly message: RawMessage | undefined
  readonly unreadable: string | undefined
  readonly #row: Row

  constructor(row: Row, position: Position, message: RawMessage | undefined, unreadable: string | undefined) {
    this.position = position
    this.id = idOf(row)
    this.key = keyOf(row)
    this.type = typeOf(row)
    this.message = message
    this.unreadable = unreadable
    this.#row = row
  }

  get recordedAt(): Date {
    return new Date(createdOf(this.#row))
  }
}

/**
 * An outbox that was declared a log, with its archive. A read gives
 *
 * 1. a run of numbers without a gap: nothing can appear in it;
 * 2. what is below the bound (log-bound.ts). Where a gap is met, it looks who writes, and reads again if nobody does.
 */
export class PostgresLog implements Log {
  readonly id: string
  readonly #db: Database
  readonly #names: OutboxNames
  readonly #clock: Clock
  readonly #bound = new LogBound()
  /** Looks must be judged in the order in which they were made. */
  readonly #turns = new Turns()
  readonly #sql: Readonly<Record<'read' | 'ends' | 'look' | 'prepared', string>>
  /** There is a gap behind this one: look first, and read when it is worth it. */
  #gapAt: Position | undefined
  #held: HeldBy | undefined
  #incarnation: string | undefined
  #asked = false

  constructor(db: Database, names: OutboxNames, clock: Clock = systemClock) {
    this.id = names.table.text
    this.#db = db
    this.#names = names
    this.#clock = clock
    this.#sql = {
      read: names.fill(sql['log-read']),
      ends: names.fill(sql['log-ends']),
      look: names.fill(sql['log-look']),
      prepared: names.fill(sql['log-prepared']),
    }
  }

  /** Throws where numbers are not drawn one by one: nothing could be said of what may still appear. */
  async check(): Promise<void> {
    await this.#explained(() => this.#look(0n))
  }

  async head(): Promise<LogHead> {
    const { last, trimmed, incarnation } = await this.#explained(() => this.#ends())
    return { position: last === undefined || last < trimmed ? trimmed : last, trimmed, incarnation }
  }

  async read(after: Position, limit: number): Promise<LogPage> {
    if (typeof after !== 'bigint' || after < 0n) {
      throw new WaybillError(
        'INVALID_OPTION',
        `log: ${describe(after)} is not a position, which is a bigint from 0n on`,
      )
    }
    wholeNumber('log: limit', limit, { max: 10_000 })
    return this.#explained(() => this.#read(after, limit))
  }

  token(receipts: string | readonly string[]): LogToken {
    return tokenOf({ id: this.id, incarnation: this.#incarnation }, receipts)
  }

  /**
   * Before the first token: which log this is, asked for on the connection that has just written to it. A role that may only
   * write gets tokens without it: its transaction must not fail for that.
   */
  async learn(on: Sql): Promise<void> {
    if (this.#asked) return
    const table = this.#names.fill('{{log}}')
    const asked = await on.query(`SELECT has_table_privilege(to_regclass('${table}'), 'SELECT')::text AS readable`)
    if (asked.rows[0]?.['readable'] === 'true') {
      const { rows } = await on.query(`SELECT incarnation::text AS incarnation FROM ${table}`)
      this.#incarnation = rows[0]?.['incarnation'] as string | undefined
    }
    this.#asked = true
  }

  /**
   * Two connections of the pool: one hears, one holds the idle flag. Behind a pooler there are no notifications; and where
   * the pool is so small that nothing would be left to read and to apply with, a reader that polls is better than none.
   */
  async listen(): Promise<LogListener | undefined> {
    const budget = PoolBudget.of(this.#db)
    const member = uuidv7()
    try {
      await budget.keep(member, {
        group: member,
        count: 2,
        what: `a reader of the log ${this.id} keeps 2, to be woken`,
      })
    } catch (error) {
      if (!(error instanceof WaybillError) || error.code !== 'POOL_TOO_SMALL') throw error
      const message = `it is not notified of new events, and polls: ${error.message}`
      telemetry.warning.publish({ where: `log ${this.id}`, message })
      return undefined
    }
    let listener: LogListener | undefined
    try {
      listener = await this.#listen(() => budget.leave(member))
      return listener
    } finally {
      if (listener === undefined) budget.leave(member)
    }
  }

  async #listen(onClose: () => void): Promise<LogListener | undefined> {
    const { single } = this.#db
    const connect = () => this.#db.connect({ prepare: false, applicationName: `waybill log ${this.id}` })
    const listener = await connect()
    if (listener.pooled) {
      await listener.release()
      return undefined
    }
    let lost: unknown
    listener.onLost((error) => {
      lost = error ?? new Error('it was closed')
    })
    const options = { listener, names: this.#names, clock: this.#clock, idleTimeout: 600_000, timeout: 5000 }
    const wake = new IdleNotifier({ ...options, connect: single ? undefined : connect })
    return {
      async wait(ms, signal) {
        if (lost !== undefined) throw new Unavailable('the connection that hears of commits is lost', { cause: lost })
        // When the flag has just gone up, look once more: earlier commits notified nobody.
        if (wake.notified() || ((await wake.goIdle()) && !Number.isFinite(wake.retryIn))) return
        await wake.sleep(Math.min(ms, wake.retryIn), signal)
        wake.notified()
      },
      busy: () => wake.goBusy(),
      close: async () => {
        onClose()
        await wake.close()
        await listener.release(true)
      },
    }
  }

  async #read(after: Position, limit: number): Promise<LogPage> {
    if (this.#gapAt === after && this.#bound.safe <= after) {
      const first = await this.#look(after)
      if (first !== undefined && first !== after + 1n && this.#bound.safe < first) return this.#nothing(after)
    }
    let found = await this.#find(after, limit)
    // Twice where a checkpoint of the server has come between look and read.
    for (let looks = 0; found.given === 0 && found.rows.length > 0 && looks < 2; looks++) {
      this.#gapAt = after
      await this.#look(after)
      if (this.#bound.safe < found.numbers[0]!) return this.#nothing(after, true, found.before)
      // Begun after those writers have ended.
      found = await this.#find(after, limit)
    }
    if (found.given === 0) return this.#nothing(after, found.rows.length > 0, found.before)
    const events = await this.#events(found.rows.slice(0, found.given), found.numbers)
    const upTo = events.at(-1)!.position
    if (events.length === found.given && found.given < found.rows.length) this.#gapAt = upTo
    this.#held = undefined
    return { events, upTo, heldBy: undefined, before: found.before }
  }

  async #find(after: Position, limit: number): Promise<LogRows> {
    const { safe, mark: seenOn } = this.#bound
    const rows = await this.#db.read('log-read', this.#sql.read, [String(after), String(limit)])
    const mark = rows[0]?.[MARK] as string | undefined
    const trimmed = BigInt((rows[0]?.[TRIMMED] as string | null) ?? 0)
    this.#check(mark, trimmed, after)
    const events = rows[0] === undefined || sequenceOf(rows[0]) === null ? [] : inOrder(rows)
    const numbers = events.map((row) => BigInt(sequenceOf(row)))
    const bound = mark === seenOn ? safe : 0n
    let given = 0
    for (let last = after; given < events.length; given++) {
      const number = numbers[given]!
      if (number !== last + 1n && number > bound) break
      last = number
    }
    const before = after === trimmed ? undefined : (rows[0]![BEFORE] as string | null)
    return { rows: events, numbers, given, before }
  }

  /** Who writes now, and what that says of what may still appear. Returns the first number behind `after`. */
  #look(after: Position): Promise<Position | undefined> {
    return this.#turns.run(async () => {
      const [row] = await this.#db.read('log-look', this.#sql.look, [String(after)])
      const [first, last, names, mark, cache, step, cycles] = (row ?? []) as (string | null)[]
      this.#check(mark ?? undefined, 0n, undefined)
      this.#checkSequence(cache!, step!, cycles === 'true')
      this.#bound.at(mark!)
      const writers = names == null ? [] : names.split(',').map(writerOf)
      if (last != null) this.#bound.look(BigInt(last), writers, this.#clock.now())
      return first == null ? undefined : BigInt(first)
    })
  }

  #checkSequence(cache: string, step: string, cycles: boolean): void {
    if (Number(cache) === 1 && Number(step) >= 1 && !cycles) return
    throw new WaybillError(
      'LOG_UNSAFE',
      `${this.id}: its sequence has CACHE ${cache}, INCREMENT ${step}${cycles ? ', CYCLE' : ''}: a number may come to light after larger ones were read, so nothing is read; ALTER SEQUENCE … CACHE 1 INCREMENT 1 NO CYCLE`,
    )
  }

  async #events(rows: readonly Row[], numbers: readonly Position[]): Promise<LogEvent[]> {
    const within = withinBytes(rows, PAGE_BYTES)
    const { deliveries, unreadable } = await deliveriesOf(this.#db, this.#names, within, true)
    if (deliveries.length + unreadable.length < within.length) throw this.#trimmed('while it was read')
    const reasons = new Map(unreadable.map(({ row, reason }) => [row, reason]))
    let next = 0
    return within.map((row, i) => {
      const reason = reasons.get(row)
      const message = reason === undefined ? deliveries[next++]!.message : undefined
      return new StoredEvent(row, numbers[i]!, message as RawMessage | undefined, reason)
    })
  }

  async #nothing(after: Position, held = true, before?: LogPage['before']): Promise<LogPage> {
    const holder = held ? this.#bound.heldBy() : undefined
    if (holder === undefined) this.#held = undefined
    else if (this.#held?.since.getTime() !== holder.since || this.#held.pid !== holder.pid) {
      const prepared = holder.pid === undefined ? await this.#prepared(holder.name) : undefined
      this.#held = { pid: holder.pid, prepared, since: new Date(holder.since) }
    }
    return { events: [], upTo: after, heldBy: this.#held, before }
  }

  async #prepared(name: string): Promise<string | undefined> {
    const [row] = (await this.#db.query(this.#sql.prepared, [name])).rows
    return row?.['gid'] as string | undefined
  }

  async #ends() {
    const [row] = await this.#db.read('log-ends', this.#sql.ends, [])
    const [last, mark, trimmed, incarnation] = (row ?? []) as (string | null)[]
    this.#check(mark ?? undefined, BigInt(trimmed ?? 0), undefined)
    this.#incarnation = incarnation!
    this.#asked = true
    return {
      last: last == null ? undefined : BigInt(last),
      trimmed: BigInt(trimmed!),
      incarnation: incarnation!,
    }
  }

  #check(mark: string | undefined, trimmed: bigint, after: Position | undefined): void {
    if (mark === undefined) throw new WaybillError('OLD_SCHEMA', `${this.id} is no log; run migrate() with log: true`)
    if (mark === 'standby')
      throw new Unavailable('this is a standby, which does not show who writes; a log needs the primary')
    if (after !== undefined && after < trimmed) throw this.#trimmed(`up to ${trimmed}, and ${after} was asked for`)
  }

  #trimmed(how: string): WaybillError {
    const advice = 'what was there is gone; start after it'
    return new WaybillError('LOG_TRIMMED', `${this.id} was trimmed ${how}: ${advice}`)
  }

  async #explained<T>(fn: () => Promise<T>): Promise<T> {
    try {
      return await fn()
    } catch (error) {
      throw explained(error, `table ${this.id}`)
    }
  }
}

/** They come in order, unless a server plans the join otherwise one day. */
function inOrder(rows: readonly Row[]): readonly Row[] {
  const behind = rows.some((row, i) => i > 0 && numberOf(row) < numberOf(rows[i - 1]!))
  return behind ? [...rows].sort((a, b) => numberOf(a) - numberOf(b)) : rows
}

function writerOf(text: string): Writer {
  const [name, pid] = text.split(' ')
  return { name: name!, pid: pid ? Number(pid) : undefined }
}
