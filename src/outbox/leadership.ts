/** The right to settle one shard, until it expires or is taken over. */
export interface Term {
  readonly shard: number
  /** Grows with every holder: a settlement under an older one changes nothing. */
  readonly epoch: string
  /** The holder before ended without releasing it: it died, or was cut off. */
  readonly abandoned: boolean
  /** What the holder before had recorded as going out alone when it ended. */
  readonly probe: string | undefined
}

/** Who has a right at present, and for how many milliseconds more unless it is renewed. */
export interface Holder {
  readonly holder: string
  readonly expiresIn: number
}

/** One that takes part, and how: members of different modes exclude each other. */
export interface Member {
  readonly name: string
  readonly mode: string
}

/**
 * Who may work on one scope, among many processes on many machines: the relays of an outbox, the projectors of a
 * projection. All times are the store's own. A term is a row with an epoch and an expiry, not a lock: a lock outlives a
 * holder nobody can reach, and dies before its holder knows.
 */
export interface Leadership {
  /**
   * Renews a member for `lease` milliseconds from now. `excludedBy`: live members of another mode keep it out; the one
   * that lives longest is named.
   */
  join(
    member: string,
    mode: string,
    lease: number,
  ): Promise<{ readonly excludedBy?: Holder & { readonly mode: string } }>
  leave(member: string): Promise<void>
  /** Live members, by name. */
  members(): Promise<readonly Member[]>
  /** Live terms, by shard. */
  terms(): Promise<readonly (Holder & { readonly shard: number })[]>
  /** Takes the term of a shard that is free, expired, or `member`'s own; `undefined` while another holds it. */
  acquire(member: string, shard: number, lease: number): Promise<Term | undefined>
  /** `false`: it has passed on. Whoever holds a term lives: its membership is renewed with it. */
  renew(member: string, term: Term, lease: number): Promise<boolean>
  /** Records what goes out alone next, or that nothing does, for the next holder. A stale term records nothing. */
  recordProbe(term: Term, probe: string | undefined): Promise<void>
  release(member: string, term: Term): Promise<void>
}
