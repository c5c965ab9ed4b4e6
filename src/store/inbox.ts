import { checkOptions, describe, type Message, RetryLater, WaybillError, wholeNumber } from '../core/index.ts'

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

/** What `once` returns. */
export type Once<T> =
  | { readonly skipped: false; readonly value: T }
  | { readonly skipped: true; readonly value?: undefined }

/** What `clean` of an inbox removes, and how much at most. */
export interface CleanOptions {
  /** Milliseconds. Default: the store's own. */
  retention?: number
  /** Default 10,000. */
  limit?: number
}

/** Remembers what was handled, in the handler's own transaction, so that its effect happens once. */
export interface Inbox<Tx = unknown> {
  readonly name: string
  /**
   * When `signal` aborts, whoever was asked to stop no longer keeps others from the message; and one that waits for
   * another's end is `busy`.
   */
  receive(tx: Tx, key: InboxKey, signal?: AbortSignal): Promise<InboxAnswer>
  /** Forgets what is older than the retention, at most `limit` messages; returns how many. */
  clean(options?: CleanOptions): Promise<number>
}

/** How long until a message is looked at again that another is handling right now. */
export const BUSY_DELAY = '1s'

/** The current holder may crash repeatedly while processing it: that must not use up this one's attempts. */
export function busy(message: string): RetryLater {
  return new RetryLater(BUSY_DELAY, `another consumer is handling ${message} right now`, { charged: false })
}

/** For code outside a router: runs `fn` unless this subscriber has handled the message before. */
export async function once<Tx, T>(
  inbox: Pick<Inbox<Tx>, 'receive'>,
  tx: Tx,
  { subscriber, source, id }: InboxKey,
  fn: () => T | Promise<T>,
): Promise<Once<T>> {
  const answer = await inbox.receive(tx, { subscriber, source, id })
  if (answer === 'busy') throw busy(id)
  return answer === 'done' ? { skipped: true } : { skipped: false, value: await fn() }
}

/** Refuses a key with a part missing: callers without types may give one, and messages of others may have one. */
export function checkInboxKey({ subscriber, source, id }: InboxKey, longest = Number.POSITIVE_INFINITY): void {
  if (typeof subscriber !== 'string' || subscriber === '' || subscriber.length > longest) {
    const name = longest === Number.POSITIVE_INFINITY ? 'a name' : `a name of 1 to ${longest} characters`
    throw new WaybillError('INVALID_OPTION', `inbox: ${describe(subscriber)} is not a subscriber; give ${name}`)
  }
  checkPart('source', source)
  checkPart('id', id)
}

function checkPart(name: string, value: unknown): void {
  if (typeof value === 'string' && value !== '') return
  const text = `inbox: a message without ${name} cannot be recognised when it comes again, so it cannot be handled just once`
  throw new WaybillError('MALFORMED_MESSAGE', text)
}

/** The options of `clean`, checked, with their defaults. */
export function cleanOptions(options: CleanOptions, retention: number): { retention: number; limit: number } {
  checkOptions('inbox.clean', options, { retention: true, limit: true })
  return {
    retention: wholeNumber('inbox.clean: retention', options.retention ?? retention, { min: 0 }),
    limit: wholeNumber('inbox.clean: limit', options.limit ?? 10_000, { max: 1_000_000 }),
  }
}
