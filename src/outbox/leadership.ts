/** The right to settle one shard, until it expires or is taken over. */
export interface Term {
  readonly shard: number
  /** Grows with every holder: a settlement under an older one changes nothing. */
  readonly epoch: string
  /** The holder before ended without releasing it: it died, or was cut off. */
  readonly abandoned: boolean
  /** The message the holder before had noted as alone in flight when it ended. */
  readonly note: string | undefined
}

/**
 * Who may read an outbox, among many relays on many machines. All times are the store's own. A term is a row with an
 * epoch and an expiry, not a lock: a lock outlives a holder nobody can reach, and dies before its holder knows.
 */
export interface Leadership {
  /**
   * Says that `member` lives, for `lease` milliseconds from now, and reads in this `mode`. Members of another mode that
   * still live keep it out: the answer is then their mode.
   */
  join(member: string, mode: string, lease: number): Promise<string | undefined>
  leave(member: string): Promise<void>
  /** Live members, in a stable order. */
  members(): Promise<readonly string[]>
  /** Live terms: which shard is whose. */
  terms(): Promise<readonly { readonly shard: number; readonly holder: string }[]>
  /** Takes the term of a shard that is free, expired, or `member`'s own; `undefined` while another holds it. */
  acquire(member: string, shard: number, lease: number): Promise<Term | undefined>
  /** `false`: it has passed on. */
  renew(member: string, term: Term, lease: number): Promise<boolean>
  release(member: string, term: Term): Promise<void>
}
