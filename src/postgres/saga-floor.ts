import type { Clock } from '../core/index.ts'

/** Where looks begin, as the server writes times; `undefined`: at the very beginning. */
export interface SagaBounds {
  /** For those that wait. */
  readonly due: string | undefined
  /** For those that a runner has. */
  readonly claimed: string | undefined
}

const ALL: SagaBounds = { due: undefined, claimed: undefined }
/** A look that passed over fewer entries than this costs about a millisecond: no need to spare it. */
const FEW = 1000
/** Milliseconds for each entry it passed over, which cost about a thousandth of one: two per cent of the time at most. */
const PAUSE = 0.05
const LONGEST = 30_000

/**
 * Where to begin to look for sagas that are due. What was claimed or has ended leaves an entry in the index until it is
 * vacuumed, and that is not before the oldest snapshot anywhere in the database is gone. So a look from the very beginning
 * may pass over more and more. One that passed over many is repeated after a while only; those in between begin where the
 * last one ended, which costs the same however old that snapshot is.
 *
 * It is a hint. Below it there may be a saga whose transaction was open for longer than a second, or that another was
 * writing: it is found by the next look from the beginning.
 */
export class SagaFloor {
  readonly claims: Pace
  readonly nexts: Pace
  #bounds = ALL

  constructor(clock: Clock) {
    this.claims = new Pace(clock)
    this.nexts = new Pace(clock)
  }

  /** For a look that passes over the entries this pace has counted. */
  boundsFor(pace: Pace): SagaBounds {
    return pace.isFree ? ALL : this.#bounds
  }

  /** All that waits and was due before `due` is claimed; nothing that a runner has was due before `claimed`, if given. */
  reached({ due, claimed = this.#bounds.claimed }: SagaBounds): void {
    this.#bounds = { due, claimed }
  }
}

/** How often looks from the beginning may come. */
export class Pace {
  readonly #clock: Clock
  #freeAt = Number.NEGATIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get isFree(): boolean {
    return this.#clock.monotonic() >= this.#freeAt
  }

  /** A look from the beginning passed over so many. */
  passed(entries: number): void {
    if (entries >= FEW) this.#freeAt = this.#clock.monotonic() + Math.min(LONGEST, entries * PAUSE)
  }
}
