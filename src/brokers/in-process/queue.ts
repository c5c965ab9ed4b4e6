import { Fifo } from '../../core/fifo.ts'
import { type Clock, errorSummary, Message } from '../../core/index.ts'
import type { Delivery, Demand, Settlement } from '../../flow/index.ts'
import { IndexedHeap } from './heap.ts'
import { KeyMessages, older, QueuedMessage, type QueueHolder, type ReadyEntry } from './key-messages.ts'

/** A message as a subscription gave it. */
export interface InProcessDelivery extends Delivery {
  readonly item: QueuedMessage
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
  readonly unsettled: number
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
  readonly #fresh = new Fifo<QueuedMessage>()
  /** Without a key and given back, and the per-key queues that anybody may take from. */
  readonly #ready = new IndexedHeap<ReadyEntry>(older)
  readonly #retrying = new IndexedHeap<QueuedMessage>((a, b) => a.due < b.due || (a.due === b.due && a.order < b.order))
  readonly #keyQueues = new Map<string, KeyMessages>()
  readonly #dead = new Map<QueuedMessage, InProcessDeadLetter>()
  #order = 0
  #unsettled = 0
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
    const ready = this.#live - this.#unsettled - retrying
    return { ready, unsettled: this.#unsettled, retrying, dead: this.#dead.size }
  }

  /** When the next retry is due. */
  get nextDue(): number | undefined {
    return this.#retrying.peek()?.due
  }

  add(message: Message<string | Uint8Array>, size: number): void {
    const item = new QueuedMessage(this.#order++, message, size)
    this.#live++
    if (item.key === undefined) {
      this.#fresh.push(item)
      this.#wake()
      return
    }
    const keyQueue = this.#keyQueue(item.key)
    keyQueue.add(item)
    // One that was waiting already keeps its place.
    if (keyQueue.size === 1) this.#place(keyQueue)
  }

  /** Whether this holder could take something now. */
  available(holder: QueueHolder): boolean {
    this.#promote()
    return this.#next(holder) !== undefined
  }

  take(holder: QueueHolder, { count, bytes }: Demand): InProcessDelivery[] {
    this.#promote()
    const taken: InProcessDelivery[] = []
    for (let total = 0; taken.length < count; ) {
      const next = this.#next(holder)
      if (next === undefined) break
      const item = next instanceof KeyMessages ? next.peek()! : next
      total += item.size
      if (taken.length > 0 && total > bytes) break
      this.#remove(next, holder)
      taken.push(this.#give(item, holder))
    }
    return taken
  }

  /** `false`: stale, nothing was changed. */
  settle(holder: QueueHolder, delivery: InProcessDelivery, settlement: Settlement): boolean {
    const { item } = delivery
    if (item?.delivery !== delivery || !holder.unsettled.has(item)) return false
    const keyQueue = this.#takeBack(holder, item)
    switch (settlement.kind) {
      case 'done':
        this.#live--
        break
      case 'release':
        this.#giveBack(item, keyQueue)
        break
      case 'retry':
        if (settlement.charged) item.attempts++
        this.#retryLater(item, keyQueue, settlement.after)
        break
      case 'dead':
        this.#deadLetter(item, keyQueue, settlement)
        break
    }
    if (keyQueue !== undefined) this.#place(keyQueue)
    return true
  }

  /** Gives back everything this holder has not settled. */
  returnAll(holder: QueueHolder): void {
    for (const item of [...holder.unsettled]) {
      const keyQueue = this.#takeBack(holder, item)
      this.#giveBack(item, keyQueue)
      if (keyQueue !== undefined) this.#place(keyQueue)
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
      const keyQueue = item.key === undefined ? undefined : this.#keyQueue(item.key)
      if (keyQueue !== undefined && this.#deadBlocks) keyQueue.blocked--
      if (rearm) {
        item.attempts = 0
        this.#live++
        this.#giveBack(item, keyQueue)
      }
      if (keyQueue !== undefined) this.#place(keyQueue)
    }
    return count
  }

  /** The oldest message whose turn it is: of everybody's, or of the keys this holder has unsettled messages of. */
  #next(holder: QueueHolder): ReadyEntry | undefined {
    const own = holder.keyQueues.peek()
    const shared = this.#ready.peek()
    let next: ReadyEntry | undefined = this.#fresh.peek()
    if (shared !== undefined && (next === undefined || older(shared, next))) next = shared
    if (own !== undefined && (next === undefined || older(own, next))) next = own
    return next
  }

  #remove(next: ReadyEntry, holder: QueueHolder): void {
    if (next instanceof KeyMessages) {
      next.shift()
      next.out++
      next.holder = holder
      this.#place(next, false)
    } else if (next.slot >= 0) this.#ready.remove(next)
    else this.#fresh.shift()
  }

  #give(item: QueuedMessage, holder: QueueHolder): InProcessDelivery {
    const { message, key, attempts, size } = item
    // A copy without locals: what one try or one subscriber notes on its message does not reach another.
    const delivery = { message: new Message(message, message.data, message.form), key, attempts, size, item }
    item.delivery = delivery
    holder.unsettled.add(item)
    this.#unsettled++
    return delivery
  }

