import { type Clock, describe, uuidv7, WaybillError, wholeNumber } from '../core/index.ts'
import type { Log, LogEvent, LogHead, LogPage, LogToken, Position } from '../projection/port.ts'
import { tokenOf } from '../store/log.ts'
import { messageOf, type Row } from './row.ts'

/**
 * An outbox in memory as a log: every event that was committed, whatever became of it since. Numbers are drawn before the
 * commit, as on a server, so it is read up to the lowest that is drawn and not committed.
 */
export class MemoryLog implements Log {
  readonly id: string
  readonly #clock: Clock
  readonly #incarnation = uuidv7()
  /** In the order of their numbers. */
  readonly #rows: Row[] = []
  /** Numbers that open transactions have drawn, and since when. */
  readonly #open = new Map<number, Date>()
  readonly #waiting = new Set<() => void>()
  #trimmed = 0

  constructor(id: string, clock: Clock) {
    this.id = id
    this.#clock = clock
  }

  drawn(sequence: number): void {
    this.#open.set(sequence, new Date(this.#clock.now()))
  }

  /** The transaction that drew it has ended. */
  ended(sequence: number): void {
    this.#open.delete(sequence)
    for (const wake of [...this.#waiting]) wake()
  }

  committed(row: Row): void {
    let at = this.#rows.length
    while (at > 0 && this.#rows[at - 1]!.sequence > row.sequence) at--
    this.#rows.splice(at, 0, row)
  }

  async head(): Promise<LogHead> {
    const last = this.#rows.at(-1)?.sequence ?? 0
    const trimmed = BigInt(this.#trimmed)
    return { position: BigInt(Math.max(last, this.#trimmed)), trimmed, incarnation: this.#incarnation }
  }

  async read(after: Position, limit: number): Promise<LogPage> {
    if (typeof after !== 'bigint' || after < 0n) {
      throw new WaybillError(
        'INVALID_OPTION',
        `log: ${describe(after)} is not a position, which is a bigint from 0n on`,
      )
    }
    wholeNumber('log: limit', limit, { max: 10_000 })
    if (after < BigInt(this.#trimmed)) {
      const text = `${this.id} was trimmed up to ${this.#trimmed}, and ${after} was asked for: what was there is gone; start after it`
      throw new WaybillError('LOG_TRIMMED', text)
    }
    let lowest = Number.POSITIVE_INFINITY
    for (const sequence of this.#open.keys()) lowest = Math.min(lowest, sequence)
    const events: LogEvent[] = []
    const first = this.#behind(Number(after))
    const before = this.#before(after, first)
    for (let at = first; at < this.#rows.length && events.length < limit; at++) {
      const row = this.#rows[at]!
      if (row.sequence > lowest) {
        if (events.length > 0) break
        const heldBy = { pid: undefined, prepared: undefined, since: this.#open.get(lowest)! }
        return { events, upTo: after, heldBy, before }
      }
      events.push(eventOf(row))
    }
    return { events, upTo: events.at(-1)?.position ?? after, heldBy: undefined, before }
  }

  token(receipts: string | readonly string[]): LogToken {
    return tokenOf({ id: this.id, incarnation: this.#incarnation }, receipts)
  }

  /** Removes events before a position; returns how many. */
  trim(before: Position): number {
    const end = this.#behind(Number(before) - 1)
    this.#trimmed = Math.max(this.#trimmed, Number(before) - 1)
    return this.#rows.splice(0, end).length
  }

  async listen() {
    let notified = false
    let wake = () => {}
    const listener = () => {
      notified = true
      wake()
    }
    this.#waiting.add(listener)
    return {
      wait: async (ms: number, signal: AbortSignal) => {
        if (!notified) {
          const over = new AbortController()
          wake = () => over.abort()
          await this.#clock.sleep(ms, AbortSignal.any([signal, over.signal])).catch(() => {})
        }
        notified = false
      },
      busy: () => {},
      close: async () => {
        this.#waiting.delete(listener)
        wake()
      },
    }
  }

  #before(after: Position, next: number): LogPage['before'] {
    if (after === BigInt(this.#trimmed)) return undefined
    const row = this.#rows[next - 1]
    return row !== undefined && BigInt(row.sequence) === after ? row.message.id : null
  }

  /** The index of the first behind a number. */
  #behind(sequence: number): number {
    let low = 0
    let high = this.#rows.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#rows[middle]!.sequence > sequence) high = middle
      else low = middle + 1
    }
    return low
  }
}

function eventOf(row: Row): LogEvent {
  const { sequence, key, message, createdAt } = row
  return {
    position: BigInt(sequence),
    id: message.id,
    key,
    type: message.type,
    recordedAt: new Date(createdAt),
    message: messageOf(row),
    unreadable: undefined,
  }
}
