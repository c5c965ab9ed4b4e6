import type { Message } from '../core/index.ts'
import type { Delivery } from './source.ts'

type Lane<D> = { waiting: D[]; next: number; held: boolean }

/**
 * Order per key with parallelism across keys: at most one delivery of a key is ready or in flight, the others wait
 * in its lane. A held lane has a failed one that must come first: nothing of that key may go out until the source
 * has been told.
 */
export class Lanes<D extends Delivery<Message>> {
  readonly #lanes = new Map<string, Lane<D>>()
  readonly #ready: D[] = []
  #head = 0
  #waiting = 0

  /** `false`: its key is held, so it must be given back. */
  add(delivery: D): boolean {
    const { key } = delivery
    if (key === undefined) {
      this.#ready.push(delivery)
      return true
    }
    const lane = this.#lanes.get(key)
    if (lane === undefined) {
      this.#lanes.set(key, { waiting: [], next: 0, held: false })
      this.#ready.push(delivery)
      return true
    }
    if (lane.held) return false
    lane.waiting.push(delivery)
    this.#waiting++
    return true
  }

  /** How many could go out now. */
  get ready(): number {
    return this.#ready.length - this.#head
  }

  /** How many are here in all, ready or waiting for their key. */
  get size(): number {
    return this.ready + this.#waiting
  }

  peek(): D | undefined {
    return this.#ready[this.#head]
  }

  take(): D | undefined {
    const delivery = this.#ready[this.#head]
    if (delivery === undefined) return undefined
    this.#head++
    if (this.#head > 1024 && this.#head * 2 > this.#ready.length) {
      this.#ready.splice(0, this.#head)
      this.#head = 0
    }
    return delivery
  }

  /** The next of `key`, moved out of its lane although the one before is not finished: for a run of one key. */
  takeWaiting(key: string): D | undefined {
    const lane = this.#lanes.get(key)
    return lane === undefined || lane.held ? undefined : this.#next(lane)
  }

  /** A run goes back to the front, as it was: the first of each key is ready, the others wait in their lane. */
  putBack(run: readonly D[]): void {
    const later = new Map<string, D[]>()
    const front: D[] = []
    for (const delivery of run) {
      const { key } = delivery
      const others = key === undefined ? undefined : later.get(key)
      if (others !== undefined) others.push(delivery)
      else front.push(delivery)
      if (key !== undefined && others === undefined) later.set(key, [])
    }
    for (const [key, deliveries] of later) {
      const lane = this.#lanes.get(key)
      if (lane === undefined || deliveries.length === 0) continue
      lane.waiting.splice(0, lane.next, ...deliveries)
      lane.next = 0
      this.#waiting += deliveries.length
    }
    this.#ready.splice(0, this.#head, ...front)
    this.#head = 0
  }

  /** To the end of the queue: others go first. */
  putLast(delivery: D): void {
    this.#ready.push(delivery)
  }

  /** The one of this key that was out is finished: the next may go. */
  finished(key: string | undefined): void {
    if (key === undefined) return
    const lane = this.#lanes.get(key)
    if (lane === undefined || lane.held) return
    const next = this.#next(lane)
    if (next === undefined) this.#lanes.delete(key)
    else this.#ready.push(next)
  }

  /** The one of this key that was out failed: the others of the key are taken out and must be given back. */
  hold(key: string): D[] {
    const lane = this.#lanes.get(key)
    if (lane === undefined) {
      this.#lanes.set(key, { waiting: [], next: 0, held: true })
      return []
    }
    lane.held = true
    const rest = lane.waiting.slice(lane.next)
    lane.waiting = []
    lane.next = 0
    this.#waiting -= rest.length
    return rest
  }

  /** The source has been told; it holds the key itself now. */
  unhold(key: string): void {
    const lane = this.#lanes.get(key)
    if (lane?.held) this.#lanes.delete(key)
  }

  /** Everything that is not out, and nothing is left. */
  clear(): D[] {
    const rest = this.#ready.slice(this.#head)
    for (const lane of this.#lanes.values()) rest.push(...lane.waiting.slice(lane.next))
    this.#ready.length = 0
    this.#head = 0
    this.#waiting = 0
    this.#lanes.clear()
    return rest
  }

  #next(lane: Lane<D>): D | undefined {
    const next = lane.waiting[lane.next]
    if (next === undefined) return undefined
    lane.next++
    this.#waiting--
    if (lane.next > 64 && lane.next * 2 > lane.waiting.length) {
      lane.waiting.splice(0, lane.next)
      lane.next = 0
    }
    return next
  }
}
