import type { Message } from '../core/index.ts'
import type { OutboxAdmin } from '../outbox/admin.ts'
import type { Leadership } from '../outbox/leadership.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import type { Log } from '../projection/port.ts'
import type { ProjectionStore } from '../projection/store.ts'
import type { SagaStore } from '../saga/port.ts'
import type { Inbox } from './inbox.ts'
import type { UnitOfWork } from './unit-of-work.ts'

/**
 * Everything a store may owe. `Tx` is the driver's own transaction type, so that the caller's code and ours share it.
 * Optional members say what a store does not have.
 */
export interface Store<Tx = unknown> extends UnitOfWork<Tx> {
  readonly name: string
  readonly outbox: Outbox<Tx>
  readonly inbox: Inbox<Tx>
  readonly sagas?: SagaStore<Tx>
  readonly projections?: ProjectionStore<Tx>
  /** Every event that was committed, in order: an outbox that was declared a log. */
  readonly log?: Log
  /** Who may work on `scope` among many processes. Absent: nobody is elected here. */
  leadership?(scope: string): Leadership
  /** Creates its tables, or brings them up to date; returns what changed. Absent: there is nothing to create. */
  migrate?(): Promise<readonly Migrated[]>
}

/** A table, and from which version to which it was brought: 0 where there was none. */
export interface Migrated {
  readonly table: string
  readonly from: number
  readonly to: number
}

/**
 * Where a transaction leaves the events it publishes. Optional members say what this outbox can do.
 */
export interface Outbox<Tx = unknown> {
  readonly name: string
  /**
   * Writes in the caller's transaction: with its commit the events will be delivered, with its rollback they never were.
   * The same event id again changes nothing and returns the first receipt, such as a sequence number; `undefined` where
   * it is known with the commit only.
   */
  enqueue(tx: Tx, events: readonly Message[], options?: EnqueueOptions): Promise<readonly (string | undefined)[]>
  /** For relays. Absent: a broker's source forwards it. */
  reader?(options: ReaderOptions): Reader
  readonly admin?: OutboxAdmin
  /** Throws when it cannot be used as it is: a table that is missing or of another version. */
  check?(): Promise<void>
}

/** What can be said of an event beside the event itself. */
export interface EnqueueOptions {
  /** Events of one key are dispatched one at a time, in order. Default: the event's own key. */
  key?: string
  /** Where it goes. Default: as the outbox was configured, or the event's type. */
  topic?: string
  tenant?: string
  /** Not before this time. */
  availableAt?: Date
  /** The entity it came from. */
  aggregate?: { type: string; id: string }
}
