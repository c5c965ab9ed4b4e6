import type { RawMessage } from '../../src/core/index.ts'
import { encodeData, event, type Message, Reject, RetryLater } from '../../src/core/index.ts'
import type { Delivery, Source } from '../../src/flow/index.ts'
import { Router } from '../../src/router/index.ts'

/** Stands in every payload below, and must stand nowhere else. */
export const SECRET = 'card-4111-1111-1111-1111'

export interface Order {
  orderId: string
  card: string
  fail?: 'transient' | 'permanent' | 'later' | 'quote'
}

export const OrderPlaced = event<Order>('order.placed')
export const InvoiceSent = event<{ orderId: string; card: string }>('invoice.sent')

/** A router that does what the order asks for. */
export function billing(): Router {
  return new Router('billing').on(OrderPlaced, async ({ data }) => {
    if (data.fail === 'transient') throw new Error('the card reader is busy')
    if (data.fail === 'permanent') throw new Reject('the card is refused')
    if (data.fail === 'later') throw new RetryLater('1s')
    if (data.fail === 'quote') JSON.parse(data.card)
    return InvoiceSent({ orderId: data.orderId, card: data.card })
  })
}

/** Gives each message once, in one session, and remembers how it was settled. */
export function listSource(messages: readonly Message[]): Source & { settled: string[] } {
  const waiting: Delivery[] = messages.map((message) => {
    const raw: RawMessage = encodeData(message)
    return { message: raw, key: raw.key, attempts: 0, size: 100 }
  })
  const settled: string[] = []
  return {
    name: 'list',
    features: { redelivers: true },
    settled,
    async open() {
      return {
        lost: new AbortController().signal,
        take: async ({ count }) => waiting.splice(0, count),
        async settle(batch) {
          for (const [delivery, { kind }] of batch) settled.push(`${delivery.message.id} ${kind}`)
          return 0
        },
        close: async () => {},
      }
    },
  }
}

/** One of each kind: handled, failing, refused, later, quoting its data in an error, malformed, and unknown. */
export function everyKind(): Message[] {
  const order = (id: string, fail?: Order['fail']) =>
    OrderPlaced({ orderId: id, card: SECRET, ...(fail === undefined ? {} : { fail }) }, { id, tenant: 'acme' })
  return [
    order('ok'),
    order('transient', 'transient'),
    order('permanent', 'permanent'),
    order('later', 'later'),
    order('quote', 'quote'),
    order('malformed').withData(`{"card":"${SECRET}`, 'raw'),
    event('order.unheard')({ card: SECRET }, { id: 'unknown' }),
  ]
}
