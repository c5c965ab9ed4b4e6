/** What a bag holds, and where. */
export interface Held<T> {
  readonly value: T
  /** -1 when it was taken out. */
  place: number
}

/**
 * A set of what comes and goes thousands of times in a second, such as requests. A `Set` makes a new table with every
 * few changes, and the old one, once it is among what is rarely looked through for garbage, keeps alive whatever was in
 * it, and the tables after it too: all requests of a second and more, with what belongs to them.
 */
export class Bag<T> {
  readonly #held: Held<T>[] = []

  get size(): number {
    return this.#held.length
  }

  add(value: T): Held<T> {
    const held = { value, place: this.#held.length }
    this.#held.push(held)
    return held
  }

  /** Where it was, the last one is then. Twice is as once. */
  delete(held: Held<T>): void {
    if (held.place < 0) return
    const last = this.#held.pop()!
    if (last !== held) {
      this.#held[held.place] = last
      last.place = held.place
    }
    held.place = -1
  }

  /** As it is now: whoever goes through it may add and take out. */
  all(): readonly Held<T>[] {
    return [...this.#held]
  }
}
