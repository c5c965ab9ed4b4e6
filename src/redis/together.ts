/**
 * What one call of a script takes along at most, unless a single item is more: Redis does nothing else meanwhile, which
 * is about half a millisecond of short commands.
 */
export const MOST_TOGETHER = { count: 64, bytes: 256 * 1024 } as const

interface Waiting<Item, Answer> {
  readonly item: Item
  readonly bytes: number
  readonly resolve: (answer: Answer) => void
  readonly reject: (error: unknown) => void
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
  #waiting: Waiting<Item, Answer>[] = []

  /** `send` answers for each item, in their order. */
  constructor(send: (items: readonly Item[]) => Promise<readonly Answer[]>) {
    this.#send = send
  }

  ask(item: Item, bytes: number): Promise<Answer> {
    return new Promise((resolve, reject) => {
      // After whatever else this turn brings: many answers come in one piece, and each lets somebody go on.
      if (this.#waiting.length === 0) setImmediate(this.#flush)
      this.#waiting.push({ item, bytes, resolve, reject })
    })
  }

  readonly #flush = (): void => {
    const waiting = this.#waiting
    this.#waiting = []
    for (let from = 0; from < waiting.length; ) {
      let to = from
      let bytes = 0
      do bytes += waiting[to++]!.bytes
      while (
        to < waiting.length &&
        to - from < MOST_TOGETHER.count &&
        bytes + waiting[to]!.bytes <= MOST_TOGETHER.bytes
      )
      void this.#call(from === 0 && to === waiting.length ? waiting : waiting.slice(from, to))
      from = to
    }
  }

  async #call(batch: readonly Waiting<Item, Answer>[]): Promise<void> {
    try {
      const answers = await this.#send(batch.map(({ item }) => item))
      batch.forEach(({ resolve }, at) => {
        resolve(answers[at]!)
      })
    } catch (error) {
      for (const { reject } of batch) reject(error)
    }
  }
}
