import {
  asError,
  type Classify,
  checkOptions,
  classifier,
  decodeData,
  type EventKey,
  type Message,
  patternOf,
  RetryLater,
  reportOnStderr,
  telemetry,
  WaybillError,
  withoutData,
} from '../../core/index.ts'
import { OK, type Outcome, type Publisher } from '../../flow/index.ts'

/** Called for each message; whether it returns or resolves, throws or rejects, is the same to the bus. */
export type Subscriber<Data = unknown> = (message: Message<Data>, signal: AbortSignal) => unknown

/** An event bus inside this process. */
export interface BusOptions {
  /** What an error means, for `publisher()`. */
  classify?: Classify
}

interface BusSubscriber {
  readonly wants: (message: Message) => boolean
  readonly call: (message: Message, signal: AbortSignal) => Promise<unknown>
}

/**
 * Events to whoever in this process wants them: no queue, no retry, nothing is kept.
 *
 * - `publish` fires: it returns at once, and a failed subscriber is reported by telemetry (`bus.subscriber_failed`).
 * - `dispatch` waits for every subscriber, all of them even when some fail, and rejects with one AggregateError of all
 *   failures; or with NO_SUBSCRIBERS when nobody wants the message, since then nobody has handled it.
 * - `publisher()` is `dispatch` as a publisher, so that an outbox can be relayed to it: a message counts as published
 *   when every subscriber has handled it. When one fails, all of them get it again: they must bear repetition.
 */
export class EventBus {
  readonly #classify: Classify
  readonly #entries = new Set<BusSubscriber>()

  constructor(options: BusOptions = {}) {
    checkOptions('event bus', options, { classify: true })
    this.#classify = classifier(options.classify)
    reportOnStderr()
  }

  /**
   * Subscribes to an event (its data validated and upcast; `.v(n)`: only messages of that version), to a type, or to
   * a pattern of types such as `order.*`. Returns the way to unsubscribe.
   */
  subscribe<Data>(event: EventKey<Data>, subscriber: Subscriber<Data>): () => void
  subscribe(typeOrPattern: string, subscriber: Subscriber): () => void
  subscribe(wanted: EventKey | string, subscriber: Subscriber): () => void {
    if (typeof subscriber !== 'function') {
      throw new WaybillError('INVALID_OPTION', 'event bus: a subscriber is a function of a message')
    }
    const entry = typeof wanted === 'string' ? byPattern(wanted, subscriber) : byEvent(wanted, subscriber)
    this.#entries.add(entry)
    return () => {
      this.#entries.delete(entry)
    }
  }

  /** Gives the message to everybody who wants it now, and does not wait for them. */
  publish(message: Message): void {
    const entries = this.#wanting(message)
    const { signal } = new AbortController()
    // Not before the caller has gone on: a slow subscriber must not slow its publisher.
    queueMicrotask(() => {
      for (const entry of entries) {
        entry.call(message, signal).catch((error: unknown) => {
          const about = { type: message.type, id: message.id, error: withoutData(error, message) }
          telemetry['bus.subscriber_failed'].publish(about)
        })
      }
    })
  }

  /** Resolves when every subscriber has handled the message. */
  async dispatch(message: Message, signal: AbortSignal = new AbortController().signal): Promise<void> {
    const entries = this.#wanting(message)
    if (entries.length === 0) {
      throw new WaybillError('NO_SUBSCRIBERS', `${message}: nobody subscribes to it, so nobody has handled it`)
    }
    const results = await Promise.allSettled(entries.map((entry) => entry.call(message, signal)))
    const errors = results.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []))
    if (errors.length === 0) return
    // The cause is the one that decides what to do, so that a classifier that follows causes is right.
    throw new AggregateError(errors, `${message}: ${errors.length} of ${entries.length} subscribers failed`, {
      cause: this.#decisive(errors),
    })
  }

  publisher(name = 'event bus'): Publisher {
    return {
      name,
      features: {},
      publish: (messages, signal) => Promise.all(messages.map((message) => this.#outcome(message, signal))),
    }
  }

  async #outcome(message: Message, signal: AbortSignal): Promise<Outcome> {
    try {
      await this.dispatch(message, signal)
      return OK
    } catch (error) {
      const errors = error instanceof AggregateError ? error.errors : [error]
      const kind = this.#classify(this.#decisive(errors))
      if (kind === 'permanent') return { kind: 'rejected', error }
      if (kind === 'down') return { kind: 'down', error }
      const delays = errors.map(asError).flatMap((one) => (one instanceof RetryLater ? [one.delay] : []))
      return delays.length === 0 ? { kind: 'failed', error } : { kind: 'failed', error, after: Math.max(...delays) }
    }
  }

  /**
   * One that is down speaks for all. As long as one may succeed later, all are tried again: to give up for the sake of
   * one that never will would take the message from the others.
   */
  #decisive(errors: readonly unknown[]): unknown {
    const kinds = errors.map((error) => this.#classify(error))
    const at = kinds.includes('down') ? kinds.indexOf('down') : kinds.indexOf('transient')
    return errors[Math.max(0, at)]
  }

  #wanting(message: Message): BusSubscriber[] {
    return [...this.#entries].filter((entry) => entry.wants(message))
  }
}

function byPattern(pattern: string, subscriber: Subscriber): BusSubscriber {
  const fits = patternOf('event bus', pattern)
  return {
    wants: ({ type }) => fits(type),
    call: async (message, signal) => subscriber(decoded(message), signal),
  }
}

function byEvent(event: EventKey, subscriber: Subscriber): BusSubscriber {
  return {
    wants: (message) => event.is(message) && (!event.exact || message.version === event.target),
    call: async (message, signal) => subscriber(await event.decode(message), signal),
  }
}

/** A subscriber by name gets the value, whether the message was relayed from an outbox or made here. */
function decoded(message: Message): Message {
  return message.form === 'value' ? message : message.withData(decodeData(message), 'value')
}
