import type { RawMessage } from '../../core/index.ts'
import type { Delivery, Demand } from '../../flow/index.ts'

/** What becomes of a request. `later`: this message, after so many milliseconds. `away`: not now, whatever it is. */
export type Reply = 'done' | 'refused' | 'away' | { readonly later: number }

/** A message that came, and the requests that wait for what becomes of it. */
export class Arrival {
  readonly name: string
  readonly message: RawMessage
  readonly size: number
  readonly waiting = new Set<(reply: Reply) => void>()
  /** The delivery that a session was given for it, while that is unsettled. */
  delivery: HttpDelivery | undefined

  constructor(name: string, message: RawMessage, size: number) {
    this.name = name
    this.message = message
    this.size = size
  }
}

/** A webhook that waits for its answer. */
export interface HttpDelivery extends Delivery {
  readonly arrival: Arrival
}

/**
 * Messages between the requests that brought them and the sessions that take them. One that comes again while it is
 * here is not a second message: its sender lost patience, and both requests get the same answer.
 */
export class Arrivals {
  readonly #known = new Map<string, Arrival>()
  #queue: Arrival[] = []
  readonly #onArrival: () => void

  constructor(onArrival: () => void) {
    this.#onArrival = onArrival
  }

  get size(): number {
    return this.#known.size
  }

  get queued(): number {
    return this.#queue.length
  }

  /** Whether it is here already. */
  has(message: RawMessage): boolean {
    return this.#known.has(nameOf(message))
  }

  add(message: RawMessage, size: number): Arrival {
    const name = nameOf(message)
    const known = this.#known.get(name)
    if (known !== undefined) return known
    const arrival = new Arrival(name, message, size)
    this.#known.set(name, arrival)
    this.#queue.push(arrival)
    this.#onArrival()
    return arrival
  }

  take({ count, bytes }: Demand): HttpDelivery[] {
    const taken: HttpDelivery[] = []
    let total = 0
    for (const arrival of this.#queue) {
      total += arrival.size
      if (taken.length >= count || (taken.length > 0 && total > bytes)) break
      const { message, size } = arrival
      arrival.delivery = { message, key: message.key, attempts: 0, size, arrival }
      taken.push(arrival.delivery)
    }
    this.#queue.splice(0, taken.length)
    return taken
  }

  /** `false`: it is not unsettled as this delivery. */
  settle(delivery: HttpDelivery, reply: Reply): boolean {
    const { arrival } = delivery
    if (arrival.delivery !== delivery) return false
    this.#end(arrival, reply)
    return true
  }

  /** Back to where they were, as if they had never been taken. Returns how many were not unsettled. */
  giveBack(deliveries: readonly HttpDelivery[]): number {
    const back = deliveries.filter((delivery) => delivery.arrival.delivery === delivery).map(({ arrival }) => arrival)
    for (const arrival of back) arrival.delivery = undefined
    // A sender that gave up waiting meanwhile will send it again.
    const wanted = back.filter((arrival) => arrival.waiting.size > 0)
    for (const arrival of back) if (arrival.waiting.size === 0) this.#end(arrival, 'away')
    this.#queue = [...wanted, ...this.#queue]
    if (wanted.length > 0) this.#onArrival()
    return deliveries.length - back.length
  }

  /** Nobody waits for it any more: if it has not gone out it need not. */
  abandon(arrival: Arrival): void {
    if (arrival.delivery !== undefined || arrival.waiting.size > 0) return
    const at = this.#queue.indexOf(arrival)
    if (at < 0) return
    this.#queue.splice(at, 1)
    this.#known.delete(arrival.name)
  }

  /** Gives everybody who waits this reply, and forgets all arrivals. */
  clear(reply: Reply): void {
    for (const arrival of [...this.#known.values()]) this.#end(arrival, reply)
    this.#queue = []
  }

  #end(arrival: Arrival, reply: Reply): void {
    arrival.delivery = undefined
    this.#known.delete(arrival.name)
    for (const resolve of arrival.waiting) resolve(reply)
    arrival.waiting.clear()
  }
}

function nameOf({ source, id }: RawMessage): string {
  return `${source}\0${id}`
}
