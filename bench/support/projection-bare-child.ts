/**
 * The ceiling: the same log into the same table by a loop without bound, fence, parked events, schema or telemetry. Reads a
 * batch, keeps the last of each key, and writes one upsert and its checkpoint in a transaction.
 */
import pg from 'pg'
import { drain } from './pg-drain.ts'
import type { order } from './pg-events.ts'
import { VIEW } from './projection-view.ts'

const { url, events, cold, batch } = JSON.parse(process.argv[2]!) as {
  url: string
  events: number
  cold: number
  batch: number
}
const READ = `SELECT sequence::text, key, payload::text FROM outbox WHERE sequence > $1::bigint ORDER BY outbox.sequence LIMIT $2::int`
const UPSERT = `INSERT INTO customers SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::numeric[])
ON CONFLICT (id) DO UPDATE SET
  name = excluded.name, country = excluded.country, last_order = excluded.last_order, total = excluded.total`
const ADVANCE = 'UPDATE bare_checkpoint SET position = $2::bigint WHERE position = $1::bigint'

const client = new pg.Client({ connectionString: url })
await client.connect()
await client.query(VIEW)
await client.query('CREATE TABLE bare_checkpoint (position bigint); INSERT INTO bare_checkpoint VALUES (0)')

type Event = [sequence: string, key: string, payload: string]

async function loop(onEvent: (count: number) => void): Promise<void> {
  for (let from = '0'; ; ) {
    const read = { name: 'read', text: READ, values: [from, batch], rowMode: 'array' as const }
    const rows = (await client.query(read)).rows as Event[]
    if (rows.length === 0) return
    const last = new Map<string, ReturnType<typeof order>>()
    for (const [, key, payload] of rows) last.set(key, JSON.parse(payload))
    const orders = [...last.values()]
    const to = rows.at(-1)![0]
    const values = [
      [...last.keys()],
      orders.map(({ customer }) => customer.name),
      orders.map(({ customer }) => customer.country),
      orders.map(({ orderId }) => orderId),
      orders.map(({ total }) => total),
    ]
    await client.query('BEGIN')
    await client.query({ name: 'advance', text: ADVANCE, values: [from, to] })
    await client.query({ name: 'upsert', text: UPSERT, values })
    await client.query('COMMIT')
    from = to
    onEvent(rows.length)
  }
}

await drain({ events, cold }, async (onEvent) => {
  const looping = loop(onEvent)
  return () => looping
})
await client.end()
