import type { Clock } from '../core/index.ts'
import type { Position } from './port.ts'

/** How far a projection is behind its log. */
export interface ProjectionLag {
  /** Numbers between it and the end of the log: as many events, where no transaction was rolled back. */
  readonly numbers: number
  /** The age of the first event it has not applied; 0: it has all. */
  readonly seconds: number
}

/** Keeps what the owner of a projection knows of its lag, without asking for it. */
export class Lag {
  readonly #clock: Clock
  /** The end of the log, when it was last asked for. */
  #end: Position
  /** When it had everything last. */
  #freshAt: number
  /** Of the first event that is not applied, or of the transaction that holds it back. */
  #since: number | undefined
  #unknown = false

  constructor(clock: Clock, end: Position) {
    this.#clock = clock
    this.#end = end
    this.#freshAt = clock.now()
  }

  /** The end of the log is here. */
  endsAt(end: Position): void {
    this.#end = end
  }

  /** There is something to apply, as old as this. */
  behind(since: Date): void {
    this.#since = since.getTime()
    this.#unknown = false
  }

  caughtUp(): void {
    this.#since = undefined
    this.#unknown = false
    this.#freshAt = this.#clock.now()
  }

  /** Nobody knows what there is: the log cannot be read, or it could not be applied. */
  failed(): void {
    this.#unknown = true
  }

  at(position: Position): ProjectionLag {
    const since = this.#since ?? (this.#unknown ? this.#freshAt : undefined)
    const seconds = since === undefined ? 0 : Math.max(0, (this.#clock.now() - since) / 1000)
    return { numbers: this.#end > position ? Number(this.#end - position) : 0, seconds }
  }
}
