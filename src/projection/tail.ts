import { type Clock, telemetry, Wakeup } from '../core/index.ts'
import { Task } from '../flow/index.ts'
import type { HeldBy, Log, LogListener, LogPage, Position } from './port.ts'

/** How soon to look again while a transaction keeps the log back, in milliseconds. */
const HELD_POLL = 5
/** A transaction that has kept it back for so long is reported by `status()` and telemetry. */
const LONG_HELD = 1000
/** And as often again by telemetry. */
const TELL_HELD = 5000

/** The end of a log, read once for all projections of a process that have caught up. */
export class Tail extends Task {
  readonly log: Log
  readonly #poll: number
  readonly #limit: number
  readonly #asked: Wakeup
  readonly #followers = new Set<() => void>()
  #listener: LogListener | undefined
  #listens = false
  /** What was read last, from `#from` to `#upTo`. */
  #page: LogPage | undefined
  #from: Position = 0n
  #upTo: Position | undefined
  /** The id of the event at `#upTo`, as it was looked for last. */
  #before: LogPage['before']
  #heldBy: HeldBy | undefined
  /** When to report again, by the monotonic clock; `undefined`: not reported yet. */
  #tellAt: number | undefined

  constructor(log: Log, options: { name: string; poll: number; limit: number; clock: Clock }) {
    const { name, poll, limit, clock } = options
    super({ name, every: 0, run: (signal) => this.#round(signal), backoff: { min: 100, max: 5000 }, clock })
    this.log = log
    this.#poll = poll
    this.#limit = limit
    this.#asked = new Wakeup(clock)
  }

  /** Who keeps the log back at present. */
  get heldBy(): HeldBy | undefined {
    return this.#heldBy
  }

  /** Calls `wake` whenever there is something new. */
  follow(wake: () => void): void {
    this.#followers.add(wake)
  }

  /** Like `log.read`; without a query for those at the end, who are woken when there is more. */
  async read(after: Position): Promise<LogPage> {
    if (this.started && this.#upTo === after) {
      return { events: [], upTo: after, heldBy: this.#heldBy, before: this.#before }
    }
    const page = this.#page
    if (page !== undefined && after === this.#from && after !== this.#upTo) return page
    const read = await this.log.read(after, this.#limit)
    if (read.upTo === after && (this.#upTo === undefined || this.#upTo < after)) this.#begin(after, read)
    return read
  }

  #begin(at: Position, read: LogPage): void {
    this.#upTo = at
    this.#page = undefined
    this.#before = read.before
    this.#heldBy = read.heldBy
    this.#asked.wake()
  }

  async #round(signal: AbortSignal): Promise<void> {
    const from = this.#upTo
    // Nobody has caught up yet.
    if (from === undefined) {
      await this.#asked.pause(this.#poll, signal)
      return
    }
    const page = await this.log.read(from, this.#limit)
    this.#heldBy = page.heldBy
    this.#showHeld()
    if (page.upTo === from) {
      this.#before = page.before
      await this.#rest(page.heldBy !== undefined, signal)
      return
    }
    this.#listener?.busy()
    this.#page = page
    this.#from = from
    this.#upTo = page.upTo
    this.#before = undefined
    for (const wake of this.#followers) wake()
  }

  async #rest(held: boolean, signal: AbortSignal): Promise<void> {
    if (!this.#listens) {
      this.#listener = await this.log.listen?.()
      this.#listens = true
    }
    // While the log is held back, whoever is idle would have every writer notify.
    if (held) {
      this.#listener?.busy()
      await this.clock.sleep(HELD_POLL, signal)
    } else if (this.#listener === undefined) await this.clock.sleep(this.#poll, signal)
    else {
      try {
        await this.#listener.wait(this.#poll, signal)
      } catch (error) {
        await this.#close()
        throw error
      }
    }
  }

  #showHeld(): void {
    const heldBy = this.#heldBy
    const heldFor = heldBy === undefined ? 0 : this.clock.now() - heldBy.since.getTime()
    if (heldBy === undefined || heldFor < LONG_HELD) {
      this.condition.clear('held')
      this.#letGo()
      return
    }
    this.condition.hinder('held', 'waiting', heldText(heldBy))
    const now = this.clock.monotonic()
    if (this.#tellAt !== undefined && now < this.#tellAt) return
    this.#tellAt = now + TELL_HELD
    const { pid, prepared } = heldBy
    telemetry['projection.held'].publish({ log: this.log.id, pid, prepared, heldFor })
  }

  /** Says that nobody holds it back any more, if it was said that somebody does. */
  #letGo(): void {
    if (this.#tellAt === undefined) return
    this.#tellAt = undefined
    telemetry['projection.held'].publish({ log: this.log.id, pid: undefined, prepared: undefined, heldFor: 0 })
  }

  async #close(): Promise<void> {
    const listener = this.#listener
    this.#listener = undefined
    this.#listens = false
    await listener?.close().catch(() => {})
  }

  protected override async ended(): Promise<void> {
    this.#upTo = this.#page = this.#before = this.#heldBy = undefined
    this.#letGo()
    await this.#close()
  }
}

/** Who keeps a log back, in words. */
export function heldText({ pid, prepared, since }: HeldBy): string {
  const who =
    pid === undefined ? `the prepared transaction ${prepared ?? ''}`.trim() : `the transaction of process ${pid}`
  return `${who} has been open since ${since.toISOString()} at least, and may still write below what others have written`
}
