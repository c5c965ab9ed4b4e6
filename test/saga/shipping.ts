import { event, type Message, Router } from '../../src/index.ts'
import { saga } from '../../src/saga/index.ts'

/** An order that is shipped by another service: its messages, its saga, and the answer of that service. */

export const Ship = event<{ order: string }>('ship.wanted')
export const Cancel = event<{ order: string }>('ship.cancel')
export const Shipped = event<{ parcel: number }>('ship.done')
export const Refused = event<object>('ship.refused')
export const Cancelled = event<object>('ship.cancelled')

export interface Order {
  id: string
}

export const shipping = (more: object = {}, version = 1) =>
  saga<Order>('order', { version, aggregate: ({ id }) => id })
    .transaction('reserve', () => 1, { undo: () => {} })
    .request('ship', {
      send: (c) => Ship({ order: c.input.id }),
      reply: Shipped,
      undo: (c) => Cancel({ order: c.input.id }),
      ...more,
    })
    .transaction('bill', () => 2, { undo: () => {} })

export const context = {
  signal: new AbortController().signal,
  attempt: 1,
  router: 'x',
  ack: () => true,
  nack: () => true,
}

/** As a participant's router would answer. */
export async function answer(request: Message, reply: Message): Promise<Message> {
  const key = { ...event(request.type), decode: (message: Message) => message }
  const router = new Router('participant').on(key as never, () => reply)
  return ((await router.handle(request, context)) as Message[])[0]!
}
