import { z } from 'zod'
import { event } from '../../src/index.ts'
import { add, type Projection, patch, patchWhere, projection, put } from '../../src/projection/index.ts'

export const OrderCreated = event(
  'order.created',
  z.object({ orderId: z.string(), buyerId: z.string(), status: z.string(), amount: z.number(), at: z.string() }),
)
export const OrderStatusChanged = event(
  'order.status_changed',
  z.object({ orderId: z.string(), newStatus: z.string() }),
)
export const UserNameChanged = event('user.name_changed', z.object({ userId: z.string(), newName: z.string() }))
export const ItemAdded = event('order.item_added', z.object({ orderId: z.string(), price: z.number() }))
export const Other = event<{ n: number }>('other.happened')

export const CREATE = (table: string) => [
  `CREATE TABLE ${table} (
    order_id text PRIMARY KEY, buyer_id text NOT NULL, buyer_name text NOT NULL, status text NOT NULL,
    amount numeric NOT NULL, item_count int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL)`,
  `CREATE INDEX ON ${table} (buyer_id, created_at DESC, order_id DESC)`,
]

/** B's view. `names`: what the other service answers. */
export function orders(
  names: (buyerId: string, signal: AbortSignal) => Promise<string> | string = (id) => `name of ${id}`,
  options: Partial<Parameters<typeof projection>[1]> = {},
): Projection {
  const common = { version: 1, table: 'order_list_view', key: 'order_id', create: CREATE, ...options }
  return projection('order_list_view', common)
    .on(OrderCreated, { enrich: ({ data }, { signal }) => names(data.buyerId, signal) }, ({ data }, name) =>
      put(data.orderId, {
        ...{ buyer_id: data.buyerId, buyer_name: name, status: data.status, amount: data.amount },
        created_at: new Date(data.at),
      }),
    )
    .on(OrderStatusChanged, ({ data }) => patch(data.orderId, { status: data.newStatus }))
    .on(UserNameChanged, ({ data }) => patchWhere({ buyer_id: data.userId }, { buyer_name: data.newName }))
    .on(ItemAdded, ({ data }) => add(data.orderId, { item_count: 1, amount: data.price }))
}

export const created = (orderId: string, changes: Partial<{ buyerId: string; status: string; amount: number }> = {}) =>
  OrderCreated(
    { orderId, buyerId: 'b1', status: 'new', amount: 10, at: '2026-01-01T00:00:00.000Z', ...changes },
    { key: orderId },
  )
export const changed = (orderId: string, newStatus: string) =>
  OrderStatusChanged({ orderId, newStatus }, { key: orderId })
export const itemAdded = (orderId: string, price: number) => ItemAdded({ orderId, price }, { key: orderId })
export const renamed = (userId: string, newName: string) => UserNameChanged({ userId, newName }, { key: userId })

export interface OrderRow {
  readonly order_id: string
  readonly buyer_id: string
  buyer_name: string
  status: string
  amount: number
  item_count: number
}

/** What the view must be: these events one after the other. `nameOf` is what the other service answers when it is asked last. */
export function fold(
  events: readonly { type: string; data: unknown }[],
  nameOf: (buyerId: string) => string,
): OrderRow[] {
  const rows = new Map<string, OrderRow>()
  for (const { type, data } of events) {
    const of = data as Record<string, string> & { amount: number; price: number }
    const row = rows.get(of['orderId']!)
    if (type === OrderCreated.type) {
      const { orderId, buyerId, status, amount } = of as unknown as Record<'orderId' | 'buyerId' | 'status', string> & {
        amount: number
      }
      const put = { order_id: orderId, buyer_id: buyerId, buyer_name: nameOf(buyerId), status, amount }
      rows.set(orderId, { item_count: row?.item_count ?? 0, ...put })
    } else if (type === UserNameChanged.type) {
      for (const one of rows.values()) if (one.buyer_id === of['userId']) one.buyer_name = of['newName']!
    } else if (row !== undefined && type === OrderStatusChanged.type) row.status = of['newStatus']!
    else if (row !== undefined && type === ItemAdded.type) {
      row.item_count++
      row.amount += of.price
    }
  }
  return [...rows.values()].sort((a, b) => (a.order_id < b.order_id ? -1 : 1))
}
