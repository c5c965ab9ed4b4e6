/** What it costs that an outbox is a log: transactions of one event, 16 at once, and then a relay that settles them. */
import { createInterface } from 'node:readline'
import pg from 'pg'
import { type Message, Relay } from 'waybill'
import { OK } from 'waybill/adapter'
import { postgres } from 'waybill/postgres'
import { placed } from './pg-events.ts'

const { url, events, log } = JSON.parse(process.argv[2]!) as { url: string; events: number; log: boolean }
const pool = new pg.Pool({ connectionString: url, max: 16 })
const db = postgres({ pool, outbox: log ? { log: true } : {} })
await db.migrate()

async function enqueue(): Promise<void> {
  let next = 0
  const lane = async () => {
    while (next < events) await db.withTransaction((tx) => db.outbox.enqueue(tx, placed(next++)))
  }
  await Promise.all(Array.from({ length: 16 }, lane))
}

async function settle(): Promise<void> {
  const publish = async (messages: readonly Message[]) => messages.map(() => OK)
  const relay = new Relay({ from: db.outbox, to: { name: 'nowhere', features: {}, publish } })
  await relay.runOnce()
  await relay.stop()
}

console.log('{}')
const parts = [enqueue, settle]
for await (const _ of createInterface({ input: process.stdin })) {
  const began = performance.now()
  await parts.shift()?.()
  console.log(JSON.stringify({ ms: performance.now() - began }))
}
await pool.end()
