import { type Clock, Unavailable, withDeadline } from '../../core/index.ts'
import type { KafkaClient, KafkaProducer, OutgoingRecord } from '../../drivers/kafka/kafka.ts'

/**
 * A producer, and another in its place after every failure. Records of a failed request may have arrived, and the next
 * request of the same producer would go out under their sequence numbers: the server would take it for their
 * repetition and discard it as a duplicate. So requests go one after the other, and none after one that failed.
 */
export class Sender {
  readonly #client: KafkaClient
  readonly #timeout: number
  readonly #clock: Clock
  readonly #partitionOf = partitioner()
  #producer: Promise<KafkaProducer> | undefined
  #turn: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(client: KafkaClient, timeout: number, clock: Clock) {
    this.#client = client
    this.#timeout = timeout
    this.#clock = clock
  }

  /** Connects early, for these topics. */
  async start(topics: readonly string[]): Promise<void> {
    const producer = this.#connected(topics)
    try {
      await this.#within(producer)
    } catch (error) {
      this.#drop(producer)
      throw error
    }
  }

  /** Resolves when all of them are there; a rejection says nothing about any of them. */
  async send(records: readonly OutgoingRecord[]): Promise<void> {
    const sending = this.#turn.then(() => this.#send(records))
    this.#turn = sending.catch(() => {})
    await sending
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#turn
    const producer = this.#producer
    this.#producer = undefined
    await (await producer?.catch(() => undefined))?.close().catch(() => {})
  }

  async #send(records: readonly OutgoingRecord[]): Promise<void> {
    if (this.#closed) throw new Unavailable('the publisher is closed')
    const producer = this.#connected(records.map(({ topic }) => topic))
    try {
      await this.#within(producer.then((connected) => connected.send(records)))
    } catch (error) {
      this.#drop(producer)
      throw error
    }
  }

  #connected(topics: readonly string[]): Promise<KafkaProducer> {
    const partitionOf = this.#partitionOf
    this.#producer ??= this.#client.producer({ partitionOf, timeout: this.#timeout, topics: [...new Set(topics)] })
    return this.#producer
  }

  #drop(producer: Promise<KafkaProducer>): void {
    if (this.#producer === producer) this.#producer = undefined
    producer.then((connected) => connected.close()).catch(() => {})
  }

  #within<T>(work: Promise<T>): Promise<T> {
    return withDeadline(work, this.#timeout, this.#clock, () => {
      throw new Unavailable(`Kafka has not responded within ${this.#timeout} ms`)
    })
  }
}

/**
 * The partition of a record. A key always has the same, and the same as with Java's clients, as long as the number of
 * partitions stays. Records without a key go round.
 */
export function partitioner(): (record: OutgoingRecord, partitions: number) => number {
  let next = 0
  return ({ key }, partitions) => {
    if (key !== null) return (murmur2(key) & 0x7fffffff) % partitions
    next = (next + 1) % 0x7fffffff
    return next % partitions
  }
}

const M = 0x5bd1e995

/** As in org.apache.kafka.common.utils.Utils. */
function murmur2(data: Uint8Array): number {
  const { length } = data
  const whole = length & ~3
  let h = 0x9747b28c ^ length
  for (let i = 0; i < whole; i += 4) {
    let k = data[i]! | (data[i + 1]! << 8) | (data[i + 2]! << 16) | (data[i + 3]! << 24)
    k = Math.imul(k, M)
    k = Math.imul(k ^ (k >>> 24), M)
    h = Math.imul(h, M) ^ k
  }
  const rest = length & 3
  if (rest > 2) h ^= data[whole + 2]! << 16
  if (rest > 1) h ^= data[whole + 1]! << 8
  if (rest > 0) h = Math.imul(h ^ data[whole]!, M)
  h = Math.imul(h ^ (h >>> 13), M)
  return h ^ (h >>> 15)
}
