/** Our relay as a contestant: everything on that a service would have on, and a publisher that does nothing. */
import pg from 'pg'
import * as client from 'prom-client'
import { type Message, Relay, type RelayOptions } from 'waybill'
import { OK } from 'waybill/adapter'
import { recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { drain } from './pg-drain.ts'

export interface RelayChildOptions {
  readonly url: string
  readonly events: number
  readonly cold?: number
  readonly relay: Omit<RelayOptions, 'from' | 'to'>
  /** Empties the outbox `warmup`, of this many events, before it is measured: for what takes less than seconds. */
  readonly warmUp?: number
}

const { url, events, cold = 0, relay: options, warmUp = 0 } = JSON.parse(process.argv[2]!) as RelayChildOptions
const pool = new pg.Pool({ connectionString: url, max: 10 })
recordMetrics({ client: client as never })

async function begin(table: string, onEvent: (count: number) => void): Promise<() => Promise<void>> {
  const publish = async (messages: readonly Message[]) => {
    onEvent(messages.length)
    return messages.map(() => OK)
  }
  const from = postgres({ pool, outbox: { table } }).outbox
  const relay = new Relay({ from, to: { name: 'nowhere', features: {}, publish }, ...options })
  await relay.start()
  return () => relay.stop()
}

if (warmUp > 0) {
  let left = warmUp
  let empty: () => void = () => {}
  const emptied = new Promise<void>((resolve) => {
    empty = resolve
  })
  const stop = await begin('warmup', (count) => {
    left -= count
    if (left <= 0) empty()
  })
  await emptied
  await stop()
}
await drain({ events, cold }, (onEvent) => begin('outbox', onEvent))
await pool.end()
