/**
 * Our relay as a contestant, with a publisher that does nothing. Metrics are on, as in a service, unless it is told
 * otherwise.
 */
import * as api from '@opentelemetry/api'
import pg from 'pg'
import * as client from 'prom-client'
import { type Message, Relay, type RelayOptions } from 'waybill'
import { OK } from 'waybill/adapter'
import { recordMetrics, useOpenTelemetry } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { drain } from './pg-drain.ts'

export interface RelayChildOptions {
  readonly url: string
  readonly events: number
  readonly cold?: number
  readonly relay: Omit<RelayOptions, 'from' | 'to'>
  /** Empties the outbox `warmup`, of this many events, before it is measured: for what takes less than seconds. */
  readonly warmUp?: number
  /** Off: nobody counts. */
  readonly metrics?: boolean
  /** On: traces are asked for, and no SDK is registered that would take them. */
  readonly tracing?: boolean
}

const given = JSON.parse(process.argv[2]!) as RelayChildOptions
const { url, events, cold = 0, relay: options, warmUp = 0, metrics = true, tracing = false } = given
const pool = new pg.Pool({ connectionString: url, max: 10 })
if (metrics) recordMetrics({ client: client as never })
if (tracing) useOpenTelemetry(api as never)

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
