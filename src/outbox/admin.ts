import type { RawMessage } from '../core/index.ts'

/**
 * What an event in an outbox can be. Drawn once in docs/internals.md; every store uses these words.
 * - `ready`: may be dispatched now; `scheduled`: not before its time;
 * - `retrying`: failed, waits for its next try; `leased`: a competing relay works on it;
 * - `held`: waits for an earlier event of its key; `published`: done; `dead`: kept for a person.
 */
export const STATES = ['ready', 'scheduled', 'retrying', 'leased', 'held', 'published', 'dead'] as const
export type State = (typeof STATES)[number]

/** One event as an operator sees it. The payload is shown only on request. */
export interface OutboxEntry {
  readonly eventId: string
  readonly sequence: string
  readonly state: State
  readonly tenant: string
  readonly topic: string
  readonly key: string | undefined
  readonly type: string
  readonly version: number
  readonly attempts: number
  readonly lastError: string | undefined
  readonly createdAt: Date
  readonly availableAt: Date | undefined
  readonly publishedAt: Date | undefined
}

/** Which events. All that are given must hold. */
export interface OutboxFilter {
  eventIds?: readonly string[]
  states?: readonly State[]
  tenant?: string
  topic?: string
  type?: string
  key?: string
  /** Created at or after / before. */
  since?: Date
  until?: Date
}

export interface Page {
  limit?: number
  /** The sequence of the last entry seen. */
  after?: string
}

/** A count and a sample of what an action would touch, so that a person can look before it happens. */
export interface Preview {
  readonly count: number
  readonly sample: readonly OutboxEntry[]
}

export interface OutboxStats {
  /** Exact, or an estimate where counting would mean a long scan. */
  readonly states: Readonly<Record<State, { readonly count: number; readonly estimated: boolean }>>
  /** Seconds since the oldest event that could be dispatched was created. */
  readonly oldestReadySeconds: number | undefined
  readonly blockedKeys: number
}

/** Who did it and why. Kept for good. */
export interface Audit {
  readonly by: string
  readonly note: string
}

/** What people do with an outbox. Every action answers how many it changed. */
export interface OutboxAdmin {
  list(filter?: OutboxFilter, page?: Page): Promise<readonly OutboxEntry[]>
  show(eventId: string): Promise<{ readonly entry: OutboxEntry; readonly message: RawMessage } | undefined>
  preview(filter: OutboxFilter): Promise<Preview>
  /** Dead events get all their attempts again. Their place in the order of their key is kept. */
  rearm(filter: OutboxFilter): Promise<number>
  /** Dead events are removed, with an audit note. What they blocked goes on. */
  discardDead(filter: OutboxFilter, audit: Audit): Promise<number>
  /** Events not yet published are removed: only by tenant or topic within a time window, with an audit note. */
  discardPending(filter: OutboxFilter & { since: Date; until: Date }, audit: Audit): Promise<number>
  /** Published events are sent again. Under the same ids, so that inboxes skip what they have, unless `asNew`. */
  replay(filter: OutboxFilter, options?: { asNew?: boolean }): Promise<number>
  stats(): Promise<OutboxStats>
  /** Removes published events older than `retention` milliseconds, at most `limit`; answers how many. */
  clean(options: { retention: number; limit: number }): Promise<number>
}
