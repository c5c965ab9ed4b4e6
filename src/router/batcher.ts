import type { Message, RawMessage } from '../core/index.ts'
import { checkOutcomes, type Outcome, type Publisher, type PublisherLike, publisherOf } from '../flow/index.ts'
import { rawOutputs, throwUnlessSent } from './outputs.ts'

interface Waiting {
  readonly messages: readonly RawMessage[]
  readonly resolve: (outcomes: readonly Outcome[]) => void
}

/** Largest batch given to the publisher in one call. */
const MAX_BATCH = 1000

/** Publishes what many handlers send at once in common batches: while one is under way the next gathers. */
export class Batcher {
  readonly publisher: Publisher
  #waiting: Waiting[] = []
  #sending = false

  constructor(to: PublisherLike) {
    this.publisher = publisherOf(to)
  }

  /** Resolves when all have arrived; throws what the first that has not says. */
  readonly send = async (outputs: readonly Message[]): Promise<void> => {
    const messages = rawOutputs(outputs)
    const outcomes = await new Promise<readonly Outcome[]>((resolve) => {
      this.#waiting.push({ messages, resolve })
      if (!this.#sending) {
        this.#sending = true
        queueMicrotask(() => this.#drain())
      }
    })
    throwUnlessSent(outcomes, this.publisher.name)
  }

  async #drain(): Promise<void> {
    const signal = new AbortController().signal
    while (this.#waiting.length > 0) {
      const batch = this.#nextBatch()
      const messages = batch.flatMap((waiting) => waiting.messages)
      try {
        const outcomes = await this.publisher.publish(messages, signal)
        checkOutcomes(this.publisher.name, outcomes, messages.length)
        let at = 0
        for (const { messages, resolve } of batch) resolve(outcomes.slice(at, (at += messages.length)))
      } catch (error) {
        for (const { messages, resolve } of batch) resolve(messages.map(() => ({ kind: 'down', error })))
      }
    }
    this.#sending = false
  }

  #nextBatch(): Waiting[] {
    let count = 0
    let end = 0
    while (end < this.#waiting.length && (end === 0 || count + this.#waiting[end]!.messages.length <= MAX_BATCH)) {
      count += this.#waiting[end]!.messages.length
      end++
    }
    return this.#waiting.splice(0, end)
  }
}
