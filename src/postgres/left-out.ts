import type { Clock } from '../core/index.ts'
import { idOf, keyOf, numberOf, type Row } from './row.ts'
import type { UnsettledRows } from './unsettled.ts'

/** How long before they are tried again, in milliseconds. */
const LEAVE_OUT_FOR = 60_000

/**
 * Rows that were read, are not to be handed out, and that cannot be put aside: a trigger or a constraint refuses it, or
 * somebody has locked them. Read again, each would stop every take. So takes leave them out for a minute, and what comes
 * behind one of its key with it: nothing may overtake it.
 *
 * So it is with what comes behind an unsettled event whose failure the table refuses to note. Its key stands still, and given
 * back, those would be read again and again in place of all others.
 */
export class LeftOut {
  readonly #unsettled: UnsettledRows
  readonly #clock: Clock
  /** Their numbers, by event id. */
  readonly #numbers = new Map<string, number>()
  /** The lowest number of each key. */
  readonly #keys = new Map<string, number>()
  /** Keys that stand still behind an unsettled one, and its number. */
  readonly #stopped = new Map<string, number>()
  #until = 0

  constructor(unsettled: UnsettledRows, clock: Clock) {
    this.#unsettled = unsettled
    this.#clock = clock
  }

  get size(): number {
    return this.#numbers.size
  }

  add(row: Row): void {
    if (this.#numbers.size === 0) this.#until = this.#clock.monotonic() + LEAVE_OUT_FOR
    const number = numberOf(row)
    this.#numbers.set(idOf(row), number)
    this.#unsettled.add(idOf(row), number)
    const key = keyOf(row)
    if (key !== undefined) this.#keys.set(key, Math.min(number, this.#keys.get(key) ?? number))
  }

  /** What is behind this one is left out. */
  stop(key: string, number: number): void {
    this.#stopped.set(key, number)
  }

  /** It is settled after all: those behind it are found again at once. */
  goOn(key: string | undefined, number: number): void {
    if (key === undefined || this.#stopped.get(key) !== number) return
    this.#stopped.delete(key)
    this.#until = 0
  }

  /** Whether an earlier one of its key is left out, or stops it. */
  isBehind(row: Row): boolean {
    const key = keyOf(row)
    if (key === undefined) return false
    const number = numberOf(row)
    return number > (this.#keys.get(key) ?? number) || number > (this.#stopped.get(key) ?? number)
  }

  /** Whether any row can be behind one. */
  get any(): boolean {
    return this.#numbers.size > 0 || this.#stopped.size > 0
  }

  /** Returns whether their time is over: then they are found again. */
  over(): boolean {
    if (this.#numbers.size === 0 || this.#clock.monotonic() < this.#until) return false
    for (const [id, number] of this.#numbers) this.#unsettled.delete(id, number)
    this.#numbers.clear()
    this.#keys.clear()
    return true
  }
}
