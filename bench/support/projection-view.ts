import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { type Projection, projection, put } from 'waybill/projection'
import { OrderPlaced, placed } from './pg-events.ts'

/** What everybody writes: the latest order of each customer. */
export const VIEW = `CREATE TABLE customers (
  id text PRIMARY KEY, name text NOT NULL, country text NOT NULL, last_order text NOT NULL, total numeric NOT NULL)`

export function customers(onEvent: () => void = () => {}): Projection {
  return projection('customers', { version: 1, table: 'customers', key: 'id', create: () => VIEW }).on(
    OrderPlaced,
    ({ data, key }) => {
      onEvent()
      const { customer, orderId, total } = data
      return put(key!, { name: customer.name, country: customer.country, last_order: orderId, total })
    },
  )
}

/** A log with so many events, through the product's own enqueue. */
export async function fillLog(url: string, events: number): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const db = postgres({ pool, outbox: { log: true }, projections: true })
  await db.migrate()
  for (let next = 0; next < events; next += 1000) {
    const batch = Array.from({ length: Math.min(1000, events - next) }, (_, i) => placed(next + i))
    await db.withTransaction((tx) => db.outbox.enqueue(tx, batch))
  }
  await pool.end()
}
