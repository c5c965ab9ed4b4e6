import type { Message } from '../core/index.ts'
import type { Delivery } from './source.ts'

/** Those of one call that failed, but perhaps not by themselves. */
export interface Doubt<D> {
  readonly failed: readonly D[]
  readonly error: unknown
  /** The window's era in which they went out. */
  readonly era: number
  /** When they went out, if somebody listens. */
  readonly began: number
  /** Calls with a lower number went out before they failed. */
  readonly before: number
}

/**
 * Failures of which nobody knows yet whether the destination is away or the message is to blame. Those that were out at the
 * same time tell: if one of them arrives, the destination was there. If none does, they failed together.
 */
export class Doubts<D extends Delivery<Message>> {
  #open: Doubt<D>[] = []

  get size(): number {
    return this.#open.length
  }

  add(doubt: Doubt<D>): void {
    this.#open.push(doubt)
  }

  /** All of them, in the order they went out; none is left. */
  clear(): Doubt<D>[] {
    return this.#open.splice(0)
  }

  /** Whether one of them has nobody left who could speak for it. `oldest`: the first call that is still out. */
  over(oldest: number): boolean {
    return this.#open.some(({ before }) => oldest >= before)
  }

  has(doubt: Doubt<D>): boolean {
    return this.#open.includes(doubt)
  }

  get deliveries(): D[] {
    return this.#open.flatMap(({ failed }) => failed)
  }
}
