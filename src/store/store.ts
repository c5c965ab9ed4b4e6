import type { Message } from '../core/index.ts'
import type { OutboxAdmin } from '../outbox/admin.ts'

/** What may be said of events when they are enqueued: key, topic, tenant, when, and of which entity. */
export interface EnqueueOptions {
  /** Events of one key are dispatched one at a time, in order. Default: the event's own key. */
  key?: string
  /** Where it goes. Default: what the outbox was told, or the event's type. */
  topic?: string
  tenant?: string
  /** Not before this time. */
  availableAt?: Date
  /** The entity it came from. */
  aggregate?: { type: string; id: string }
}

/**
 * Where a transaction leaves what others must be told. `enqueue` writes in the caller's transaction: with its commit
 * the events will be delivered, with its rollback they never were. The same event id again changes nothing and answers
 * the first receipt. `Receipt` is a sequence number in PostgreSQL.
 */
export interface OutboxStore<Tx = unknown, Receipt = string> {
  readonly name: string
  enqueue(tx: Tx, event: Message, options?: EnqueueOptions): Promise<Receipt>
  enqueue(tx: Tx, events: readonly Message[], options?: EnqueueOptions): Promise<Receipt[]>
  readonly admin: OutboxAdmin
}
