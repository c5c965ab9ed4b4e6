// CQRS: commands write orders and events, a projection keeps a list that needs no join, and queries read it page by page.
// PostgreSQL runs inside this process.
//
//   npm run build && npx tsx examples/13-cqrs.ts

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { PGlite } from '@electric-sql/pglite'
import { event } from 'waybill'
import { postgres } from 'waybill/postgres'
import { Projector, patch, patchWhere, projection, put, recentlyWritten } from 'waybill/projection'
import { FakeClock } from 'waybill/testing'
import { z } from 'zod'

const OrderCreated = event(
  'order.created',
  z.object({ orderId: z.string(), buyerId: z.string(), amount: z.number(), createdAt: z.string() }),
)
const OrderStatusChanged = event('order.status_changed', z.object({ orderId: z.string(), newStatus: z.string() }))
const UserNameChanged = event('user.name_changed', z.object({ userId: z.string(), newName: z.string() }))

const pglite = new PGlite()
const db = postgres({ pool: pglite, outbox: { log: true }, projections: true })
await db.migrate()
await pglite.exec(`CREATE TABLE users (id text PRIMARY KEY, name text NOT NULL);
  CREATE TABLE orders (id text PRIMARY KEY, buyer_id text NOT NULL REFERENCES users, status text NOT NULL,
    amount int NOT NULL, created_at timestamptz NOT NULL);
  INSERT INTO users VALUES ('ann', 'Ann'), ('bob', 'Bob')`)

// ── the view: everything that the list shows, in one row ──
const create = (table: string) => [
  `CREATE TABLE ${table} (order_id text PRIMARY KEY, buyer_id text NOT NULL, buyer_name text NOT NULL,
    status text NOT NULL, amount int NOT NULL, created_at timestamptz NOT NULL)`,
  `CREATE INDEX ON ${table} (buyer_id, created_at DESC, order_id DESC)`,
]
/** The user service; elsewhere a call over the network. */
const userName = async (id: string) =>
  (await pglite.query<{ name: string }>('SELECT name FROM users WHERE id = $1', [id])).rows[0]!.name
const orderList = projection('order_list_view', { version: 1, table: 'order_list_view', key: 'order_id', create })
  .on(OrderCreated, { enrich: ({ data }) => userName(data.buyerId) }, ({ data }, name) => {
    const { orderId, buyerId, amount, createdAt } = data
    return put(orderId, { buyer_id: buyerId, buyer_name: name, status: 'new', amount, created_at: createdAt })
  })
  .on(OrderStatusChanged, ({ data }) => patch(data.orderId, { status: data.newStatus }))
  .on(UserNameChanged, ({ data }) => patchWhere({ buyer_id: data.userId }, { buyer_name: data.newName }))
const projector = new Projector({ store: db, log: db.log, projections: [orderList] })

// ── cursors: where a page ended, signed together with the query it belongs to ──
interface Place {
  createdAt: string
  orderId: string
}
const secret = randomBytes(32)
const sign = (query: string, place: string) => createHmac('sha256', secret).update(`${query}\n${place}`).digest()

function cursorOf(query: string, { createdAt, orderId }: Place): string {
  const place = Buffer.from(JSON.stringify([createdAt, orderId])).toString('base64url')
  return `${place}.${sign(query, place).toString('base64url')}`
}

function placeOf(query: string, cursor: string): Place {
  const [place = '', signature = ''] = cursor.split('.')
  const given = Buffer.from(signature, 'base64url')
  const expected = sign(query, place)
  // Nothing of it is read before it is known to be ours, and of this query.
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) {
    throw new Error('this cursor was not given out for this list')
  }
  const [createdAt, orderId] = JSON.parse(Buffer.from(place, 'base64url').toString())
  return { createdAt, orderId }
}

