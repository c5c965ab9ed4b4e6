import {
  asError,
  type Classify,
  classifier,
  classify,
  classifyPublish,
  describe,
  LONGEST_DELAY,
  type RawMessage,
  RetryLater,
  WaybillError,
} from '../core/index.ts'

/**
 * What became of one published message.
 * - `ok`: the destination has it and will not forget it.
 * - `failed`: this message was refused, and may succeed later (`after` milliseconds, when the destination said so);
 *   `charged: false` spends no attempt for it.
 * - `rejected`: this message was refused for good.
 * - `down`: not this message but the destination as a whole; whether it arrived is unknown. `untried: true`: it was not sent,
 *   because another had shown that already or there was no time left; so it is not suspected, whatever arrives beside it.
 */
export type Outcome =
  | { readonly kind: 'ok' }
  | { readonly kind: 'failed'; readonly error: unknown; readonly after?: number; readonly charged?: boolean }
  | { readonly kind: 'rejected'; readonly error: unknown }
  | { readonly kind: 'down'; readonly error: unknown; readonly untried?: boolean }

/** Any outcome but `ok`. */
export type FailedOutcome = Exclude<Outcome, { kind: 'ok' }>

/** The message has arrived. */
export const OK: Outcome = Object.freeze({ kind: 'ok' })

/** What a publisher can do beyond the least. */
export interface PublisherFeatures {
  /**
   * Runs of one key may come in one call: they arrive in order, and when one does not arrive, none after it of that
   * key in the call does. Otherwise the flow gives at most one message of a key at a time.
   */
  readonly ordered?: boolean
}

/**
 * Where messages go. `publish` returns one outcome per message, in the order given, and only when each is certain:
 * a confirm, a written row, a 2xx. A rejection is `down` for all of them. `signal` aborts waiting, not what was sent.
 */
export interface Publisher {
  readonly name: string
  /** The broker, as `messaging.system` of OpenTelemetry names it. Only traces say it. */
  readonly system?: string
  readonly features: PublisherFeatures
  publish(messages: readonly RawMessage[], signal: AbortSignal): Promise<readonly Outcome[]>
  /** Connects early, so that wrong settings show at start. `Unavailable`: it is only away, and `publish` will connect. */
  start?(): Promise<void>
  close?(): Promise<void>
}

/** A plain function that publishes one message: resolves when the destination has it, throws when it has not. */
export type PublishFunction = (message: RawMessage, signal: AbortSignal) => unknown

/** What may be given wherever a publisher is asked for. */
export type PublisherLike = Publisher | PublishFunction

/** What was thrown for one message says about it. The classifier may be a user's: it is shown what was thrown. */
export function outcomeOf(thrown: unknown, kindOf: Classify = classify): Outcome {
  const error = asError(thrown)
  if (error instanceof RetryLater) {
    return { kind: 'failed', error, after: error.delay, ...(error.charged ? {} : { charged: false }) }
  }
  const kind = kindOf(thrown)
  if (kind === 'permanent') return { kind: 'rejected', error }
  return kind === 'down' ? { kind, error } : { kind: 'failed', error }
}

/**
 * The same outcome, safe to read: a publisher may be foreign. What is no outcome costs its own message an attempt, and
 * nobody else anything.
 */
export function checkedOutcome(given: Outcome): Outcome {
  if (given === OK) return given
  const { kind, error, after, charged, untried } = read(given)
  if (kind === 'ok') return OK
  if (kind === 'rejected') return { kind, error: asError(error) }
  if (kind === 'down') return { kind, error: asError(error), ...(untried === true ? { untried } : {}) }
  if (kind === 'failed') {
    // What is no delay is not heard.
    const pause = typeof after === 'number' && after >= 0 ? { after: Math.min(after, LONGEST_DELAY) } : {}
    return { kind, error: asError(error), ...pause, ...(charged === false ? { charged } : {}) }
  }
  const text = 'the publisher returned what is no outcome; its kind must be ok, failed, rejected or down'
  return { kind: 'failed', error: new WaybillError('BAD_PUBLISHER', text) }
}

function read(given: unknown): Partial<Record<'kind' | 'error' | 'after' | 'charged' | 'untried', unknown>> {
  try {
    const { kind, error, after, charged, untried } = given as Record<string, unknown>
    return { kind, error, after, charged, untried }
  } catch {
    return {}
  }
}

/**
 * A publisher from whatever was given; a plain function is called once per message, all of a batch at once, and `classify`
 * says what its errors mean. A publisher says so itself.
 */
export function publisherOf(
  given: PublisherLike,
  name = 'function',
  where = 'publisher',
  classify?: Classify,
): Publisher {
  if (typeof given !== 'function') {
    if (typeof given?.publish === 'function') return given
    // Text is never shown: a URL holds a password.
    const what = typeof given === 'string' ? 'text' : describe(given)
    const text = `${where}: ${what} is not allowed; a publisher is an object with publish(), or an async function`
    throw new WaybillError('INVALID_OPTION', text)
  }
  const kindOf = classifier(classify, classifyPublish)
  return {
    name: given.name || name,
    features: {},
    publish: (messages, signal) =>
      Promise.all(
        messages.map(async (message) => {
          try {
            await given(message, signal)
            return OK
          } catch (error) {
            return outcomeOf(error, kindOf)
          }
        }),
      ),
  }
}

/** Callers without types may leave out the features of a publisher: what is absent is false. */
export function isOrdered({ features }: { readonly features?: PublisherFeatures }): boolean {
  return features?.ordered ?? false
}

/** A publisher that returns fewer outcomes than messages has a bug, and guessing which is missing would lose one. */
export function checkOutcomes(name: string, outcomes: readonly Outcome[], count: number): readonly Outcome[] {
  if (Array.isArray(outcomes) && outcomes.length === count) return outcomes
  const got = Array.isArray(outcomes) ? `${outcomes.length} outcomes` : 'no list of outcomes'
  throw new WaybillError(
    'BAD_PUBLISHER',
    `publisher ${name} returned ${got} for ${count} messages; it must return one each`,
  )
}
