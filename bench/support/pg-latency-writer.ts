/** Writes events at a steady pace in a process of its own, and says when each commit was answered. */
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { drain } from './pg-drain.ts'
import { OrderPlaced, order } from './pg-events.ts'

const { url, events, perSecond, open } = JSON.parse(process.argv[2]!) as {
  url: string
  events: number
  perSecond: number
  open: boolean
}
const pool = new pg.Pool({ connectionString: url, max: 8, min: 8 })
const db = postgres({ pool })
const clients = await Promise.all(Array.from({ length: 8 }, () => pool.connect()))
for (const client of clients) client.release()

await drain({ events }, async (onEvent) => {
  const left = open ? await leaveOpen() : undefined
  const committed: [string, number][] = []
  const write = async (i: number) => {
    const event = OrderPlaced(order(i), { key: `key-${i}` })
    await db.withTransaction((tx) => db.outbox.enqueue(tx, event))
    committed.push([event.id, performance.timeOrigin + performance.now()])
    onEvent(1)
  }
  const began = performance.now()
  const pace = async () => {
    for (let i = 0; i < events; i++) {
      const wait = began + (i * 1000) / perSecond - performance.now()
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait))
      write(i).catch((error) => {
        console.error(error)
        process.exit(1)
      })
    }
  }
  const paced = pace()
  return async () => {
    await paced
    process.stdout.write(`${JSON.stringify(committed)}\n`)
    await left?.()
  }
})
await pool.end()

/** A transaction with an event of its own that is not committed before everything is over. */
async function leaveOpen(): Promise<() => Promise<void>> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query('BEGIN')
  await db.outbox.enqueue(client as never, OrderPlaced(order(0), { key: 'left open' }))
  return async () => {
    await client.query('ROLLBACK')
    await client.end()
  }
}