// ── commands go to the write side ──
const clock = new FakeClock() // so that nobody has to wait here; leave it out
const written = recentlyWritten({ clock })
const commands = {
  /** Returns what was written, for the screen that comes next, and a token for whoever has to see it in the list. */
  async createOrder(orderId: string, buyerId: string, amount: number, createdAt: string) {
    const order = { orderId, buyerId, amount, createdAt }
    const receipts = await db.withTransaction(async (tx) => {
      const values = [orderId, buyerId, amount, createdAt]
      await tx.query(`INSERT INTO orders VALUES ($1, $2, 'new', $3, $4)`, values)
      return db.outbox.enqueue(tx, OrderCreated(order), { key: orderId })
    })
    await written.mark(buyerId)
    return { order, token: db.log.token(receipts) }
  },
  async changeStatus(orderId: string, newStatus: string) {
    await db.withTransaction(async (tx) => {
      await tx.query('UPDATE orders SET status = $2 WHERE id = $1', [orderId, newStatus])
      await db.outbox.enqueue(tx, OrderStatusChanged({ orderId, newStatus }), { key: orderId })
    })
  },
  async rename(userId: string, newName: string) {
    await db.withTransaction(async (tx) => {
      await tx.query('UPDATE users SET name = $2 WHERE id = $1', [userId, newName])
      await db.outbox.enqueue(tx, UserNameChanged({ userId, newName }), { key: userId })
    })
  },
}

// ── queries go to the view, or, for who has just written, to the main tables ──
const FROM = {
  view: 'order_list_view',
  main: `(SELECT orders.id AS order_id, buyer_id, name AS buyer_name, status, amount, created_at
    FROM orders JOIN users ON users.id = buyer_id) AS main`,
}
const queries = {
  async listByBuyer(buyerId: string, { cursor, size = 2 }: { cursor?: string | undefined; size?: number } = {}) {
    const query = JSON.stringify(['listByBuyer', buyerId])
    const from = (await written.has(buyerId)) ? 'main' : 'view'
    const after = cursor === undefined ? undefined : placeOf(query, cursor)
    // As text: a Date has fewer digits than PostgreSQL, and the page would begin a row too early or too late.
    const { rows } = await pglite.query<Record<string, string>>(
      `SELECT order_id, buyer_name, status, amount, created_at::text AS at FROM ${FROM[from]}
       WHERE buyer_id = $1 AND ($2::text IS NULL OR (created_at, order_id) < ($2::timestamptz, $3::text))
       ORDER BY created_at DESC, order_id DESC LIMIT $4`,
      [buyerId, after?.createdAt ?? null, after?.orderId ?? null, size + 1],
    )
    const page = rows.slice(0, size)
    const last = page.at(-1)
    const more = rows.length > size && last !== undefined
    const next = more ? cursorOf(query, { createdAt: last['at']!, orderId: last['order_id']! }) : undefined
    return { from, orders: page.map((row) => `${row['order_id']} ${row['status']} of ${row['buyer_name']}`), next }
  },
}
const show = (who: string, { from, orders, next }: Awaited<ReturnType<typeof queries.listByBuyer>>) =>
  console.log(`${who}  from the ${from}: ${orders.join(', ')}${next === undefined ? '' : ', and more'}`)

// Two orders at the same instant: the number of the order tells them apart.
const noon = '2026-03-01T12:00:00.123456Z'
for (const n of [1, 2, 3, 4]) await commands.createOrder(`A-${n}`, 'ann', n * 10, noon)
const { order, token } = await commands.createOrder('A-5', 'ann', 50, '2026-03-01T12:00:01Z')
console.log('shop returns what was written:', order.orderId, order.amount)
show('ann ', await queries.listByBuyer('ann'))

// The projector runs beside the service. Whoever has the token is told when the view has the write, or why it has not.
const before = await projector.view(orderList).waitFor(token, { timeout: 0 })
await projector.runOnce()
const after = await projector.view(orderList).waitFor(token)
console.log(`view before: ${before.answer}, after: ${after.answer}`)

await clock.advance(3000) // nobody has just written any more
await commands.changeStatus('A-4', 'paid')
await commands.rename('ann', 'Anna')
await projector.runOnce()
let page = await queries.listByBuyer('ann')
const first = page.next!
show('ann ', page)
// What is written between two pages moves none of them, and a cursor holds in the main tables as well as in the view.
await commands.createOrder('A-6', 'ann', 60, '2026-03-01T12:00:02Z')
page = await queries.listByBuyer('ann', { cursor: page.next })
show('ann ', page)
await clock.advance(3000)
show('ann ', await queries.listByBuyer('ann', { cursor: page.next }))

const refused = (what: string, cursor: string, buyer: string) =>
  queries.listByBuyer(buyer, { cursor }).catch((error: Error) => console.log(`${what}: ${error.message}`))
await refused('forged ', `${Buffer.from('["2026-01-01","A-1"]').toString('base64url')}.${first.split('.')[1]}`, 'ann')
await refused('foreign', first, 'bob')
await refused('nothing', 'x', 'ann')

await projector.stop()
await pglite.close()
