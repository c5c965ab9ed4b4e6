import type { NatsDelivery } from './member.ts'

/**
 * What one session was given and has not settled, in the order it came: in hand, in stock, or being looked at. A list,
 * and not a map by place: one that grows and shrinks with every batch would leave more to the garbage collector than the
 * messages themselves, and only what comes out of order has to be looked for.
 */
export class Held {
  #deliveries: NatsDelivery[] = []
  #settled = 0
  /** The highest number in the stream that has come. */
  #highest = 0

  get size(): number {
    return this.#deliveries.length - this.#settled
  }

  has(delivery: NatsDelivery): boolean {
    return delivery.holder === this
  }

  /** What is held of this place. */
  find(sequence: number, place: string): NatsDelivery | undefined {
    if (sequence > this.#highest) return undefined
    return this.#deliveries.find((one) => this.has(one) && one.sequence === sequence && one.place === place)
  }

  /** One that has come; it takes the place of an earlier delivery of the same message. */
  add(delivery: NatsDelivery, earlier: NatsDelivery | undefined): void {
    if (earlier !== undefined) this.forget(earlier)
    this.#highest = Math.max(this.#highest, delivery.sequence)
    delivery.holder = this
    this.#deliveries.push(delivery)
  }

  /** It is settled, unless it has come again since: then that one is held in its place. */
  forget(delivery: NatsDelivery): void {
    if (!this.has(delivery)) return
    delivery.holder = undefined
    this.#settled++
    if (this.#settled === this.#deliveries.length) this.#deliveries = []
    else if (this.#settled > 1024 && this.#settled * 2 > this.#deliveries.length) this.#deliveries = this.all()
    else return
    this.#settled = 0
  }

  all(): NatsDelivery[] {
    return this.#deliveries.filter((delivery) => this.has(delivery))
  }
}
