import type { Message } from '../core/index.ts'
import type { Source } from '../flow/index.ts'
import type { OutboxAdmin } from './admin.ts'

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

/** An outbox that a relay can read. */
export interface OutboxReader {
  readonly name: string
  /** What this relay may read, given how it was asked to: one source, or one for each shard. */
  reader(options: ReaderOptions): Promise<Reader>
}

export const READERS = ['auto', 'owner', 'lease'] as const
export type ReaderKind = (typeof READERS)[number]

export interface ReaderOptions {
  readonly reader: ReaderKind
  readonly shards: number
  /** How long the right to settle lasts without being renewed. */
  readonly lease: number
  /** Whether a dead event blocks its key. */
  readonly deadKey: 'block' | 'continue'
  /** Whether published events are deleted at once. */
  readonly deletes: boolean
  readonly wake: boolean
  readonly attempts: number
}

export interface Reader {
  readonly kind: 'owner' | 'lease'
  /** Why this one, for the log. */
  readonly why: string
  /** One source for each shard; competing relays share a single one. */
  readonly sources: readonly Source[]
  /**
   * Says that this relay lives and answers which of the sources it should work on now. Called again and again, well
   * within the lease.
   */
  share(): Promise<readonly number[]>
  close(): Promise<void>
}
