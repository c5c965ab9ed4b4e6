import type { Message, RawMessage } from '../core/index.ts'
import { checkOutcomes, type Outcome, type Publisher, type PublisherLike, publisherOf } from '../flow/index.ts'
import { rawOutputs, throwUnlessSent } from './outputs.ts'

/** What one handler sends: all of it arrives, or the handler fails. */
interface Parcel {
  readonly messages: readonly RawMessage[]
  readonly resolve: (outcomes: readonly Outcome[]) => void
  readonly outcomes: Outcome[]
}

/** Largest batch given to the publisher in one call. */
const MAX_BATCH = 1000

/** Publishes what many handlers send at once in common batches: while one is under way the next gathers. */
export class Batcher {
  readonly publisher: Publisher
  readonly #signal = new AbortController().signal
  #waiting: Parcel[] = []
  #sending = false

  constructor(to: PublisherLike) {
    this.publisher = publisherOf(to)
  }

  /** Resolves when all have arrived; throws what the first that has not says. Nothing is sent that cannot be encoded. */
  readonly send = async (outputs: readonly Message[]): Promise<void> => {
    const messages = rawOutputs(outputs)
    const outcomes = await new Promise<readonly Outcome[]>((resolve) => {
      this.#waiting.push({ messages, resolve, outcomes: [] })
      if (!this.#sending) {
        this.#sending = true
        queueMicrotask(() => this.#drain())
      }
    })
    throwUnlessSent(outcomes, this.publisher.name)
  }

  async #drain(): Promise<void> {
    while (this.#waiting.length > 0) {
      const parcels = this.#nextParcels()
      let left: Parcel[] = parcels
      while (left.length > 0) left = await this.#publish(left)
      for (const { outcomes, resolve } of parcels) resolve(outcomes)
    }
    this.#sending = false
  }

  /** One call with what may go in it. Answers who still has something to send. */
  async #publish(parcels: readonly Parcel[]): Promise<Parcel[]> {
    const counts = this.publisher.features.ordered ? parcels.map(rest) : oneOfEachKey(parcels)
    const messages = parcels.flatMap(({ messages, outcomes }, i) =>
      messages.slice(outcomes.length, outcomes.length + counts[i]!),
    )
    const answers = await this.#outcomes(messages)
    let at = 0
    parcels.forEach(({ messages, outcomes }, i) => {
      for (const end = at + counts[i]!; at < end; at++) outcomes.push(answers[at]!)
      // What a failed one was to be followed by is not sent at all: it must not arrive before it.
      const failed = outcomes.find(({ kind }) => kind !== 'ok')
      while (failed !== undefined && outcomes.length < messages.length) outcomes.push(failed)
    })
    return parcels.filter(({ messages, outcomes }) => outcomes.length < messages.length)
  }

  async #outcomes(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    try {
      const outcomes = await this.publisher.publish(messages, this.#signal)
      return checkOutcomes(this.publisher.name, outcomes, messages.length)
    } catch (error) {
      return messages.map(() => ({ kind: 'down', error }))
    }
  }

  #nextParcels(): Parcel[] {
    let count = 0
    let end = 0
    while (end < this.#waiting.length && (end === 0 || count + this.#waiting[end]!.messages.length <= MAX_BATCH)) {
      count += this.#waiting[end]!.messages.length
      end++
    }
    return this.#waiting.splice(0, end)
  }
}

function rest({ messages, outcomes }: Parcel): number {
  return messages.length - outcomes.length
}

/** How much of each parcel can go in one call that must not hold two messages of a key. */
function oneOfEachKey(parcels: readonly Parcel[]): number[] {
  const keys = new Set<string>()
  return parcels.map((parcel) => {
    const { messages, outcomes } = parcel
    for (let at = outcomes.length; at < messages.length; at++) {
      const { key } = messages[at]!
      if (key === undefined) continue
      if (keys.has(key)) return at - outcomes.length
      keys.add(key)
    }
    return rest(parcel)
  })
}
