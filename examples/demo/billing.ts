// The other service: a database of its own, and a router that writes one invoice for each order.

import { PGlite } from '@electric-sql/pglite'
import { Router, transaction, transactional } from 'waybill'
import { postgres } from 'waybill/postgres'
import { serve } from './child.ts'
import { OrderPlaced } from './events.ts'
import { Gateway, type Manners } from './http.ts'

const [folder, lose, without] = process.argv.slice(2) as [string, string, string]
const pglite = await PGlite.create(folder)
// Nothing here keeps a second invoice for an order out: if one were written, it would show.
await pglite.exec(
  'CREATE TABLE IF NOT EXISTS invoices (number serial, order_id int NOT NULL, customer text NOT NULL, amount int NOT NULL)',
)

const db = postgres({ pool: pglite })
await db.migrate()

const gateway = new Gateway()
gateway.lose = Number(lose)
const counts = { invoices: 0, duplicates: 0 }

let called = 0
const billing = new Router('billing')
  // BEGIN, inbox, handler, COMMIT, and only then the ack. Without the inbox a duplicate has an effect.
  .use(without === 'inbox' ? transaction(db) : transactional(db))
  .on(OrderPlaced, async ({ data }, { tx }) => {
    called++
    const { orderId, customer, total } = data
    await tx.query('INSERT INTO invoices (order_id, customer, amount) VALUES ($1, $2, $3)', [orderId, customer, total])
  })
const consumer = billing.consume(gateway, { concurrency: 8 })

const url = await gateway.listen()
await consumer.start()

serve({
  url: () => url,
  counts: () => {
    counts.invoices = called
    counts.duplicates = gateway.delivered - called
    return { ...counts, delivered: gateway.delivered, unanswered: gateway.unanswered }
  },
  behave: (manners) => gateway.behave(manners as Manners),
  books: async () => {
    const { rows } = await pglite.query<{ order_id: number; customer: string }>(
      'SELECT order_id, customer FROM invoices ORDER BY number',
    )
    const inbox = await pglite.query<{ n: number }>('SELECT count(*)::int AS n FROM processed_messages')
    return { invoices: rows, remembered: inbox.rows[0]!.n, delivered: gateway.delivered }
  },
  stop: async () => {
    gateway.close()
    await consumer.stop()
    await pglite.close()
  },
})
