import type { RawMessage } from '../core/index.ts'

/**
 * What became of one published message.
 * - `ok`: the destination has it and will not forget it.
 * - `failed`: this message was refused, and may succeed later (`after` milliseconds, when the destination said so);
 *   `charged: false` spends no attempt for it.
 * - `rejected`: this message was refused for good.
 * - `down`: not this message but the destination as a whole; whether it arrived is unknown.
 */
export type Outcome =
  | { readonly kind: 'ok' }
  | { readonly kind: 'failed'; readonly error: unknown; readonly after?: number; readonly charged?: boolean }
  | { readonly kind: 'rejected'; readonly error: unknown }
  | { readonly kind: 'down'; readonly error: unknown }

export const OK: Outcome = Object.freeze({ kind: 'ok' })

export interface PublisherFeatures {
  /**
   * Runs of one key may come in one call: they arrive in order, and when one does not arrive, none after it of that
   * key in the call does. Otherwise the flow gives at most one message of a key at a time.
   */
  readonly ordered?: boolean
}

/**
 * Where messages go. `publish` answers one outcome per message, in the order given, and only when each is certain:
 * a confirm, a written row, a 2xx. A rejection is `down` for all of them. `signal` aborts waiting, not what was sent.
 */
export interface Publisher {
  readonly name: string
  readonly features: PublisherFeatures
  publish(messages: readonly RawMessage[], signal: AbortSignal): Promise<readonly Outcome[]>
  /** Connects early, so that wrong settings show at start. */
  start?(): Promise<void>
  close?(): Promise<void>
}

/** A plain function that publishes one message: resolves when the destination has it, throws when it has not. */
export type PublishFunction = (message: RawMessage, signal: AbortSignal) => unknown

/** What may be given wherever a publisher is asked for. */
export type PublisherLike = Publisher | PublishFunction
