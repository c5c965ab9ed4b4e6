// The outbox in a transaction of postgres.js, and one of withTransaction, where handlers need not pass it on.
//
//   npm run build && DATABASE_URL=postgres://… npx tsx examples/03-postgres-js.ts
//
// Everything it makes is in the schema waybill_example_3, which it drops at the end.

import postgresJs from 'postgres'
import { EventCollector, event, Relay, saveEvents } from 'waybill'
import { postgres } from 'waybill/postgres'

const url = process.env['DATABASE_URL']
if (url === undefined) {
  console.error('set DATABASE_URL to a PostgreSQL server; example 02 runs without one')
  process.exit(2)
}

const OrderPlaced = event<{ orderId: string }>('order.placed')
const OrderShipped = event<{ orderId: string }>('order.shipped')

const sql = postgresJs(url, { onnotice: () => {} })
const db = postgres({ pool: sql, outbox: { table: 'waybill_example_3.outbox' } })
await sql`DROP SCHEMA IF EXISTS waybill_example_3 CASCADE`
await db.migrate()
await sql`CREATE TABLE waybill_example_3.orders (id text PRIMARY KEY, state text NOT NULL)`

// In a transaction that was there before: one line more.
await sql.begin(async (tx) => {
  await tx`INSERT INTO waybill_example_3.orders VALUES ('A-1', 'placed')`
  await db.outbox.enqueue(tx, OrderPlaced({ orderId: 'A-1' }), { key: 'A-1' })
})

// An entity collects what happened to it. The events are forgotten after the commit, and only then.
class Order extends EventCollector {
  constructor(readonly id: string) {
    super()
  }

  ship(): void {
    this.record(OrderShipped({ orderId: this.id }))
  }
}

const order = new Order('A-1')
order.ship()
await db.withTransaction(async (tx) => {
  await tx`UPDATE waybill_example_3.orders SET state = 'shipped' WHERE id = ${order.id}`
  await saveEvents(db, db.outbox, order, { key: order.id })
  console.log(`before the commit the order still has ${order.recorded.length} event`)
})
console.log(`after it ${order.recorded.length}`)

const relay = new Relay({
  from: db.outbox,
  to: async (message) => console.log(`sent ${message.type} of ${message.key}`),
})
// One event of a key at a time: the second goes out when the first has arrived.
while ((await relay.runOnce()).taken > 0);
await relay.stop()
await sql`DROP SCHEMA waybill_example_3 CASCADE`
await sql.end()
