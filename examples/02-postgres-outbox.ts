// An order and its event in one transaction; a relay; a consumer that handles each event once.
//
//   npm run build && npx tsx examples/02-postgres-outbox.ts                        PostgreSQL inside this process
//   DATABASE_URL=postgres://… npx tsx examples/02-postgres-outbox.ts               on that server
//
// Everything it makes is in the schema waybill_example, which it drops at the end.

import { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { event, Reject, Relay, Router, transactional } from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { postgres } from 'waybill/postgres'
import { z } from 'zod'

const OrderPlaced = event('order.placed', z.object({ orderId: z.string(), total: z.number() }))
const InvoiceSent = event('invoice.sent', z.object({ orderId: z.string(), amount: z.number() }))

const tables = { outbox: { table: 'waybill_example.outbox' }, inbox: { table: 'waybill_example.handled' } }
const { db, placeOrder, sql, close } =
  process.env['DATABASE_URL'] === undefined ? await embedded() : await onServer(process.env['DATABASE_URL'])

await sql('DROP SCHEMA IF EXISTS waybill_example CASCADE')
await db.migrate()
await sql('CREATE TABLE waybill_example.orders (id text PRIMARY KEY, total int NOT NULL CHECK (total < 1000))')
await sql('CREATE TABLE waybill_example.invoices (order_id text NOT NULL, amount int NOT NULL)')

// ── the order service ──
await placeOrder('A-1', 30)
await placeOrder('B-2', 12)
await placeOrder('C-3', 5000).catch((error: Error) => console.log(`shop     C-3 was rolled back: ${error.message}`))

// ── the relay: what was committed goes to the broker, here one inside this process ──
const broker = new InProcessBroker()
const billingQueue = broker.source('billing', { topics: ['order.*'] })
const mailQueue = broker.source('mail', { topics: ['invoice.*'] })
let refused = 1
const relay = new Relay({
  from: db.outbox,
  to: async (message) => {
    if (message.type === 'invoice.sent' && refused-- > 0) throw new Reject('the broker refuses it')
    const [outcome] = await broker.publish([message])
    if (outcome?.kind !== 'ok') throw outcome?.error
  },
})
console.log('relay   ', await relay.runOnce())

// ── billing: BEGIN, inbox, handler, its outputs into the outbox, COMMIT, and only then the ack ──
const billing = new Router('billing').use(transactional(db)).on(OrderPlaced, async ({ data }, { tx }) => {
  await tx.query('INSERT INTO waybill_example.invoices VALUES ($1, $2)', [data.orderId, data.total])
  console.log(`billing  ${data.orderId}: invoice over ${data.total}`)
  return InvoiceSent({ orderId: data.orderId, amount: data.total }, { key: data.orderId })
})
const billingConsumer = billing.consume(billingQueue, { concurrency: 1 })
await billingConsumer.runOnce()

// The same event once more, as after a crash: it is acked, and its handler not called.
const { message } = (await db.outbox.admin.show((await db.outbox.admin.list({ states: ['published'] }))[0]!.eventId))!
await broker.publish([message])
console.log('again   ', await billingConsumer.runOnce())

// ── what cannot be delivered is kept, with the reason, until a person decides ──
console.log('relay   ', await relay.runOnce())
const [dead] = await db.outbox.admin.list({ states: ['dead'] })
console.log(`dead     ${dead!.type} of ${dead!.key}: ${dead!.lastError}`)
await db.outbox.admin.rearm({ states: ['dead'] }, { by: 'anna', note: 'the broker is mended' })
console.log('relay   ', await relay.runOnce())

const mail = new Router('mail').on(InvoiceSent, ({ data }) => console.log(`mail     ${data.orderId}: ${data.amount}`))
const mailConsumer = mail.consume(mailQueue)
await mailConsumer.runOnce()

for (const worker of [billingConsumer, mailConsumer, relay]) await worker.stop()
const books = await sql(
  `SELECT (SELECT count(*)::int FROM waybill_example.orders) AS orders,
          (SELECT count(*)::int FROM waybill_example.invoices) AS invoices,
          (SELECT count(*)::int FROM waybill_example.outbox WHERE state = 'published') AS published`,
)
console.log('books   ', { ...books[0]! })
await sql('DROP SCHEMA waybill_example CASCADE')
await close()

/** With the pool a service already has. */
async function onServer(connectionString: string) {
  const pool = new pg.Pool({ connectionString })
  const db = postgres<Queryable>({ pool, ...tables })
  return {
    db,
    async placeOrder(orderId: string, total: number) {
      const client = await pool.connect()
      try {
        await client.query('BEGIN')
        await client.query('INSERT INTO waybill_example.orders VALUES ($1, $2)', [orderId, total])
        await db.outbox.enqueue(client, OrderPlaced({ orderId, total }), { key: orderId }) // the added line
        await client.query('COMMIT')
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      } finally {
        client.release()
      }
    },
    sql: async (text: string) => (await pool.query(text)).rows,
    close: () => pool.end(),
  }
}

/** The same in a PostgreSQL inside this process. */
async function embedded() {
  const pglite = new PGlite()
  const db = postgres<Queryable>({ pool: pglite, ...tables })
  return {
    db,
    placeOrder: (orderId: string, total: number) =>
      pglite.transaction(async (tx) => {
        await tx.query('INSERT INTO waybill_example.orders VALUES ($1, $2)', [orderId, total])
        await db.outbox.enqueue(tx, OrderPlaced({ orderId, total }), { key: orderId }) // the added line
      }),
    sql: async (text: string) => (await pglite.query<Record<string, unknown>>(text)).rows,
    close: () => pglite.close(),
  }
}

/** What both kinds of transaction can do. */
interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}
