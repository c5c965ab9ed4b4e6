/** What must add up once everything is at rest: each query finds what does not, from the tables of all three services. */
import type pg from 'pg'
import { eventually } from '../../support/wait.ts'
import type { Shop } from './shop.ts'

/** The archive is empty here: nothing is older than a week. */
const REST = `SELECT
  (SELECT count(*) FROM orders.orders WHERE status NOT IN ('confirmed', 'cancelled'))::int AS open,
  (SELECT count(*) FROM orders.outbox_state WHERE pending)::int AS orders,
  (SELECT count(*) FROM inventory.outbox_state WHERE pending)::int AS inventory,
  (SELECT count(*) FROM billing.outbox_state WHERE pending)::int AS billing,
  (SELECT count(*) FROM orders.saga_executions WHERE status IN ('running', 'compensating'))::int AS sagas,
  (SELECT max(sequence) FROM orders.outbox) > (SELECT position FROM orders.projections) AS view,
  (SELECT count(*) FROM orders.outbox WHERE event_type = 'order.status_changed')
    - (SELECT count(*) FROM billing.letters) AS letters`

const WRONG = {
  'the view differs from the orders': `
    SELECT id FROM (SELECT o.id, buyer_id, name, status, total FROM orders.orders o JOIN orders.buyers b ON b.id = buyer_id) AS main
    FULL JOIN orders.order_list_view AS view ON order_id = id AND view.status = main.status AND view.total = main.total
      AND buyer_name = name AND view.buyer_id = main.buyer_id
    WHERE id IS NULL OR order_id IS NULL`,
  'open invoices are not those of confirmed orders': `
    SELECT id, order_id FROM (SELECT * FROM orders.orders WHERE status = 'confirmed') AS main
    FULL JOIN (SELECT * FROM billing.invoices WHERE state = 'open') AS invoices ON order_id = id AND invoices.total = main.total
    WHERE id IS NULL OR order_id IS NULL`,
  'reservations are not those of confirmed orders': `
    SELECT id, order_id FROM (SELECT * FROM orders.orders WHERE status = 'confirmed') AS main
    FULL JOIN inventory.reservations AS kept ON order_id = id AND kept.sku = main.sku AND kept.quantity = main.quantity
    WHERE id IS NULL OR order_id IS NULL`,
  'stock was lost or found': `
    SELECT sku, on_hand, sum(quantity) FROM inventory.stock LEFT JOIN inventory.reservations USING (sku) GROUP BY sku
    HAVING on_hand + COALESCE(sum(quantity), 0) <> CASE sku WHEN 'tea' THEN 500 WHEN 'mug' THEN 200 ELSE 20 END`,
  'a change of status has no letter, or more than one': `
    SELECT * FROM (SELECT (payload->>'orderId')::uuid AS order_id, count(*) FROM orders.outbox
      WHERE event_type = 'order.status_changed' GROUP BY 1) AS told
    FULL JOIN (SELECT order_id, count(*) FROM billing.letters GROUP BY 1) AS written USING (order_id, count)
    WHERE told IS NULL OR written IS NULL`,
  'something is dead, held or parked': `
    SELECT 'outbox' FROM orders.outbox WHERE state = 'dead' UNION ALL SELECT 'outbox' FROM billing.outbox WHERE state = 'dead'
    UNION ALL SELECT 'outbox' FROM inventory.outbox WHERE state = 'dead'
    UNION ALL SELECT held_reason FROM orders.saga_executions WHERE held_reason IS NOT NULL OR status = 'failed'
    UNION ALL SELECT error FROM orders.projections_parked`,
}

/** Waits until nothing moves any more. */
export async function atRest({ pool }: Shop): Promise<void> {
  let row: Record<string, unknown> = {}
  const still = async () => {
    row = (await pool.query(REST)).rows[0]
    return Object.values(row).every((value) => Number(value ?? 0) === 0)
  }
  await eventually('everything is at rest', still, { every: 100, seen: () => row })
}

/** What does not add up, by name; nothing, if all does. */
export async function audit(shop: Shop, placed: readonly string[]): Promise<Record<string, unknown>> {
  const wrong: Record<string, unknown> = {}
  const note = (name: string, rows: readonly unknown[]) => {
    if (rows.length > 0) wrong[name] = rows
  }
  for (const [name, query] of Object.entries(WRONG)) note(name, await rows(shop.pool, query))
  const there = new Set((await rows(shop.pool, 'SELECT id FROM orders.orders')).map(({ id }) => id))
  note(
    'an order that was answered is lost',
    placed.filter((id) => !there.has(id)),
  )
  const dead = await shop.deadLetters()
  note('messages are dead', dead === 0 ? [] : [dead])
  return wrong
}

export async function rows(pool: pg.Pool, query: string): Promise<Record<string, unknown>[]> {
  return (await pool.query(query)).rows
}
