import type { RawMessage } from '../core/index.ts'

/**
 * A place in a log: the number of an event. Numbers grow and have gaps. 0 is before the first. A bigint, since a number of
 * PostgreSQL may have more digits than a `number` keeps, and texts do not compare as numbers do.
 */
export type Position = bigint

/** One event of a log. The same number is always the same event, wherever it is stored by now. */
export interface LogEvent {
  readonly position: Position
  /** Given with the event. A log restored to an earlier time gives a number again, to an event of another id. */
  readonly id: string
  /** Events of one key come in the order in which their writers held the key's lock. */
  readonly key: string | undefined
  readonly type: string
  /** When it was written, by the store's clock; its transaction committed later. */
  readonly recordedAt: Date
  /** What was written, as a relay would send it; `undefined` where it cannot be read, see `unreadable`. */
  readonly message: RawMessage | undefined
  /** Why it cannot be read. It has a number and happened: whoever reads the log puts it aside, and goes on. */
  readonly unreadable: string | undefined
}

/** A transaction that may still write below what others have written since. */
export interface HeldBy {
  /** The server's process; `undefined` for a prepared transaction, which has none. */
  readonly pid: number | undefined
  /** The name of a prepared transaction, where it is known. */
  readonly prepared: string | undefined
  /** When it was first seen here. */
  readonly since: Date
}

/** What was read. */
export interface LogPage {
  readonly events: readonly LogEvent[]
  /**
   * Whatever has a number up to here has been given, and nothing more can appear: the next `read` goes on after it. May be
   * beyond the last event (numbers of rolled-back transactions), and is `after` when nothing can be given yet.
   */
  readonly upTo: Position
  /** Who keeps the rest back, the longest first seen; `undefined`: nobody. */
  readonly heldBy: HeldBy | undefined
  /**
   * The id of the event at `after`, as it was when these were read; `null`: there is none. A reader that has read another
   * one there has read a log that was restored since. `undefined`: it was trimmed, or not looked for.
   */
  readonly before?: string | null | undefined
}

/** Where a log begins and ends at present. */
export interface LogHead {
  /** The highest number that was drawn so far. Nobody may have committed it yet, or ever. */
  readonly position: Position
  /** Everything up to here was trimmed: 0 where nothing was. A reader that begins below would miss events. */
  readonly trimmed: Position
  /**
   * Made anew with the log. A checkpoint of another incarnation, or beyond `position`, is of a log that was dropped or
   * restored: its numbers mean something else here.
   */
  readonly incarnation: string
}

/** Where a write stands in a log, for readers that must see it. Made with `log.token`. */
export interface LogToken {
  /** The id of the log: tables of two databases may have the same. */
  readonly log: string
  /** See LogHead; `undefined`: whoever wrote could not know it. */
  readonly incarnation?: string | undefined
  /** In ascending order. They are committed with the transaction that drew them, or never. */
  readonly positions: readonly Position[]
}

/**
 * Every event that was committed, in the order of its number: an outbox that was declared a log, together with its
 * archive. Events that were discarded are part of it: they happened, though they were not delivered.
 */
export interface Log {
  /** Its table, such as `billing.outbox`. Positions of two logs are never compared. */
  readonly id: string
  head(): Promise<LogHead>
  /**
   * Up to `limit` events after a position, never past the number below which something may still appear. Returns at
   * once, with nothing if need be: whoever is kept back asks again soon, since only the second look shows whether
   * the writers of the first have ended. Any number of readers may ask at once. Rejects with `LOG_TRIMMED` where events after
   * `after` were trimmed.
   */
  read(after: Position, limit: number): Promise<LogPage>
  /** What an enqueue returned, as a token. Receipts are only numbers: use the log that was written. */
  token(receipts: string | readonly string[]): LogToken
  /** Keeps connections until it is closed. Absent, or undefined: there are no notifications, and readers poll. */
  listen?(): Promise<LogListener | undefined>
}

/** Hears when something may have been committed. While somebody waits, every writer notifies. */
export interface LogListener {
  /** Until notified, or `ms`, or `signal`; at once where it was not listening before. */
  wait(ms: number, signal: AbortSignal): Promise<void>
  /** There is more to read, or the log is held back: no notification is needed. */
  busy(): void
  close(): Promise<void>
}

/** A projection is named by name and version everywhere: a rebuild is another version beside it. */
export interface ProjectionId {
  readonly name: string
  readonly version: number
}

/** How far a projection has come. */
export interface Checkpoint extends ProjectionId {
  /** The id of the log. */
  readonly log: string
  readonly incarnation: string
  readonly position: Position
  /** The id of the event at `position`; `undefined`: not known. */
  readonly event?: string | undefined
  /** Of the term under which it may be moved. */
  readonly epoch: string
  readonly updatedAt: Date
}

/** Where projections keep how far they have come, in the database of their read tables. */
export interface CheckpointStore<Tx = unknown> {
  /**
   * The checkpoint, made at `start` where there is none, and fenced with `epoch` from now on: whoever had an older one
   * moves it no more. `undefined`: a newer epoch has it.
   */
  open(
    projection: ProjectionId,
    log: { readonly id: string; readonly incarnation: string },
    epoch: string,
    start: Position,
  ): Promise<Checkpoint | undefined>
  /**
   * Moves it, in the transaction of the changes, before them. `event`: the id of the event at `to`, where it is known.
   * `false`: epoch or position are not the caller's.
   */
  advance(
    tx: Tx,
    projection: ProjectionId,
    epoch: string,
    from: Position,
    to: Position,
    event?: string | undefined,
  ): Promise<boolean>
  load(projection: ProjectionId): Promise<Checkpoint | undefined>
  /** All of a log, the furthest behind first: nothing they have not read may be trimmed. */
  list(log?: string): Promise<readonly Checkpoint[]>
  /** Removes it, with what is parked. `false`: there was none. */
  retire(projection: ProjectionId): Promise<boolean>
}

/** An event that could not be applied, and those of its key behind it. */
export interface ParkedEvent extends ProjectionId {
  readonly position: Position
  readonly key: string | undefined
  readonly type: string
  /** 0: it waits for an earlier one of its key. */
  readonly attempts: number
  readonly error: string | undefined
  readonly parkedAt: Date
  /** When it is tried next; `undefined`: behind another of its key. */
  readonly nextAt: Date | undefined
}
