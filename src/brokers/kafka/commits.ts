import type { Clock } from '../../core/index.ts'

/** A commit begins when so many wait for one, */
const MOST = 1000
/** or so many milliseconds after the one before. What waits, or is on its way, comes again after a crash. */
const EVERY = 50

/**
 * When to commit what is done. A commit is a round trip, whether for one record or a thousand: each batch of a few
 * would cost more in commits than in work. So what is done is said at once when nothing was for a while, and then
 * together with what follows it. Under load nobody waits for the answer, unless it takes too long: it stands behind the
 * records that are on their way on the same connection.
 */
export class OffsetCommits {
  readonly #clock: Clock
  readonly #commit: () => Promise<void>
  readonly #over = new AbortController()
  #began = Number.NEGATIVE_INFINITY
  #unsaid = 0
  #failed = false
  #waiting = false
  #underWay = false
  #turn: Promise<unknown> = Promise.resolve()

  constructor(clock: Clock, commit: () => Promise<void>) {
    this.#clock = clock
    this.#commit = commit
  }

  /** So many more are done. Resolves when they are committed, or may wait. */
  async done(count: number): Promise<void> {
    this.#unsaid += count
    // After a failure whoever settles is to hear of it, and to wait.
    if (this.#failed || this.#clock.monotonic() >= this.#began + EVERY) await this.now()
    else if (this.#unsaid >= MOST && !this.#underWay) this.now().catch(() => {})
    else if (!this.#waiting) void this.#later()
  }

  /** One after the other: one that is repeated must not take back what a later one has said. */
  async now(): Promise<void> {
    const commit = this.#turn.then(() => this.#say())
    this.#turn = commit.catch(() => {})
    await commit
  }

  /** Nothing more is committed by itself. Resolves when nothing is on its way. */
  async end(): Promise<void> {
    this.#over.abort()
    await this.#turn
  }

  async #say(): Promise<void> {
    const unsaid = this.#unsaid
    this.#began = this.#clock.monotonic()
    this.#unsaid = 0
    this.#underWay = true
    try {
      await this.#commit()
      this.#failed = false
    } catch (error) {
      this.#unsaid += unsaid
      this.#failed = true
      throw error
    } finally {
      this.#underWay = false
    }
  }

  async #later(): Promise<void> {
    this.#waiting = true
    const { signal } = this.#over
    await this.#clock.sleep(EVERY, signal)
    this.#waiting = false
    // If it fails, the next settle or take tries again, and gets the error.
    if (this.#unsaid > 0 && !signal.aborted) await this.now().catch(() => {})
  }
}
