/** The most events of a group. */
const MOST = 100

/**
 * Quarantine: an event whose lease expired may have crashed its relay. So it is claimed with nothing else in progress,
 * alone at first; while that does no harm, the next ones come in groups of 2, 4 … 100. Everything else waits for them, but
 * no longer than until a lease is renewed: only others that arrive show that a failure is no outage.
 *
 * The policy of one session that competes for events. It reads no clock and no store: the session reports what happened.
 */
export class Quarantine {
  /** Expired events are in progress, or are to come next. */
  #active = false
  #size = 1
  #othersWait = true

  /** Only expired events may be claimed, and nothing beside them. */
  get active(): boolean {
    return this.#active
  }

  /** How many expired events the next claim may take, of `count` in all. */
  allowance(count: number, inProgress: number): number {
    return inProgress > 0 ? 0 : Math.min(count, this.#size)
  }

  /** A claim: whether it has brought expired events, and whether there are more. */
  claimed({ expired, moreExpired }: { readonly expired: boolean; readonly moreExpired: boolean }): void {
    this.#active = expired || (this.#othersWait && moreExpired)
    // None of those before has done harm: the next may be more.
    if (expired) this.#size = Math.min(this.#size * 2, MOST)
  }

  settled(inProgress: number): void {
    if (inProgress === 0) this.#othersWait = true
  }

  /** The leases of what is in progress were renewed: it takes long, and others wait no more. */
  renewed(inProgress: number): void {
    if (this.#active && inProgress > 0) this.#othersWait = this.#active = false
  }
}
