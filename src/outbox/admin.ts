import type { RawMessage } from '../core/index.ts'

/**
 * What an event in an outbox can be. Drawn once in docs/internals.md; every store uses these words.
 * - `ready`: may be dispatched now; `scheduled`: not before its time;
 * - `retrying`: failed, waits for its next try; `leased`: a competing relay works on it;
 * - `held`: waits for an earlier event of its key; `published`: done; `dead`: kept for a person.
 */
export const STATES = ['ready', 'scheduled', 'retrying', 'leased', 'held', 'published', 'dead'] as const
/** Where a row of an outbox stands on its way. */
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
  /** Where a list goes on behind this entry, see `Page.after`. Means nothing to anybody else. */
  readonly cursor: string
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
  /** Default 50, at most 1000. */
  limit?: number
  /** The cursor of the last entry seen. */
  after?: string
}

/** What can be done with events, as it stands in the audit. */
export const ACTIONS = ['rearm', 'discard-dead', 'discard-pending', 'replay'] as const
export type AdminAction = (typeof ACTIONS)[number]

/** A count and a sample of what an action would touch, so that a person can look before it happens. */
export interface Preview {
  readonly count: number
  /** `false`: there are more; counting ended here. */
  readonly exact: boolean
  readonly sample: readonly OutboxEntry[]
}

/** A number, and whether it is an estimate, because counting would mean a long scan. */
export interface Count {
  readonly count: number
  readonly estimated: boolean
}

/** How many events an outbox holds in each state, and how old the oldest is. */
export interface OutboxStats {
  readonly states: Readonly<Record<State, Count>>
  /** For how many seconds the oldest event that could be dispatched has waited: since it was created, or was due. */
  readonly oldestReadySeconds: number | undefined
  /** Keys with events that wait for an earlier one. */
  readonly blockedKeys: Count
  /** Parts that could not be asked, so that nothing of them is counted. Absent: all were. */
  readonly missing?: readonly MissingPart[]
}

/** A part of an outbox, such as a shard on another server, that could not be asked. */
export interface MissingPart {
  readonly part: string
  readonly reason: string
}

/** Entries; and which parts of the outbox could not be asked for theirs, if any. */
export type OutboxEntries = readonly OutboxEntry[] & { readonly missing?: readonly MissingPart[] }

/** How far events are counted, where that costs time. */
export interface StatsOptions {
  /** Up to so many of a state are counted one by one, whatever the others hold. Default 10,000, which costs next to nothing. */
  exactUpTo?: number
  /**
   * For those who look every few seconds: in how many milliseconds. What cannot be counted in that time is an estimate, and
   * a count that took long is shared for twenty times as long. Default: no such limit.
   */
  within?: number
  /** Whether published ones are counted too. Default true. */
  published?: boolean
}

/** Who did it and why. Kept for good. */
export interface Audit {
  readonly by: string
  readonly note: string
}

export interface AuditEntry extends Audit {
  readonly id: string
  readonly at: Date
  /** What was done. `discard` of pending events and `replay` are among them; `trim` is of a log as a whole. */
  readonly action: AdminAction | 'trim'
  readonly filter: Readonly<Record<string, unknown>>
  readonly count: number
}

/** Lines of the audit; and which parts of the outbox could not be asked for theirs, if any. */
export type AuditEntries = readonly AuditEntry[] & { readonly missing?: readonly MissingPart[] }

/** What is not published yet goes only by tenant or topic, within a time window. */
export type PendingFilter = OutboxFilter & { since: Date; until: Date } & ({ tenant: string } | { topic: string })

/**
 * What people do with an outbox. Every action is one transaction with its line in the audit, and returns how many
 * events it changed. Nothing but `show` gives a payload.
 */
export interface OutboxAdmin {
  readonly name: string
  /** State by state: dead, retrying, held, leased, scheduled and ready ones in their order, published ones newest first. */
  list(filter?: OutboxFilter, page?: Page): Promise<OutboxEntries>
  show(eventId: string): Promise<{ readonly entry: OutboxEntry; readonly message: RawMessage } | undefined>
  /** What the action would touch now. */
  preview(action: AdminAction, filter: OutboxFilter): Promise<Preview>
  /**
   * Dead events get all their attempts again, the earliest first, at most `limit` (default 100,000). Their place in the
   * order of their key is kept: what waits for them goes on waiting until they are published.
   */
  rearm(filter: OutboxFilter, audit?: Audit, options?: { limit?: number }): Promise<number>
  /** Dead events are removed, the earliest first, at most `limit` (default 100,000). What they blocked goes on. */
  discardDead(filter: OutboxFilter, audit: Audit, options?: { limit?: number }): Promise<number>
  /**
   * Events not yet published are removed. `expected` is the count of the preview: is it another by now, nothing happens.
   * What a relay is publishing at this moment may still arrive.
   */
  discardPending(filter: PendingFilter, audit: Audit, options: { expected: number }): Promise<number>
  /**
   * Published events are sent again, in their order, behind what is pending now. Under the same ids, so that inboxes
   * skip what they have, unless `asNew`. More than `limit` (default 100,000) is refused.
   */
  replay(filter: OutboxFilter, audit?: Audit, options?: { asNew?: boolean; limit?: number }): Promise<number>
  /** What was done, newest first. `after` is the id of the last line seen. */
  audits(page?: Page): Promise<AuditEntries>
  stats(options?: StatsOptions): Promise<OutboxStats>
  /** Removes published events older than `retention` milliseconds, at most `limit`; returns how many. */
  clean(options?: { retention?: number; limit?: number }): Promise<number>
}
