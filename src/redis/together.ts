/**
 * What one call of a script takes along at most, unless a single item is more: Redis does nothing else meanwhile, which
 * is about half a millisecond of short commands.
 */
export const MOST_TOGETHER = { count: 64, bytes: 256 * 1024 } as const

/** What goes in one call. */
interface Batch<Item, Answer> {
  readonly items: Item[]
  bytes: number
  /** One for all of them: a promise for each, with what resolves it, would cost more than the rest does here. */
  readonly answers: Promise<readonly Answer[]>
  readonly send: () => void
}

/**
 * What is asked in one turn of the event loop goes to the server in one call, each with an answer of its own. A call of
 * its own for each would cost both sides more than the work in it. Nothing waits for others to come: what is asked
 * alone goes alone, and calls follow each other without waiting for answers.
 *
 * When a call fails, all that were in it fail with its error, as if each had been sent alone at that moment.
 */
export class Together<Item, Answer> {
  readonly #send: (items: readonly Item[]) => Promise<readonly Answer[]>
  #batches: Batch<Item, Answer>[] = []

  /** `send` answers for each item, in their order. */
  constructor(send: (items: readonly Item[]) => Promise<readonly Answer[]>) {
    this.#send = send
  }

  /** Resolves with what `answered` makes of the answer, or `failed` of the error. */
  ask<Result>(
    item: Item,
    bytes: number,
    answered: (answer: Answer) => Result | Promise<Result>,
    failed?: (error: unknown) => never,
  ): Promise<Result> {
    const { items, answers } = this.#batchFor(bytes)
    const at = items.push(item) - 1
    return answers.then((all) => answered(all[at]!), failed)
  }

  #batchFor(bytes: number): Batch<Item, Answer> {
    const last = this.#batches.at(-1)
    if (last !== undefined && last.items.length < MOST_TOGETHER.count && last.bytes + bytes <= MOST_TOGETHER.bytes) {
      last.bytes += bytes
      return last
    }
    // After whatever else this turn brings: many answers come in one piece, and each lets somebody go on.
    if (last === undefined) setImmediate(this.#flush)
    const batch = this.#begin(bytes)
    this.#batches.push(batch)
    return batch
  }

  #begin(bytes: number): Batch<Item, Answer> {
    const items: Item[] = []
    let send = () => {}
    const answers = new Promise<readonly Answer[]>((resolve) => {
      send = () => resolve(this.#send(items))
    })
    return { items, bytes, answers, send }
  }

  readonly #flush = (): void => {
    const batches = this.#batches
    this.#batches = []
    for (const { send } of batches) send()
  }
}
