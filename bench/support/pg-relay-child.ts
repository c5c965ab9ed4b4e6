/** Our relay as a contestant: everything on that a service would have on, and a publisher that does nothing. */
import pg from 'pg'
import * as client from 'prom-client'
import { type Message, OK, Relay, type RelayOptions } from 'waybill'
import { recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { drain } from './pg-drain.ts'

export interface RelayChildOptions {
  readonly url: string
  readonly events: number
  readonly relay: Omit<RelayOptions, 'from' | 'to'>
}

const { url, events, relay: options } = JSON.parse(process.argv[2]!) as RelayChildOptions
const pool = new pg.Pool({ connectionString: url, max: 10 })
const db = postgres({ pool })

await drain(events, async (onEvent) => {
  recordMetrics({ client: client as never })
  const publish = async (messages: readonly Message[]) => {
    onEvent(messages.length)
    return messages.map(() => OK)
  }
  const relay = new Relay({ from: db.outbox, to: { name: 'nowhere', features: {}, publish }, ...options })
  await relay.start()
  return () => relay.stop()
})
await pool.end()
