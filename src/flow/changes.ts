/** A place to wait for a condition that is looked at again whenever something changes. */
export class Changes {
  readonly #watchers = new Set<() => void>()

  readonly notify = (): void => {
    if (this.#watchers.size > 0) for (const look of this.#watchers) look()
  }

  /** Resolves when `condition` holds, or when `signal` aborts. */
  until(condition: () => boolean, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted || condition()) return Promise.resolve()
    return new Promise((resolve) => {
      const look = () => {
        if (!signal?.aborted && !condition()) return
        this.#watchers.delete(look)
        signal?.removeEventListener('abort', look)
        resolve()
      }
      this.#watchers.add(look)
      signal?.addEventListener('abort', look)
    })
  }
}
