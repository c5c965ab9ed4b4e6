import { tooLong } from '../core/deadlines.ts'
import {
  asError,
  encodeData,
  type Message,
  type RawMessage,
  Reject,
  RetryLater,
  systemClock,
  Unavailable,
  WaybillError,
} from '../core/index.ts'
import {
  checkedOutcome,
  checkOutcomes,
  OK,
  type Outcome,
  type Publisher,
  type PublisherLike,
  publisherOf,
} from '../flow/index.ts'
import { type FailedOutcome, isOrdered } from '../flow/publisher.ts'
import { TimeLimit } from '../flow/time-limit.ts'

/** What an outcome says, as the error a handler would throw for it. */
export function errorOf(outcome: FailedOutcome, name: string): WaybillError {
  const text = `publishing to ${name} failed`
  const cause = { cause: outcome.error }
  if (outcome.kind === 'down') return new Unavailable(text, cause)
  if (outcome.kind === 'rejected') return new Reject(text, cause)
  const { after, charged = true } = outcome
  if (after !== undefined || !charged) return new RetryLater(after ?? 0, text, { ...cause, charged })
  return new WaybillError('PUBLISH_FAILED', text, cause)
}

/** Throws what the first outcome that is not ok says about the whole. */
export function throwUnlessSent(outcomes: readonly Outcome[], name: string): void {
  for (const outcome of outcomes) if (outcome.kind !== 'ok') throw errorOf(outcome, name)
}

/** Typed messages are encoded on their way out; raw ones pass as they are. */
export function rawOutputs(outputs: readonly Message[]): RawMessage[] {
  return outputs.map(encodeData)
}

/** What one handler sends: all of it arrives, or the handler fails. */
interface PublishRequest {
  readonly messages: readonly RawMessage[]
  /** How many have arrived. */
  arrived: number
  /** How many are in the call under way. */
  going: number
  readonly resolve: () => void
  readonly reject: (error: Error) => void
}

/** Largest batch given to the publisher in one call. */
const MAX_BATCH = 1000

/** How long one call of the publisher may take, in milliseconds. */
const LONGEST = 60_000

/** Publishes what many handlers send at once in common batches: while one is under way the next gathers. */
export class Batcher {
  readonly publisher: Publisher
  /** All handlers wait for a call: one that hangs must not keep them for ever. */
  readonly #limit = new TimeLimit(new AbortController().signal, LONGEST, systemClock, () => {
    this.#giveUp?.(tooLong('publishing outputs', LONGEST))
  })
  #giveUp: ((error: Error) => void) | undefined
  #waiting: PublishRequest[] = []
  #sending = false

  constructor(where: string, to: PublisherLike) {
    this.publisher = publisherOf(to, undefined, where)
  }

  /** Resolves when all have arrived; rejects with what the first that has not says. Throws for what cannot be encoded. */
  readonly send = (outputs: readonly Message[]): Promise<void> => {
    const messages = rawOutputs(outputs)
    return new Promise((resolve, reject) => {
      this.#waiting.push({ messages, arrived: 0, going: 0, resolve, reject })
      if (this.#sending) return
      this.#sending = true
      queueMicrotask(this.#drain)
    })
  }

  readonly #drain = async (): Promise<void> => {
    while (this.#waiting.length > 0) {
      let requests = this.#nextRequests()
      while (requests.length > 0) requests = await this.#publish(requests)
    }
    this.#sending = false
  }

  /** One call with what may go in it. Returns those that still have something to send. */
  async #publish(requests: readonly PublishRequest[]): Promise<PublishRequest[]> {
    const { name } = this.publisher
    const messages: RawMessage[] = []
    const keys = isOrdered(this.publisher) ? undefined : new Set<string>()
    for (const request of requests) fill(messages, request, keys)
    const outcomes = await this.#outcomes(messages)
    const left: PublishRequest[] = []
    let at = 0
    for (const request of requests) {
      const failure = firstFailure(outcomes, at, request.going)
      at += request.going
      request.arrived += request.going
      // What a failed one was to be followed by is not sent at all: it must not arrive before it.
      if (failure !== undefined) request.reject(errorOf(failure, name))
      else if (request.arrived === request.messages.length) request.resolve()
      else left.push(request)
    }
    return left
  }

  async #outcomes(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    try {
      const outcomes = checkOutcomes(this.publisher.name, await this.#inTime(messages), messages.length)
      return outcomes.every((outcome) => outcome === OK) ? outcomes : outcomes.map(checkedOutcome)
    } catch (error) {
      return messages.map(() => ({ kind: 'down', error: asError(error) }))
    }
  }

  #inTime(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    const group = this.#limit.group()
    return new Promise((resolve, reject) => {
      const publishing = Promise.resolve(this.publisher.publish(messages, group.signal))
      // Not a closure of ours: it would keep all of these messages alive until the next major collection.
      this.#giveUp = reject
      this.#limit.begin(group)
      publishing.then(resolve, reject).then(() => this.#limit.end(group))
    })
  }

  #nextRequests(): PublishRequest[] {
    let count = 0
    let end = 0
    while (end < this.#waiting.length && (end === 0 || count + this.#waiting[end]!.messages.length <= MAX_BATCH)) {
      count += this.#waiting[end]!.messages.length
      end++
    }
    return this.#waiting.splice(0, end)
  }
}

/** Puts into the call what may go now: with `keys`, up to the first message whose key is in it already. */
function fill(call: RawMessage[], request: PublishRequest, keys: Set<string> | undefined): void {
  const before = call.length
  for (let i = request.arrived; i < request.messages.length; i++) {
    const message = request.messages[i]!
    const key = keys === undefined ? undefined : message.key
    if (key !== undefined) {
      if (keys!.has(key)) break
      keys!.add(key)
    }
    call.push(message)
  }
  request.going = call.length - before
}

function firstFailure(outcomes: readonly Outcome[], from: number, count: number) {
  for (let i = from; i < from + count; i++) {
    const outcome = outcomes[i]!
    if (outcome.kind !== 'ok') return outcome
  }
  return undefined
}
