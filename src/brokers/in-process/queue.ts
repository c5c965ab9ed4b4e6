import { Fifo } from '../../core/fifo.ts'
import { type Clock, errorSummary, Message } from '../../core/index.ts'
import type { Delivery, Demand, Settlement } from '../../flow/index.ts'
import { Heap } from './heap.ts'
import { type Holder, Item, KeyLane, older, type Ready } from './lane.ts'

/** A message as a subscription gave it. */
export interface InProcessDelivery extends Delivery {
  readonly item: Item
}

/** A message that was given up in a subscription, and why. */
export interface InProcessDeadLetter {
  readonly message: Message<string | Uint8Array>
  /** Tries it has cost. */
  readonly attempts: number
  readonly reason: string
  /** The error, without data. */
  readonly error: string
  /** When it was given up, in milliseconds since the epoch. */
  readonly at: number
}

/** How much a subscription holds. */
export interface InProcessStats {
  /** Could be taken, or waits for its key. */
  readonly ready: number
  readonly inHand: number
  /** Wait for their retry. */
  readonly retrying: number
  readonly dead: number
}

/**
 * The messages of one subscription. Each costs a constant, or the logarithm of how many keys there are, however long
 * the queue is: nothing that cannot be taken now is ever looked at.
 */
export class Queue {
  readonly #clock: Clock
  readonly #deadBlocks: boolean
  readonly #wake: () => void
  /** Without a key and never taken. */
  readonly #fresh = new Fifo<Item>()
  /** Without a key and given back, and the lanes that anybody may take from. */
  readonly #ready = new Heap<Ready>(older)
  readonly #retrying = new Heap<Item>((a, b) => a.due < b.due || (a.due === b.due && a.order < b.order))
  readonly #lanes = new Map<string, KeyLane>()
  readonly #dead = new Map<Item, InProcessDeadLetter>()
  #order = 0
  #inHand = 0
  #live = 0

  /** `wake` is called whenever there may be something to take, or the next retry comes sooner. */
  constructor(clock: Clock, deadBlocks: boolean, wake: () => void) {
    this.#clock = clock
    this.#deadBlocks = deadBlocks
    this.#wake = wake
  }

  /** Everything that is neither settled nor dead. */
  get size(): number {
    return this.#live
  }

