// The inventory takes part in the saga: it reserves stock, or refuses, and releases it again.

import { Router, transactional } from 'waybill'
import { stores } from './db.ts'
import { ReleaseStock, ReserveStock, StockRefused, StockReleased, StockReserved } from './events.ts'

const db = stores.inventory

export const requests = [ReserveStock, ReleaseStock]

export const inventory = new Router('inventory')
  // BEGIN, inbox, handler, what it returns into the outbox, COMMIT; and only then the ack.
  .use(transactional(db))
  .on(ReserveStock, (message, { tx }) =>
    // A request that comes again gets its answer again; one that comes after its undo does nothing.
    db.barrier(tx, message, async () => {
      const { orderId, sku, quantity } = message.data
      const take = 'UPDATE stock SET on_hand = on_hand - $2 WHERE sku = $1 AND on_hand >= $2 RETURNING on_hand'
      const { rows } = await tx.query<{ on_hand: number }>(take, [sku, quantity])
      if (rows[0] === undefined) return StockRefused({ orderId })
      await tx.query('INSERT INTO reservations VALUES ($1, $2, $3)', [orderId, sku, quantity])
      return StockReserved({ left: rows[0].on_hand })
    }),
  )
  .on(ReleaseStock, (message, { tx }) =>
    db.barrier(tx, message, async () => {
      const { orderId } = message.data
      // Only what was reserved comes back: a request that was refused has run too, and has nothing to give.
      await tx.query(
        `WITH given AS (DELETE FROM reservations WHERE order_id = $1 RETURNING sku, quantity)
         UPDATE stock SET on_hand = on_hand + quantity FROM given WHERE stock.sku = given.sku`,
        [orderId],
      )
      return StockReleased({ orderId })
    }),
  )
