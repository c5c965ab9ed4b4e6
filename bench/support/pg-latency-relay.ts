/** A relay with its defaults that writes down when each event was handed to the publisher. */
import pg from 'pg'
import * as client from 'prom-client'
import { type Message, Relay } from 'waybill'
import { OK } from 'waybill/adapter'
import { recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { drain } from './pg-drain.ts'

const { url, events } = JSON.parse(process.argv[2]!) as { url: string; events: number }
const pool = new pg.Pool({ connectionString: url })
const db = postgres({ pool })

await drain({ events }, async (onEvent) => {
  recordMetrics({ client: client as never })
  const seen: [string, number][] = []
  const publish = async (messages: readonly Message[]) => {
    const now = performance.timeOrigin + performance.now()
    for (const { id } of messages) seen.push([id, now])
    onEvent(messages.length)
    return messages.map(() => OK)
  }
  const relay = new Relay({ from: db.outbox, to: { name: 'nowhere', features: {}, publish } })
  await relay.start()
  await new Promise((resolve) => setTimeout(resolve, 1000))
  process.stdout.write(`${JSON.stringify({ idle: true })}\n`)
  return async () => {
    await relay.stop()
    process.stdout.write(`${JSON.stringify(seen)}\n`)
  }
})
await pool.end()