  get stats(): InProcessStats {
    const retrying = this.#retrying.size
    const ready = this.#live - this.#inHand - retrying
    return { ready, inHand: this.#inHand, retrying, dead: this.#dead.size }
  }

  /** When the next retry is due. */
  get nextDue(): number | undefined {
    return this.#retrying.peek()?.due
  }

  add(message: Message<string | Uint8Array>, size: number): void {
    const item = new Item(this.#order++, message, size)
    this.#live++
    if (item.key === undefined) {
      this.#fresh.push(item)
      this.#wake()
      return
    }
    const lane = this.#lane(item.key)
    lane.add(item)
    // One that was waiting already keeps its place.
    if (lane.size === 1) this.#place(lane)
  }

  /** Whether this holder could take something now. */
  available(holder: Holder): boolean {
    this.#promote()
    return this.#next(holder) !== undefined
  }

  take(holder: Holder, { count, bytes }: Demand): InProcessDelivery[] {
    this.#promote()
    const taken: InProcessDelivery[] = []
    for (let total = 0; taken.length < count; ) {
      const next = this.#next(holder)
      if (next === undefined) break
      const item = next instanceof KeyLane ? next.peek()! : next
      total += item.size
      if (taken.length > 0 && total > bytes) break
      this.#remove(next, holder)
      taken.push(this.#give(item, holder))
    }
    return taken
  }

  /** `false`: stale, nothing was changed. */
  settle(holder: Holder, delivery: InProcessDelivery, settlement: Settlement): boolean {
    const { item } = delivery
    if (item?.delivery !== delivery || !holder.inHand.has(item)) return false
    const lane = this.#takeBack(holder, item)
    switch (settlement.kind) {
      case 'done':
        this.#live--
        break
      case 'release':
        this.#giveBack(item, lane)
        break
      case 'retry':
        if (settlement.charged) item.attempts++
        this.#retryLater(item, lane, settlement.after)
        break
      case 'dead':
        this.#bury(item, lane, settlement)
        break
    }
    if (lane !== undefined) this.#place(lane)
    return true
  }

  /** Gives back everything this holder has in hand. */
  returnAll(holder: Holder): void {
    for (const item of [...holder.inHand]) {
      const lane = this.#takeBack(holder, item)
      this.#giveBack(item, lane)
      if (lane !== undefined) this.#place(lane)
    }
  }

  get dead(): InProcessDeadLetter[] {
    return [...this.#dead.values()]
  }

  /** Takes dead letters away, or puts them back into their old place with all their attempts. */
  resolveDead(fits: (letter: InProcessDeadLetter) => boolean, rearm: boolean): number {
    let count = 0
    for (const [item, letter] of this.#dead) {
      if (!fits(letter)) continue
      count++
      this.#dead.delete(item)
      const lane = item.key === undefined ? undefined : this.#lane(item.key)
      if (lane !== undefined && this.#deadBlocks) lane.blocked--
      if (rearm) {
        item.attempts = 0
        this.#live++
        this.#giveBack(item, lane)
      }
      if (lane !== undefined) this.#place(lane)
    }
    return count
  }

  /** The oldest message whose turn it is: of everybody's, or of the keys this holder has in hand. */
  #next(holder: Holder): Ready | undefined {
    const own = holder.lanes.peek()
    const shared = this.#ready.peek()
    let next: Ready | undefined = this.#fresh.peek()
    if (shared !== undefined && (next === undefined || older(shared, next))) next = shared
    if (own !== undefined && (next === undefined || older(own, next))) next = own
    return next
  }

  #remove(next: Ready, holder: Holder): void {
    if (next instanceof KeyLane) {
      next.shift()
      next.out++
      next.holder = holder
      this.#place(next, false)
    } else if (next.slot >= 0) this.#ready.remove(next)
    else this.#fresh.shift()
  }

  #give(item: Item, holder: Holder): InProcessDelivery {
    const { message, key, attempts, size } = item
    // A copy without locals: what one try or one subscriber notes on its message does not reach another.
    const delivery = { message: new Message(message, message.data, message.form), key, attempts, size, item }
    item.delivery = delivery
    holder.inHand.add(item)
    this.#inHand++
    return delivery
  }

  #takeBack(holder: Holder, item: Item): KeyLane | undefined {
    item.delivery = undefined
    holder.inHand.delete(item)
    this.#inHand--
    if (item.key === undefined) return undefined
    const lane = this.#lanes.get(item.key)!
    lane.out--
    return lane
  }

  #giveBack(item: Item, lane: KeyLane | undefined): void {
    if (lane !== undefined) {
      lane.giveBack(item)
      return
    }
    this.#ready.push(item)
    this.#wake()
  }

  #retryLater(item: Item, lane: KeyLane | undefined, after: number): void {
    item.due = this.#clock.monotonic() + after
    this.#retrying.push(item)
    if (lane !== undefined) lane.blocked++
    if (this.#retrying.peek() === item) this.#wake()
  }

  #bury(item: Item, lane: KeyLane | undefined, { reason, error }: { reason: string; error: unknown }): void {
    this.#live--
    if (lane !== undefined && this.#deadBlocks) lane.blocked++
    const { message, attempts } = item
    const at = this.#clock.now()
    this.#dead.set(item, { message, attempts: attempts + 1, reason, error: errorSummary(error), at })
  }

  /** Retries that are due join the others. */
  #promote(): void {
    if (this.#retrying.size === 0) return
    const now = this.#clock.monotonic()
    for (let item = this.#retrying.peek(); item !== undefined && item.due <= now; item = this.#retrying.peek()) {
      this.#retrying.pop()
      const lane = item.key === undefined ? undefined : this.#lanes.get(item.key)!
      this.#giveBack(item, lane)
      if (lane === undefined) continue
      lane.blocked--
      this.#place(lane)
    }
  }

  #lane(key: string): KeyLane {
    const known = this.#lanes.get(key)
    if (known !== undefined) return known
    const lane = new KeyLane(key)
    this.#lanes.set(key, lane)
    return lane
  }

  /** Puts a lane where it belongs now, and forgets it when nothing is left of it. */
  #place(lane: KeyLane, wake = true): void {
    if (lane.out === 0) lane.holder = undefined
    const { heap } = lane
    const first = lane.peek()
    let belongs: Heap<Ready> | undefined
    if (first !== undefined && lane.blocked === 0) {
      lane.order = first.order
      belongs = lane.holder?.lanes ?? this.#ready
    }
    if (heap === belongs) belongs?.moved(lane)
    else {
      heap?.remove(lane)
      belongs?.push(lane)
      lane.heap = belongs
    }
    if (belongs !== undefined && wake) this.#wake()
    if (first === undefined && lane.out === 0 && lane.blocked === 0) this.#lanes.delete(lane.key)
  }
}
