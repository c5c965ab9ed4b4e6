import {
  asError,
  type Clock,
  classify,
  type Message,
  telemetry,
  WaybillError,
  withDeadline,
  withoutData,
} from '../core/index.ts'
import { idText, type Projection, type Reaction } from './definition.ts'
import type { LogEvent } from './port.ts'

/** An event that a projection has a handler for, and what that handler needs. */
export interface Prepared extends Omit<LogEvent, 'id' | 'unreadable' | 'recordedAt'> {
  /** Of those that were read from a log. */
  readonly id: string | undefined
  readonly reaction: Reaction | undefined
  /** As the handler gets it. */
  typed: Message | undefined
  found: unknown
  /** It has to be enriched, and is not yet. */
  asks: boolean
  /** Since when it is enriched in vain, by the monotonic clock. */
  since: number | undefined
  /** Why it cannot be applied: it is parked. */
  failure: Error | undefined
}

/** What users' code threw for this event, as it may be stored and logged: without anything of its data. */
export function shownOf({ message }: Pick<Prepared, 'message'>, thrown: unknown): Error {
  return message === undefined ? asError(thrown) : withoutData(thrown, message)
}

/** How `enrich` is called. Times are milliseconds. */
export interface EnrichSettings {
  readonly concurrency: number
  /** How long one call may take. */
  readonly timeout: number
  /** One that fails for so long is parked, if others do not fail. */
  readonly giveUp: number
}

/** So many events are decoded in one go. Then the transaction that is written meanwhile gets to its next statement. */
const AT_ONCE = 100

/** Those of these events that the projection has a handler for, decoded. One that cannot be read fails alone. */
export async function prepare(
  projection: Projection,
  events: readonly (Pick<LogEvent, 'position' | 'key' | 'type' | 'message' | 'unreadable'> & {
    readonly id?: string
  })[],
): Promise<readonly Prepared[]> {
  const prepared: Prepared[] = []
  for (const { position, id, key, type, message, unreadable } of events) {
    const reaction = message === undefined ? undefined : projection.reactionTo(message)
    if (message !== undefined && reaction === undefined) continue
    // Of what cannot be read at all the type alone is known.
    if (message === undefined && !projection.types.includes(type)) continue
    // One literal: spreading two would cost more than the rest of this loop.
    // biome-ignore format: a line for each would say no more
    const event: Prepared = {
      position, id, key, type, message, reaction, typed: undefined, found: undefined,
      asks: reaction?.enrich !== undefined, since: undefined, failure: undefined,
    }
    prepared.push(event)
    if (prepared.length % AT_ONCE === 0) await new Promise<void>((resolve) => setImmediate(resolve))
    if (message === undefined) {
      event.failure = new WaybillError('MALFORMED_ROW', `event ${position} cannot be read: ${unreadable}`)
      continue
    }
    try {
      const decoded = reaction!.event.decode(message, ({ type, id, version }, newestKnown) => {
        telemetry['router.newer_version'].publish({ router: idText(projection), type, id, version, newestKnown })
      })
      // Most schemas answer at once, and an await for each event is half of the time.
      event.typed = decoded instanceof Promise ? await decoded : decoded
    } catch (error) {
      event.failure = asError(error)
    }
  }
  return prepared
}

/**
 * Asks other services for what events need. One try for each that has no answer yet: whoever calls tries again later. An
 * event that has failed for long is given up, and parked; but while all fail it is an outage, and nobody's fault.
 */
export class Enricher {
  readonly #settings: EnrichSettings
  readonly #clock: Clock
  #succeededAt = Number.NEGATIVE_INFINITY
  /** Which keys fail at present: of one that fails alone nobody knows whether it is an outage, and it costs one key. */
  readonly #failing = new Set<string>()

  constructor(settings: EnrichSettings, clock: Clock) {
    this.#settings = settings
    this.#clock = clock
  }

  /**
   * What keeps events from being applied, where something does: try again. `parked`: they have failed before. One that does so
   * again says nothing of an outage, and waits for its next time.
   */
  async enrich(events: readonly Prepared[], signal: AbortSignal, parked = false): Promise<Error | undefined> {
    const asking = events.filter(({ asks, failure }) => asks && failure === undefined)
    if (asking.length === 0) return undefined
    const began = this.#clock.monotonic()
    let last: Error | undefined
    const queue = asking.values()
    const work = async () => {
      for (const event of queue) last = (await this.#ask(event, signal, began, parked)) ?? last
    }
    await Promise.all(Array.from({ length: Math.min(this.#settings.concurrency, asking.length) }, work))
    const left = asking.filter(({ asks, failure }) => asks && failure === undefined)
    for (const event of left) if (this.#givesUp(event)) event.failure = last ?? new Error('enrich failed')
    return left.some(({ failure }) => failure === undefined) ? last : undefined
  }

  async #ask(event: Prepared, signal: AbortSignal, began: number, parked: boolean): Promise<Error | undefined> {
    const over = new AbortController()
    const { timeout } = this.#settings
    try {
      const asked = Promise.resolve(event.reaction!.enrich!(event.typed!, { signal: over.signal }))
      event.found = await withDeadline(asked, timeout, this.#clock, () => tooLate(event, timeout), signal)
      event.asks = false
      this.#succeededAt = this.#clock.monotonic()
      this.#failing.delete(keyOf(event))
      return undefined
    } catch (error) {
      const failure = shownOf(event, error)
      // What no second try mends is parked at once.
      if (parked || classify(error) === 'permanent') event.failure = failure
      else this.#failing.add(keyOf(event))
      event.since ??= began
      return failure
    } finally {
      over.abort()
    }
  }

  #givesUp(event: Prepared): boolean {
    if (this.#clock.monotonic() - event.since! < this.#settings.giveUp) return false
    if (this.#succeededAt < event.since! && this.#failing.size > 1) return false
    this.#failing.delete(keyOf(event))
    return true
  }
}

function keyOf({ key, position }: Prepared): string {
  return key ?? `#${position}`
}

function tooLate({ type, position }: Prepared, timeout: number): never {
  throw new WaybillError('TIMEOUT', `enrich of ${type} (position ${position}) took longer than ${timeout} ms`)
}
