import type { Message } from '../core/index.ts'

/** A CloudEvent is identified by its source and id together; each subscriber handles it once. */
export interface InboxKey {
  readonly subscriber: string
  readonly source: string
  readonly id: string
  /** The whole message, where there is one, for stores that make a key of their own from it. */
  readonly message?: Message
}

/**
 * - `new`: write down with this transaction that it is handled, and handle it;
 * - `done`: it was handled before: skip;
 * - `busy`: another is at it right now: come again later. The transaction may be of no use any more: roll it back.
 */
export type InboxAnswer = 'new' | 'done' | 'busy'

/** Remembers what was handled, in the handler's own transaction, so that its effect happens once. */
export interface InboxStore<Tx = unknown> {
  readonly name: string
  /**
   * When `signal` aborts, whoever was told to give up no longer keeps others from the message; and one that waits for
   * another's end is `busy`.
   */
  receive(tx: Tx, key: InboxKey, signal?: AbortSignal): Promise<InboxAnswer>
  /** Forgets what is older than `retention` milliseconds (its own when none is given), at most `limit`; answers how many. */
  clean(options: { retention?: number; limit?: number }): Promise<number>
}
