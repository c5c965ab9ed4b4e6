// The one place where the status of an order changes, and with it the event that says so.

import { stores, type Tx } from './db.ts'
import { OrderStatusChanged } from './events.ts'

/** new → confirmed or cancelled; cancelling while a buyer's cancellation is carried out; stuck: a person must look. */
export type Status = 'confirmed' | 'cancelling' | 'cancelled' | 'stuck'

// A process of the release before knows nothing of version 2.
const isOldRelease = process.env['RELEASE'] === 'old'

/** Returns whether anything changed. What is so already is not told again. */
export async function changeStatus(tx: Tx, orderId: string, status: Status, reason: string): Promise<boolean> {
  // The update locks the row until the commit: events of one order are numbered in the order of their commits.
  const change = 'UPDATE orders SET status = $2, reason = $3 WHERE id = $1 AND status <> $2'
  const { rowCount } = await tx.query(change, [orderId, status, reason])
  if (rowCount === 0) return false
  const message = isOldRelease
    ? OrderStatusChanged.v(1)({ orderId, status })
    : OrderStatusChanged({ orderId, newStatus: status, reason })
  await stores.orders.outbox.enqueue(tx, message, { key: orderId })
  return true
}
