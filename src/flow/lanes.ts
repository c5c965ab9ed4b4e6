import type { Message } from '../core/index.ts'
import type { Delivery } from './source.ts'

/** One key. It is kept for a while when nothing is out: most keys come again, and a lane is made and dropped for nothing. */
interface KeyQueue<D> {
  /** One of the key is ready or out. */
  busy: boolean
  /** It failed: nothing of the key may go out until the source has been told. */
  held: boolean
  /** Those behind it; before `next` they have gone. */
  waiting: D[]
  next: number
}

/** Nobody waits: most keys come once, and need no list of their own. */
const NOBODY = Object.freeze([]) as unknown as never[]

/** So many lanes are kept at least. */
const KEPT = 8192

/**
 * Order per key with parallelism across keys: at most one delivery of a key is ready or in flight, the others wait
 * in its lane. A held lane has a failed one that must come first: nothing of that key may go out until the source
 * has been told.
 */
export class Lanes<D extends Delivery<Message>> {
  #lanes = new Map<string, KeyQueue<D>>()
  #idle = 0
  #ready: D[] = []
  #head = 0
  /** How many at the head were put back, in their old order. */
  #returned = 0
  #waiting = 0
  readonly #enough: number
  /** Keys in whose lanes enough waits, as of late: some may have gone out since. */
  readonly #crowded = new Set<string>()

  /** `enough`: how many of one key are worth having here while other keys have to wait for room. */
  constructor(enough = Number.POSITIVE_INFINITY) {
    this.#enough = enough
  }

  /** Keys in whose lanes enough waits. */
  get crowded(): ReadonlySet<string> | undefined {
    for (const key of this.#crowded) {
      const lane = this.#lanes.get(key)
      if (lane === undefined || lane.waiting.length - lane.next < this.#enough) this.#crowded.delete(key)
    }
    return this.#crowded.size === 0 ? undefined : this.#crowded
  }

  /** `false`: its key is held, so it must be given back. */
  add(delivery: D): boolean {
    const { key } = delivery
    if (key === undefined) {
      this.#ready.push(delivery)
      return true
    }
    const lane = this.#lane(key)
    if (lane.held) return false
    if (lane.busy) {
      this.#wait(lane, delivery)
      if (lane.waiting.length - lane.next >= this.#enough) this.#crowded.add(key)
      return true
    }
    this.#begin(lane)
    this.#ready.push(delivery)
    return true
  }

  /** How many could go out now. */
  get ready(): number {
    return this.#ready.length - this.#head
  }

  someReady(wanted: (delivery: D) => boolean): boolean {
    for (let i = this.#head; i < this.#ready.length; i++) if (wanted(this.#ready[i]!)) return true
    return false
  }

  peek(): D | undefined {
    return this.#ready[this.#head]
  }

  /** The next that may go out; ask `ready` first. */
  take(): D {
    const delivery = this.#ready[this.#head]!
    this.#head++
    if (this.#returned > 0) this.#returned--
    if (this.#head === this.#ready.length) {
      this.#ready = []
      this.#head = 0
    } else if (this.#head > 1024 && this.#head * 2 > this.#ready.length) {
      this.#ready = this.#ready.slice(this.#head)
      this.#head = 0
    }
    return delivery
  }

  /** The next of `key`, though the one before is not finished: for a run of one key. */
  peekWaiting(key: string): D | undefined {
    const lane = this.#lanes.get(key)
    return lane?.waiting[lane.next]
  }

  takeWaiting(key: string): D {
    return this.#next(this.#lanes.get(key)!)!
  }

  /** Runs go back to the front, behind those put back before: the first of a key is ready, the others wait in its lane. */
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
    const at = this.#head + this.#returned
    this.#ready = [...this.#ready.slice(this.#head, at), ...front, ...this.#ready.slice(at)]
    this.#head = 0
    this.#returned += front.length
  }

  /** To the front of the lane, behind the one that is out. */
  putWaiting(key: string, deliveries: readonly D[]): void {
    if (deliveries.length === 0) return
    const lane = this.#lane(key)
    this.#begin(lane)
    lane.waiting = [...deliveries, ...lane.waiting.slice(lane.next)]
    lane.next = 0
    this.#waiting += deliveries.length
  }

  /** To the end of the queue: others go first. */
  putLast(delivery: D): void {
    this.#ready.push(delivery)
  }

  /** The one of this key that was out is finished: the next may go. */
  finished(key: string): void {
    const lane = this.#lanes.get(key)
    if (lane === undefined || !lane.busy || lane.held) return
    const next = this.#next(lane)
    if (next === undefined) this.#leave(lane)
    else this.#ready.push(next)
  }

  /** The one of this key that was out failed: the others of the key are taken out and must be given back. */
  hold(key: string): D[] {
    const lane = this.#lane(key)
    const rest = lane.waiting.slice(lane.next)
    this.#waiting -= rest.length
    this.#begin(lane)
    lane.held = true
    lane.waiting = NOBODY
    lane.next = 0
    return rest
  }

  /** The source has been told; it holds the key itself now. */
  unhold(key: string): void {
    if (this.#lanes.get(key)?.held) this.#lanes.delete(key)
  }

  /** Everything that is not out. */
  all(): D[] {
    const all = this.#ready.slice(this.#head)
    if (this.#waiting > 0) for (const lane of this.#lanes.values()) all.push(...lane.waiting.slice(lane.next))
    return all
  }

  /** The same, and nothing is left. */
  clear(): D[] {
    const all = this.all()
    this.#ready = []
    this.#head = 0
    this.#returned = 0
    this.#waiting = 0
    this.#idle = 0
    this.#lanes.clear()
    this.#crowded.clear()
    return all
  }

  #lane(key: string): KeyQueue<D> {
    let lane = this.#lanes.get(key)
    if (lane === undefined) {
      lane = { busy: false, held: false, waiting: NOBODY, next: 0 }
      this.#lanes.set(key, lane)
      this.#idle++
    }
    return lane
  }

  #begin(lane: KeyQueue<D>): void {
    if (!lane.busy) this.#idle--
    lane.busy = true
  }

  #wait(lane: KeyQueue<D>, delivery: D): void {
    if (lane.waiting === NOBODY) lane.waiting = []
    lane.waiting.push(delivery)
    this.#waiting++
  }

  #leave(lane: KeyQueue<D>): void {
    lane.busy = false
    lane.waiting = NOBODY
    lane.next = 0
    this.#idle++
    if (this.#idle < KEPT || this.#idle * 2 < this.#lanes.size) return
    this.#lanes = new Map([...this.#lanes].filter(([, { busy }]) => busy))
    this.#idle = 0
  }

  #next(lane: KeyQueue<D>): D | undefined {
    const next = lane.waiting[lane.next]
    if (next === undefined) return undefined
    lane.next++
    this.#waiting--
    if (lane.next > 64 && lane.next * 2 > lane.waiting.length) {
      lane.waiting = lane.waiting.slice(lane.next)
      lane.next = 0
    }
    return next
  }
}
