import type { Clock } from '../core/index.ts'
import type { Source, Waits } from '../flow/index.ts'
import type { OutboxAdmin } from './admin.ts'

export const READERS = ['auto', 'owner', 'lease'] as const
/** How a relay reads an outbox: as its owner, by leases, or as the store thinks best. */
export type ReaderKind = (typeof READERS)[number]

/** How a relay wants to read from a store. */
export interface ReaderOptions {
  readonly reader: ReaderKind
  readonly shards: number
  /** How long the right to settle lasts without being renewed, in milliseconds. */
  readonly lease: number
  /** Whether a dead event blocks its key. */
  readonly deadKey: 'block' | 'continue'
  /** Whether published events are removed at once. */
  readonly deletes: boolean
  /** Whether to be woken by writers, beside polling. */
  readonly wake: boolean
  /** The most attempts an event has. */
  readonly attempts: number
  readonly clock: Clock
}

/** An outbox that relays can read. Making a reader does no work yet. */
export interface OutboxReader {
  readonly name: string
  /** Published events must stay, because it is a log: it refuses readers that would remove them. */
  readonly keeps?: boolean
  reader(options: ReaderOptions): Reader
  /** For gauges: how many events are in which state. */
  readonly admin?: Pick<OutboxAdmin, 'stats'>
  /** For gauges: the client that it was given. What has one name there is the same. */
  pool?(): object
  /** Throws when it cannot be read as it is: a table that is missing or of another version. */
  check?(): Promise<void>
}

/** One relay's part in reading an outbox that others may read too. */
export interface Reader {
  /** Throws when it could never work as it is set up: a pool that is too small. Called when the relay starts. */
  check?(): Promise<void>
  /**
   * Says that this relay lives, and returns what it should read from now on: the whole, its part of the shards, or
   * nothing while relays that read in another way are at work. The same source is the same object. Called again and
   * again, well within the lease.
   */
  assignment(): Promise<readonly Source[]>
  /**
   * Among relays that compete: whether this one reports for the whole outbox, as of the last `assignment`. `undefined`: they
   * do not compete, and whoever owns the source that `leads` reports.
   */
  leads?(): boolean | undefined
  /** Relays share the outbox row by row, and write into the rows what they have. */
  readonly competes?: boolean
  /** Why `assignment` gave nothing the last time: who reads, and until when. */
  waiting?(): Waits | undefined
  /** A round is over, and none of its connections is kept. What `check` counted for it is free for others. */
  rest?(): void
  /** No longer takes part. */
  close(): Promise<void>
}
