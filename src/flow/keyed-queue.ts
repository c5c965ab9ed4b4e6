import { Fifo } from '../core/fifo.ts'
import type { Message } from '../core/index.ts'
import type { Delivery } from './source.ts'

/** The deliveries of one key. Kept after it drains: most keys recur. */
interface KeyQueue<D extends object> {
  /** One of the key is ready or in flight. */
  busy: boolean
  /** One of the key failed: no other may go out until that is settled with the source. */
  held: boolean
  /** Those behind the one that is ready or in flight. Most keys never need it. */
  waiting: Fifo<D> | undefined
}

/** So many idle keys are kept at least. */
const KEPT = 8192

/**
 * Order per key with parallelism across keys: at most one delivery of a key is ready or in flight, the others wait behind
 * it. A key is held when one of its deliveries failed and has to come first: none of its other deliveries may go out until
 * the failure is settled with the source.
 */
export class KeyedQueue<D extends Delivery<Message>> {
  #keys = new Map<string, KeyQueue<D>>()
  #idle = 0
  readonly #ready = new Fifo<D>()
  /** How many at the head were put back, in their old order. */
  #returned = 0
  #waiting = 0
  readonly #enough: number
  /** Keys with at least `enough` waiting when the last one was added. Some may have gone out since. */
  readonly #crowded = new Set<string>()

  /** `enough`: how many of one key are worth buffering while other keys have to wait for room. */
  constructor(enough = Number.POSITIVE_INFINITY) {
    this.#enough = enough
  }

  /** Keys of which enough is waiting here. */
  get crowded(): ReadonlySet<string> | undefined {
    for (const key of this.#crowded) if (!this.#isCrowded(this.#keys.get(key))) this.#crowded.delete(key)
    return this.#crowded.size === 0 ? undefined : this.#crowded
  }

  #isCrowded(queue: KeyQueue<D> | undefined): boolean {
    return queue?.waiting !== undefined && queue.waiting.size >= this.#enough
  }

  /** `false`: its key is held, so it has to be released. */
  add(delivery: D): boolean {
    const { key } = delivery
    if (key === undefined) {
      this.#ready.push(delivery)
      return true
    }
    const queue = this.#queueOf(key)
    if (queue.held) return false
    if (queue.busy) {
      this.#wait(queue, delivery)
      if (this.#isCrowded(queue)) this.#crowded.add(key)
      return true
    }
    this.#occupy(queue)
    this.#ready.push(delivery)
    return true
  }

  /** How many could go out now. */
  get ready(): number {
    return this.#ready.size
  }

  someReady(wanted: (delivery: D) => boolean): boolean {
    for (const delivery of this.#ready) if (wanted(delivery)) return true
    return false
  }

  peek(): D | undefined {
    return this.#ready.peek()
  }

  /** The next that may go out; ask `ready` first. */
  take(): D {
    if (this.#returned > 0) this.#returned--
    return this.#ready.shift()!
  }

  /** The next of `key`, although the one before it is not finished: for a run of one key. */
  peekWaiting(key: string): D | undefined {
    return this.#keys.get(key)?.waiting?.peek()
  }

  takeWaiting(key: string): D {
    return this.#next(this.#keys.get(key)!)!
  }

  /** Runs go back to the front, behind those put back before: the first of a key is ready, the others wait behind it. */
  putBack(deliveries: readonly D[]): void {
    const front: D[] = []
    const behind = new Map<string, D[]>()
    for (const delivery of deliveries) {
      const others = delivery.key === undefined ? undefined : behind.get(delivery.key)
      if (others !== undefined) others.push(delivery)
      else front.push(delivery)
      if (delivery.key !== undefined && others === undefined) behind.set(delivery.key, [])
    }
    for (const [key, others] of behind) this.putWaiting(key, others)
    this.#ready.insert(this.#returned, front)
    this.#returned += front.length
  }

  /** Directly behind the one of this key that is ready or in flight. */
  putWaiting(key: string, deliveries: readonly D[]): void {
    if (deliveries.length === 0) return
    const queue = this.#queueOf(key)
    this.#occupy(queue)
    queue.waiting ??= new Fifo()
    queue.waiting.insert(0, deliveries)
    this.#waiting += deliveries.length
  }

  /** To the end: others go first. */
  putLast(delivery: D): void {
    this.#ready.push(delivery)
  }

  /** The one of this key that was in flight is finished: the next may go. */
  finished(key: string): void {
    const queue = this.#keys.get(key)
    if (queue === undefined || !queue.busy || queue.held) return
    const next = this.#next(queue)
    if (next === undefined) this.#vacate(queue)
    else this.#ready.push(next)
  }

  /** The one of this key that was in flight failed. Returns the others of the key, which have to be released. */
  hold(key: string): D[] {
    const queue = this.#queueOf(key)
    const rest = queue.waiting?.clear() ?? []
    this.#waiting -= rest.length
    this.#occupy(queue)
    queue.held = true
    queue.waiting = undefined
    return rest
  }

  /** The failure is settled: the source holds the key itself now. */
  unhold(key: string): void {
    if (this.#keys.get(key)?.held) this.#keys.delete(key)
  }

  /** Everything that is not in flight. */
  all(): D[] {
    const all = [...this.#ready]
    if (this.#waiting > 0)
      for (const { waiting } of this.#keys.values()) if (waiting !== undefined) all.push(...waiting)
    return all
  }

  /** The same, and nothing is left. */
  clear(): D[] {
    const all = this.all()
    this.#ready.clear()
    this.#returned = 0
    this.#waiting = 0
    this.#idle = 0
    this.#keys.clear()
    this.#crowded.clear()
    return all
  }

  #queueOf(key: string): KeyQueue<D> {
    let queue = this.#keys.get(key)
    if (queue === undefined) {
      queue = { busy: false, held: false, waiting: undefined }
      this.#keys.set(key, queue)
      this.#idle++
    }
    return queue
  }

  #occupy(queue: KeyQueue<D>): void {
    if (!queue.busy) this.#idle--
    queue.busy = true
  }

  #wait(queue: KeyQueue<D>, delivery: D): void {
    queue.waiting ??= new Fifo()
    queue.waiting.push(delivery)
    this.#waiting++
  }

  #vacate(queue: KeyQueue<D>): void {
    queue.busy = false
    queue.waiting = undefined
    this.#idle++
    if (this.#idle < KEPT || this.#idle * 2 < this.#keys.size) return
    this.#keys = new Map([...this.#keys].filter(([, { busy }]) => busy))
    this.#idle = 0
  }

  #next(queue: KeyQueue<D>): D | undefined {
    const next = queue.waiting?.shift()
    if (next !== undefined) this.#waiting--
    return next
  }
}
