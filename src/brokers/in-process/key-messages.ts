import { Fifo } from '../../core/fifo.ts'
import type { RawMessage } from '../../core/index.ts'
import type { Delivery } from '../../flow/index.ts'
import { IndexedHeap, type Node } from './heap.ts'

/** A message in a queue. */
export class QueuedMessage implements Node {
  slot = -1
  readonly order: number
  readonly message: RawMessage
  readonly key: string | undefined
  readonly size: number
  attempts = 0
  /** While it waits for its retry: when that is. */
  due = 0
  /** The one delivery that may settle it; a new one each time it is given. */
  delivery: Delivery | undefined

  constructor(order: number, message: RawMessage, size: number) {
    this.order = order
    this.message = message
    this.key = message.key
    this.size = size
  }
}

/** Who takes from a queue: what it has not settled, and the per-key queues that only it may take more of. */
export class QueueHolder {
  readonly unsettled = new Set<QueuedMessage>()
  readonly keyQueues = new IndexedHeap<ReadyEntry>(older)
}

/** Items and per-key queues compete for their turn by the age of their oldest message. */
export type ReadyEntry = QueuedMessage | KeyMessages

export const older = (a: { order: number }, b: { order: number }): boolean => a.order < b.order

/**
 * The messages of one key, in order. It is in at most one heap: that of everybody, or, while some of its messages are
 * unsettled, that of whoever has them, so that nobody else gets a later one; and in none while it is blocked or empty.
 */
export class KeyMessages implements Node {
  slot = -1
  /** Of its first message. */
  order = 0
  readonly key: string
  /** How many are unsettled, all with one holder. */
  out = 0
  /** How many must come first and cannot yet: they wait for their retry, or are dead and block their key. */
  blocked = 0
  holder: QueueHolder | undefined
  heap: IndexedHeap<ReadyEntry> | undefined
  readonly #fresh = new Fifo<QueuedMessage>()
  #returned: IndexedHeap<QueuedMessage> | undefined

  constructor(key: string) {
    this.key = key
  }

  get size(): number {
    return this.#fresh.size + (this.#returned?.size ?? 0)
  }

  add(item: QueuedMessage): void {
    this.#fresh.push(item)
  }

  giveBack(item: QueuedMessage): void {
    this.#returned ??= new IndexedHeap<QueuedMessage>(older)
    this.#returned.push(item)
  }

  peek(): QueuedMessage | undefined {
    // What was given back is older than anything that never went out.
    return this.#returned?.peek() ?? this.#fresh.peek()
  }

  shift(): QueuedMessage | undefined {
    return this.#returned?.pop() ?? this.#fresh.shift()
  }
}
