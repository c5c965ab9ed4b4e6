import { Fifo } from '../../core/fifo.ts'
import type { RawMessage } from '../../core/index.ts'
import type { Delivery } from '../../flow/index.ts'
import { Heap, type Node } from './heap.ts'

/** A message in a queue. */
export class Item implements Node {
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

/** Who takes from a queue: what it has in hand, and the lanes that only it may take more of. */
export class Holder {
  readonly inHand = new Set<Item>()
  readonly lanes = new Heap<Ready>(older)
}

/** Items and lanes compete for their turn by the age of their oldest message. */
export type Ready = Item | KeyLane

export const older = (a: { order: number }, b: { order: number }): boolean => a.order < b.order

/**
 * The messages of one key, in order. It is in at most one heap: that of everybody, or, while some of its messages are
 * in hand, that of whoever has them, so that nobody else gets a later one; and in none while it is blocked or empty.
 */
export class KeyLane implements Node {
  slot = -1
  /** Of its first message. */
  order = 0
  readonly key: string
  /** How many are in hand, all with one holder. */
  out = 0
  /** How many must come first and cannot yet: they wait for their retry, or are dead and block their key. */
  blocked = 0
  holder: Holder | undefined
  heap: Heap<Ready> | undefined
  readonly #fresh = new Fifo<Item>()
  #returned: Heap<Item> | undefined

  constructor(key: string) {
    this.key = key
  }

  get size(): number {
    return this.#fresh.size + (this.#returned?.size ?? 0)
  }

  add(item: Item): void {
    this.#fresh.push(item)
  }

  giveBack(item: Item): void {
    this.#returned ??= new Heap<Item>(older)
    this.#returned.push(item)
  }

  peek(): Item | undefined {
    // What was given back is older than anything that never went out.
    return this.#returned?.peek() ?? this.#fresh.peek()
  }

  shift(): Item | undefined {
    return this.#returned?.pop() ?? this.#fresh.shift()
  }
}
