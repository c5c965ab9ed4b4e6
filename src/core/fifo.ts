/** First in, first out, at a constant cost however long it is. What was taken out is not kept alive. */
export class Fifo<T extends object | number> {
  #items: (T | undefined)[] = []
  #head = 0

  get size(): number {
    return this.#items.length - this.#head
  }

  push(item: T): void {
    this.#items.push(item)
  }

  peek(): T | undefined {
    return this.#items[this.#head]
  }

  shift(): T | undefined {
    const item = this.#items[this.#head]
    if (item === undefined) return undefined
    this.#items[this.#head++] = undefined
    if (this.#head === this.#items.length) {
      this.#items.length = 0
      this.#head = 0
    } else if (this.#head >= 1024 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head)
      this.#head = 0
    }
    return item
  }

  /** Puts some in behind the first `at`. Costs as much as the queue is long. */
  insert(at: number, items: readonly T[]): void {
    const all = [...this]
    this.#items = [...all.slice(0, at), ...items, ...all.slice(at)]
    this.#head = 0
  }

  /** Takes all of them out. */
  clear(): T[] {
    const all = [...this]
    this.#items = []
    this.#head = 0
    return all
  }

  *[Symbol.iterator](): Iterator<T> {
    for (let i = this.#head; i < this.#items.length; i++) yield this.#items[i]!
  }
}
