import { event, type Message } from 'waybill'

/** What all benchmarks send: about 300 bytes of JSON, spread over 2,000 keys. */
export const KEYS = 2000

export const OrderPlaced = event<ReturnType<typeof order>>('order.placed', undefined, { source: '/bench' })

export function order(i: number) {
  return {
    orderId: `order-${String(i).padStart(9, '0')}`,
    customer: { id: i % 10_000, name: 'A customer with a name of usual length', country: 'NL' },
    total: (i % 500) + 0.5,
    currency: 'EUR',
    lines: [
      { sku: 'SKU-000000000001', quantity: 1, price: 12.5 },
      { sku: 'SKU-000000000002', quantity: 2, price: 23.25 },
    ],
    note: 'Leave it with the neighbours, please.',
  }
}

export const keyOf = (i: number) => `customer-${i % KEYS}`

export function placed(i: number): Message {
  return OrderPlaced(order(i), { key: keyOf(i) })
}
