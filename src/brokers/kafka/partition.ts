import { Fifo } from '../../core/fifo.ts'
import type { RawMessage } from '../../core/index.ts'
import type { KafkaPlace, KafkaRecord } from '../../drivers/kafka/kafka.ts'
import type { Delivery } from '../../flow/index.ts'

/** A record as a group gave it. */
export interface KafkaDelivery extends Delivery {
  readonly from: AssignedPartition
  readonly record: KafkaRecord
  /** It is among the dead letters, though perhaps not committed yet. */
  deadLettered: boolean
  /** Handed out and not settled. */
  out: boolean
}

/** A record that was out alone, and the attempts it had spent before. */
export interface Spent {
  readonly offset: number
  readonly attempts: number
}

export function placeKey({ topic, partition }: KafkaPlace): string {
  return `${topic}/${partition}`
}

/** A record nobody could handle, and why. */
export interface BadRecord {
  readonly from: AssignedPartition
  readonly record: KafkaRecord
  readonly reason: string
  readonly attempts: number
  readonly message: RawMessage | undefined
}

/**
 * One partition during one generation: what was read of it, what is done, and how far all is done without a gap. Only
 * that can be committed, so what is done beyond a gap waits, and comes again after a crash.
 */
export class AssignedPartition implements KafkaPlace {
  readonly name: string
  readonly topic: string
  readonly partition: number
  /** The offset of the next record to be read. */
  position: number
  /** The offset the group has committed. */
  committed: number
  /** The mark beside it must be written again. */
  dirty = false
  alone: Spent | undefined
  /** What was out alone when somebody before us fell silent. */
  spent: Spent | undefined
  paused = false
  /** Where reading went on although it should not have, last time. */
  strayed: number | undefined
  /** Of keys and values that wait. */
  waitingBytes = 0
  /** Read and not handed out, by offset. */
  readonly #waiting = new Fifo<KafkaRecord>()
  /** Those of them that were handed out before, by offset. */
  readonly #returned = new Map<number, KafkaDelivery>()
  /** The offsets that were read, from the first that is not done. */
  readonly #order = new Fifo<number>()
  readonly #done = new Set<number>()

  constructor({ topic, partition }: KafkaPlace, committed: number) {
    this.name = placeKey({ topic, partition })
    this.topic = topic
    this.partition = partition
    this.position = committed
    this.committed = committed
  }

  get waiting(): number {
    return this.#waiting.size
  }

  /** How many were read beyond the first that is not done. */
  get ahead(): number {
    return this.#order.size
  }

  /** Up to here all is done. */
  get finished(): number {
    return this.#order.peek() ?? this.position
  }

  offer(record: KafkaRecord): void {
    this.#order.push(record.offset)
    this.#waiting.push(record)
    this.waitingBytes += bytesOf(record)
  }

  take(): KafkaRecord | undefined {
    const record = this.#waiting.shift()
    if (record !== undefined) this.waitingBytes -= bytesOf(record)
    return record
  }

  /** At its old place: what is given back goes before what has not been handed out. */
  giveBack(delivery: KafkaDelivery): void {
    const { offset } = delivery.record
    let place = 0
    for (const record of this.#waiting) {
      if (record.offset > offset) break
      place++
    }
    this.#waiting.insert(place, [delivery.record])
    this.waitingBytes += bytesOf(delivery.record)
    this.#returned.set(offset, delivery)
  }

  /** The delivery of a record that was given back. */
  returned({ offset }: KafkaRecord): KafkaDelivery | undefined {
    if (this.#returned.size === 0) return undefined
    const delivery = this.#returned.get(offset)
    this.#returned.delete(offset)
    return delivery
  }

  done(offset: number): void {
    if (offset < this.finished) return
    if (offset === this.#order.peek()) this.#order.shift()
    else this.#done.add(offset)
    if (this.alone?.offset === offset) {
      this.alone = undefined
      this.dirty = true
    }
    while (this.#done.size > 0 && this.#done.delete(this.finished)) this.#order.shift()
  }
}

function bytesOf({ key, value }: KafkaRecord): number {
  return (key?.length ?? 0) + (value?.length ?? 0)
}
