// The commands. Each is one transaction: the order, its saga and its events are committed together or not at all.

import { stores } from './db.ts'
import { BuyerNameChanged, OrderCreated } from './events.ts'
import { sagas } from './saga.ts'
import { changeStatus } from './status.ts'

const db = stores.orders

/** In cents. */
const PRICES: Record<string, number> = { tea: 450, mug: 1200, pot: 9900 }

export class NotFound extends Error {}
export class Refused extends Error {}

export interface NewOrder {
  readonly orderId: string
  readonly buyerId: string
  readonly sku: string
  readonly quantity: number
}

/** The id is the client's: a request that is sent again, because no answer came, finds its order and changes nothing. */
export async function placeOrder({ orderId, buyerId, sku, quantity }: NewOrder) {
  const price = PRICES[sku]
  if (price === undefined) throw new Refused(`there is no ${sku}`)
  const total = price * quantity
  const receipts = await db.withTransaction(async (tx) => {
    const buyer = await tx.query('SELECT FROM buyers WHERE id = $1', [buyerId])
    if (buyer.rowCount === 0) throw new Refused(`there is no buyer ${buyerId}`)
    const { rows } = await tx.query<{ at: string }>(
      `INSERT INTO orders (id, buyer_id, sku, quantity, total) VALUES ($1, $2, $3, $4, $5)
       ON CONFLICT (id) DO NOTHING RETURNING created_at::text AS at`,
      [orderId, buyerId, sku, quantity, total],
    )
    if (rows[0] === undefined) return []
    // The id of the order is that of its saga: so it is found when the order is cancelled.
    await sagas.start(tx, { orderId, buyerId, sku, quantity, total }, { id: orderId })
    const created = OrderCreated({ orderId, buyerId, total, createdAt: rows[0].at })
    return db.outbox.enqueue(tx, created, { key: orderId })
  })
  // Stands for this write; a query that is given it waits until the view has it.
  return { total, token: receipts.length === 0 ? undefined : db.log.token(receipts) }
}

/** Undoes a confirmed order as well as one that is still being fulfilled. */
export async function cancelOrder(orderId: string): Promise<void> {
  await db.withTransaction(async (tx) => {
    const { rowCount } = await tx.query('SELECT FROM orders WHERE id = $1', [orderId])
    if (rowCount === 0) throw new NotFound(`there is no order ${orderId}`)
    // The saga first, then the order, as at the end of a saga: two that lock in different order would wait for each other.
    await sagas.cancel(tx, orderId, 'cancelled by the buyer')
    const { rows } = await tx.query('SELECT status FROM orders WHERE id = $1 FOR UPDATE', [orderId])
    if (rows[0].status === 'cancelled') return
    await changeStatus(tx, orderId, 'cancelling', 'cancelled by the buyer')
  })
}

export async function nameBuyer(buyerId: string, newName: string): Promise<void> {
  await db.withTransaction(async (tx) => {
    const upsert = 'INSERT INTO buyers VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET name = excluded.name'
    await tx.query(upsert, [buyerId, newName])
    await db.outbox.enqueue(tx, BuyerNameChanged({ buyerId, newName }), { key: buyerId })
  })
}
