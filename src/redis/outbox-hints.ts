/** Tells relays of this process that something was committed, so that they need not wait for their next poll. */
export class Hints {
  readonly #listeners = new Set<() => void>()

  listen(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  tell(): void {
    for (const listener of this.#listeners) listener()
  }
}
