import type { AmqpChannel, AmqpDelivery } from '../../drivers/amqp.ts'

/**
 * The unacked deliveries of one channel, oldest first. It knows no tag of another channel. The server
 * counts tags upwards one by one, so they are places in a list: a map that grows and shrinks with every batch would
 * leave much more to the garbage collector than the messages themselves.
 */
export class Unacked implements Iterable<AmqpDelivery> {
  readonly #channel: AmqpChannel
  /** By tag, from `#first` on; a gap is settled. The oldest is never a gap. */
  #deliveries: (AmqpDelivery | undefined)[] = []
  #first = 0
  #head = 0
  #ended = false

  constructor(channel: AmqpChannel) {
    this.#channel = channel
  }

  [Symbol.iterator](): Iterator<AmqpDelivery> {
    return this.#deliveries
      .slice(this.#head)
      .filter((raw) => raw !== undefined)
      [Symbol.iterator]()
  }

  add(raw: AmqpDelivery): void {
    const { deliveryTag } = raw.fields
    if (this.#deliveries.length === 0) this.#first = deliveryTag
    while (this.#first + this.#deliveries.length < deliveryTag) this.#deliveries.push(undefined)
    this.#deliveries[deliveryTag - this.#first] = raw
  }

  /** Whether it came on this channel and is not settled: by the delivery itself, since other channels have the same tags. */
  has(raw: AmqpDelivery): boolean {
    return this.#deliveries[raw.fields.deliveryTag - this.#first] === raw
  }

  /** All that are oldest with one word to the server, the others one by one. */
  ack(list: readonly AmqpDelivery[]): void {
    if (this.#ended) return
    const acked = list.filter((raw) => this.#remove(raw))
    const oldest = this.#advance()
    const others: AmqpDelivery[] = []
    let last: AmqpDelivery | undefined
    let together = 0
    for (const raw of acked) {
      const { deliveryTag } = raw.fields
      // Below the oldest everything is acked now, or was before.
      if (deliveryTag > oldest) others.push(raw)
      else {
        together++
        if (last === undefined || deliveryTag > last.fields.deliveryTag) last = raw
      }
    }
    if (last !== undefined) this.#say(() => this.#channel.ack(last, together > 1))
    for (const raw of others) this.#say(() => this.#channel.ack(raw))
  }

  requeue(raw: AmqpDelivery): void {
    this.#nack(raw, true)
  }

  /** To the queue's dead-letter exchange, as it is. */
  reject(raw: AmqpDelivery): void {
    this.#nack(raw, false)
  }

  #nack(raw: AmqpDelivery, requeue: boolean): void {
    if (this.#ended || !this.#remove(raw)) return
    this.#advance()
    this.#say(() => this.#channel.nack(raw, false, requeue))
  }

  /** The channel is gone: nothing is said any more, and all of it is still unacked. */
  end(): void {
    this.#ended = true
  }

  #remove(raw: AmqpDelivery): boolean {
    if (!this.has(raw)) return false
    this.#deliveries[raw.fields.deliveryTag - this.#first] = undefined
    return true
  }

  /** Returns the tag of the oldest; where there is none, of the next to come. */
  #advance(): number {
    const deliveries = this.#deliveries
    while (this.#head < deliveries.length && deliveries[this.#head] === undefined) this.#head++
    const oldest = this.#first + this.#head
    if (this.#head === deliveries.length) {
      this.#deliveries = []
      this.#head = 0
    } else if (this.#head > 1024 && this.#head * 2 > deliveries.length) {
      this.#deliveries = deliveries.slice(this.#head)
      this.#first = oldest
      this.#head = 0
    }
    return oldest
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
