/** What can be in a heap: at most one at a time. */
export interface Node {
  /** Its place in the heap that holds it; -1 when none does. */
  slot: number
}

/** Smallest first. One that is not on top can be taken out, or moved when its rank has changed. */
export class IndexedHeap<T extends Node> {
  readonly #before: (a: T, b: T) => boolean
  readonly #nodes: T[] = []

  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before
  }

  get size(): number {
    return this.#nodes.length
  }

  peek(): T | undefined {
    return this.#nodes[0]
  }

  push(node: T): void {
    this.#nodes.push(node)
    this.#up(node, this.#nodes.length - 1)
  }

  pop(): T | undefined {
    const first = this.#nodes[0]
    if (first !== undefined) this.remove(first)
    return first
  }

  remove(node: T): void {
    const { slot } = node
    const last = this.#nodes.pop()!
    node.slot = -1
    if (last === node) return
    this.#nodes[slot] = last
    last.slot = slot
    this.moved(last)
  }

  /** The rank of this one has changed. */
  moved(node: T): void {
    this.#up(node, node.slot)
    this.#down(node, node.slot)
  }

  #up(node: T, from: number): void {
    let slot = from
    while (slot > 0) {
      const above = (slot - 1) >> 1
      const parent = this.#nodes[above]!
      if (!this.#before(node, parent)) break
      this.#put(parent, slot)
      slot = above
    }
    this.#put(node, slot)
  }

  #down(node: T, from: number): void {
    let slot = from
    for (;;) {
      const left = 2 * slot + 1
      const right = left + 1
      let below = left
      if (right < this.#nodes.length && this.#before(this.#nodes[right]!, this.#nodes[left]!)) below = right
      const child = this.#nodes[below]
      if (child === undefined || !this.#before(child, node)) break
      this.#put(child, slot)
      slot = below
    }
    this.#put(node, slot)
  }

  #put(node: T, slot: number): void {
    this.#nodes[slot] = node
    node.slot = slot
  }
}
