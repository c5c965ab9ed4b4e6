const SMALL = 64

/**
 * Smallest rank first. An item that no longer `counts` is dropped when it comes to the top, and all such items when
 * they could be half of what is here: nothing has to be searched for to be taken out.
 */
export class LazyHeap<T> {
  readonly #rank: (item: T) => number
  readonly #counts: (item: T) => boolean
  #items: T[] = []
  #full = SMALL

  constructor(rank: (item: T) => number, counts: (item: T) => boolean) {
    this.#rank = rank
    this.#counts = counts
  }

  push(item: T): void {
    if (this.#items.length >= this.#full) this.#compact()
    const items = this.#items
    let at = items.length
    for (const rank = this.#rank(item); at > 0; ) {
      const above = (at - 1) >> 1
      if (this.#rank(items[above]!) <= rank) break
      items[at] = items[above]!
      at = above
    }
    items[at] = item
  }

  /** The smallest that counts. */
  peek(): T | undefined {
    while (this.#items.length > 0 && !this.#counts(this.#items[0]!)) this.#drop()
    return this.#items[0]
  }

  pop(): T | undefined {
    const first = this.peek()
    if (first !== undefined) this.#drop()
    return first
  }

  /** Takes the top away: the last one sinks from there to its place. */
  #drop(): void {
    const items = this.#items
    const last = items.pop()!
    if (items.length === 0) return
    const rank = this.#rank(last)
    let at = 0
    for (;;) {
      let below = 2 * at + 1
      if (below >= items.length) break
      if (below + 1 < items.length && this.#rank(items[below + 1]!) < this.#rank(items[below]!)) below++
      if (this.#rank(items[below]!) >= rank) break
      items[at] = items[below]!
      at = below
    }
    items[at] = last
  }

  #compact(): void {
    // What is sorted is a heap.
    this.#items = this.#items.filter(this.#counts).sort((a, b) => this.#rank(a) - this.#rank(b))
    this.#full = Math.max(SMALL, 2 * this.#items.length)
  }
}
