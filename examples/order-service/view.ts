// The query side: a table that has all a list of orders shows, kept up to date from the log, and read page by page.

import { createHmac, timingSafeEqual } from 'node:crypto'
import { type LogToken, Projector, patch, patchWhere, projection, put, viewOf } from 'waybill/projection'
import { pools, stores } from './db.ts'
import { BuyerNameChanged, OrderCreated, OrderStatusChanged } from './events.ts'
import { Refused } from './orders.ts'
import { LEASE } from './saga.ts'

const orderList = projection('order_list_view', {
  version: 1,
  table: 'order_list_view',
  key: 'order_id',
  create: (table) => [
    `CREATE TABLE ${table} (order_id uuid PRIMARY KEY, buyer_id text NOT NULL, buyer_name text NOT NULL,
       status text NOT NULL, reason text NOT NULL, total int NOT NULL, created_at timestamptz NOT NULL)`,
    `CREATE INDEX ON ${table} (buyer_id, created_at DESC, order_id DESC)`,
  ],
})
  .on(OrderCreated, { enrich: ({ data }) => nameOf(data.buyerId) }, ({ data }, buyer_name) => {
    const { orderId, buyerId, total, createdAt } = data
    return put(orderId, { buyer_id: buyerId, buyer_name, status: 'new', reason: '', total, created_at: createdAt })
  })
  // Both versions arrive here, in the form of the newer.
  .on(OrderStatusChanged, ({ data }) => patch(data.orderId, { status: data.newStatus, reason: data.reason }))
  .on(BuyerNameChanged, ({ data }) => patchWhere({ buyer_id: data.buyerId }, { buyer_name: data.newName }))

/** Elsewhere a call to the service of the buyers; it is made before the transaction, and tried again when it fails. */
async function nameOf(buyerId: string): Promise<string> {
  const { rows } = await pools.orders.query<{ name: string }>('SELECT name FROM buyers WHERE id = $1', [buyerId])
  return rows[0]!.name
}

export const projector = () =>
  new Projector({ store: stores.orders, log: stores.orders.log, projections: [orderList], lease: LEASE })

const view = viewOf(stores.orders, orderList)
const SELECT = `SELECT order_id, buyer_name, status, reason, total, created_at::text AS at FROM order_list_view
  WHERE buyer_id = $1 AND ($2::text IS NULL OR (created_at, order_id) < ($2::timestamptz, $3::uuid))
  ORDER BY created_at DESC, order_id DESC LIMIT $4`

export interface Page {
  readonly size: number
  readonly cursor?: string | undefined
  /** Of a write that the list must have. */
  readonly token?: LogToken | undefined
}

/** The newest first. `view` says whether the list has the write it was asked for, and if not, why. */
export async function listOrders(buyerId: string, { size, cursor, token }: Page) {
  const reached = token === undefined ? undefined : await view.waitFor(token, { timeout: '2s' })
  const [at = null, id = null] = cursor === undefined ? [] : placeOf(buyerId, cursor)
  const found = pools.orders.query<Record<string, string>>(SELECT, [buyerId, at, id, size + 1])
  const { rows } = await found.catch((error: { code?: string }) => {
    // Its projector makes the table when it first runs, perhaps a moment after this process.
    if (error.code === '42P01') return { rows: undefined }
    throw error
  })
  if (rows === undefined) return { orders: [], view: 'building' }
  const orders = rows.slice(0, size)
  const last = orders.at(-1)
  const next = rows.length > size && last ? cursorOf(buyerId, [last['at']!, last['order_id']!]) : undefined
  return { orders, next, view: reached?.answer }
}

// A cursor is where a page ended, signed together with whose list it is: nobody can make one, or use another's.
const SECRET = process.env['CURSOR_SECRET'] ?? 'only for trying it out'
const sign = (buyerId: string, place: string) => createHmac('sha256', SECRET).update(`${buyerId}\n${place}`).digest()

function cursorOf(buyerId: string, at: readonly string[]): string {
  const place = Buffer.from(JSON.stringify(at)).toString('base64url')
  return `${place}.${sign(buyerId, place).toString('base64url')}`
}

function placeOf(buyerId: string, cursor: string): string[] {
  const [place = '', signature = ''] = cursor.split('.')
  const given = Buffer.from(signature, 'base64url')
  const expected = sign(buyerId, place)
  // Nothing of it is read before it is known to be ours.
  const ours = given.length === expected.length && timingSafeEqual(given, expected)
  if (!ours) throw new Refused('this cursor was not given out for this list')
  return JSON.parse(Buffer.from(place, 'base64url').toString())
}
