import type { AmqpChannel, AmqpDelivery } from '../../drivers/amqp.ts'

/** What one channel has given and not been told about, oldest first. It knows no tag of another channel. */
export class Unacked implements Iterable<AmqpDelivery> {
  readonly #channel: AmqpChannel
  /** By tag; the server counts upwards, so the order of insertion is the order of tags. */
  readonly #deliveries = new Map<number, AmqpDelivery>()
  #ended = false

  constructor(channel: AmqpChannel) {
    this.#channel = channel
  }

  [Symbol.iterator](): Iterator<AmqpDelivery> {
    return [...this.#deliveries.values()][Symbol.iterator]()
  }

  add(raw: AmqpDelivery): void {
    this.#deliveries.set(raw.fields.deliveryTag, raw)
  }

  /** Whether it came on this channel and is not settled: by the delivery itself, since other channels have the same tags. */
  has(raw: AmqpDelivery): boolean {
    return this.#deliveries.get(raw.fields.deliveryTag) === raw
  }

  /** All that are oldest with one word to the server, the others one by one. */
  ack(list: readonly AmqpDelivery[]): void {
    if (this.#ended) return
    const acked = new Set(list.filter((raw) => this.has(raw)))
    let last: AmqpDelivery | undefined
    let together = 0
    for (const raw of this.#deliveries.values()) {
      if (!acked.has(raw)) break
      last = raw
      together++
    }
    if (last !== undefined) this.#say(() => this.#channel.ack(last, together > 1))
    for (const raw of acked) {
      const { deliveryTag } = raw.fields
      this.#deliveries.delete(deliveryTag)
      if (last === undefined || deliveryTag > last.fields.deliveryTag) this.#say(() => this.#channel.ack(raw))
    }
  }

  requeue(raw: AmqpDelivery): void {
    if (this.#ended || !this.#deliveries.delete(raw.fields.deliveryTag)) return
    this.#say(() => this.#channel.nack(raw, false, true))
  }

  /** The channel is gone: nothing is said any more, and all of it is still unacked. */
  end(): void {
    this.#ended = true
  }

  #say(word: () => void): void {
    try {
      if (!this.#ended) word()
    } catch {
      // The channel has closed underneath; the session hears of it by itself, and what it held comes again.
      this.#ended = true
    }
  }
}
