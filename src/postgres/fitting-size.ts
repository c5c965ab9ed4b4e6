import { isCancelled } from './errors.ts'

/**
 * How many rows a take may ask for. A statement that the server cancels for its time would be cancelled again, for ever:
 * half as many are asked for, down to one, and twice as many again with each take that succeeds.
 */
export class FittingSize {
  #most = Number.POSITIVE_INFINITY

  of(count: number): number {
    return Math.min(count, this.#most)
  }

  /** Runs a take of so many rows, or as many as fit; what it throws is thrown. */
  async take<T>(count: number, take: (count: number) => Promise<T>): Promise<T> {
    const asked = this.of(count)
    try {
      const taken = await take(asked)
      this.#most = asked * 2 >= count ? Number.POSITIVE_INFINITY : asked * 2
      return taken
    } catch (error) {
      if (isCancelled(error)) this.#most = Math.max(1, asked >> 1)
      throw error
    }
  }
}
