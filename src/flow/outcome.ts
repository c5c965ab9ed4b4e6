import { type Classify, classify, describe, RetryLater, WaybillError } from '../core/index.ts'
import { OK, type Outcome, type Publisher, type PublisherLike } from './publisher.ts'

/** What an error thrown for one message says about it. */
export function outcomeOf(error: unknown, kindOf: Classify = classify): Outcome {
  if (error instanceof RetryLater) {
    return { kind: 'failed', error, after: error.delay, ...(error.charged ? {} : { charged: false }) }
  }
  const kind = kindOf(error)
  if (kind === 'permanent') return { kind: 'rejected', error }
  return kind === 'down' ? { kind, error } : { kind: 'failed', error }
}

/** A publisher from whatever was given; a plain function is called once per message, all of a batch at once. */
export function publisherOf(given: PublisherLike, name = 'function', where = 'publisher'): Publisher {
  if (typeof given !== 'function') {
    if (typeof given?.publish === 'function') return given
    // Text is never shown: a URL holds a password.
    const what = typeof given === 'string' ? 'text' : describe(given)
    const text = `${where}: ${what} is not allowed; a publisher is an object with publish(), or an async function`
    throw new WaybillError('INVALID_OPTION', text)
  }
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
            return outcomeOf(error)
          }
        }),
      ),
  }
}

/** A publisher that answers fewer outcomes than messages has a bug, and guessing which is missing would lose one. */
export function checkOutcomes(name: string, outcomes: readonly Outcome[], count: number): readonly Outcome[] {
  if (Array.isArray(outcomes) && outcomes.length === count) return outcomes
  const got = Array.isArray(outcomes) ? `${outcomes.length} outcomes` : 'no list of outcomes'
  throw new WaybillError(
    'BAD_PUBLISHER',
    `publisher ${name} answered ${got} for ${count} messages; it must answer one each`,
  )
}