  #takeBack(holder: QueueHolder, item: QueuedMessage): KeyMessages | undefined {
    item.delivery = undefined
    holder.unsettled.delete(item)
    this.#unsettled--
    if (item.key === undefined) return undefined
    const keyQueue = this.#keyQueues.get(item.key)!
    keyQueue.out--
    return keyQueue
  }

  #giveBack(item: QueuedMessage, keyQueue: KeyMessages | undefined): void {
    if (keyQueue !== undefined) {
      keyQueue.giveBack(item)
      return
    }
    this.#ready.push(item)
    this.#wake()
  }

  #retryLater(item: QueuedMessage, keyQueue: KeyMessages | undefined, after: number): void {
    item.due = this.#clock.monotonic() + after
    this.#retrying.push(item)
    if (keyQueue !== undefined) keyQueue.blocked++
    if (this.#retrying.peek() === item) this.#wake()
  }

  #deadLetter(
    item: QueuedMessage,
    keyQueue: KeyMessages | undefined,
    { reason, error }: { reason: string; error: unknown },
  ): void {
    this.#live--
    if (keyQueue !== undefined && this.#deadBlocks) keyQueue.blocked++
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
      const keyQueue = item.key === undefined ? undefined : this.#keyQueues.get(item.key)!
      this.#giveBack(item, keyQueue)
      if (keyQueue === undefined) continue
      keyQueue.blocked--
      this.#place(keyQueue)
    }
  }

  #keyQueue(key: string): KeyMessages {
    const known = this.#keyQueues.get(key)
    if (known !== undefined) return known
    const keyQueue = new KeyMessages(key)
    this.#keyQueues.set(key, keyQueue)
    return keyQueue
  }

  /** Puts a per-key queue where it belongs now, and forgets it when nothing is left of it. */
  #place(keyQueue: KeyMessages, wake = true): void {
    if (keyQueue.out === 0) keyQueue.holder = undefined
    const { heap } = keyQueue
    const first = keyQueue.peek()
    let belongs: IndexedHeap<ReadyEntry> | undefined
    if (first !== undefined && keyQueue.blocked === 0) {
      keyQueue.order = first.order
      belongs = keyQueue.holder?.keyQueues ?? this.#ready
    }
    if (heap === belongs) belongs?.moved(keyQueue)
    else {
      heap?.remove(keyQueue)
      belongs?.push(keyQueue)
      keyQueue.heap = belongs
    }
    if (belongs !== undefined && wake) this.#wake()
    if (first === undefined && keyQueue.out === 0 && keyQueue.blocked === 0) this.#keyQueues.delete(keyQueue.key)
  }
}
