/** Buyers who order, cancel and change their names, and send again whatever was not answered. */
import { randomUUID } from 'node:crypto'
import { eventually } from '../../support/wait.ts'
import type { Shop } from './shop.ts'

const BUYERS = ['ann', 'bob', 'cem', 'dua']

export class Buyers {
  /** Orders that the service has confirmed to have. */
  readonly placed: string[] = []
  readonly #shop: Shop
  #number = 0
  #over = false

  constructor(shop: Shop) {
    this.#shop = shop
  }

  async comeIn(): Promise<void> {
    for (const buyer of BUYERS) await this.rename(buyer)
  }

  async rename(buyer: string): Promise<void> {
    await this.ask('PUT', `/buyers/${buyer}`, { name: `${buyer} ${++this.#number}` })
  }

  /** Of every seven one is cancelled at once, one a little later, and one asks for more than anybody gets. */
  async order(): Promise<void> {
    const n = ++this.#number
    const buyerId = BUYERS[n % BUYERS.length]!
    const orderId = randomUUID()
    const order = n % 7 === 3 ? { sku: 'pot', quantity: 11 } : { sku: n % 2 ? 'tea' : 'mug', quantity: 1 + (n % 3) }
    await this.ask('PUT', `/orders/${orderId}`, { buyerId, ...order })
    this.placed.push(orderId)
    if (n % 7 === 1) await this.cancel(orderId)
    if (n % 7 === 4 && this.placed.length > 3) await this.cancel(this.placed.at(-4)!)
    if (n % 9 === 0) await this.rename(buyerId)
  }

  async cancel(orderId: string): Promise<void> {
    await this.ask('POST', `/orders/${orderId}/cancel`)
  }

  /** So many at a time, until `leave`. */
  async come(atOnce = 2): Promise<void> {
    // With a pause: what piles up while a process is away has to be worked off on a slow machine too.
    const one = async () => {
      for (; !this.#over; await new Promise((resolve) => setTimeout(resolve, 100))) await this.order()
    }
    await Promise.all(Array.from({ length: atOnce }, one))
  }

  leave(): void {
    this.#over = true
  }

  /** Until it is answered: a request may have been carried out, and its answer lost. */
  async ask(method: string, path: string, body?: unknown): Promise<Response> {
    const text = body === undefined ? {} : { body: JSON.stringify(body) }
    return eventually(
      `${method} ${path} is answered`,
      async () => {
        const response = await fetch(this.#shop.url('api') + path, { method, ...text }).catch(() => undefined)
        if (response === undefined || response.status === 503) return undefined
        if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
        return response
      },
      { every: 50 },
    )
  }
}
