/** A relay with nothing to do: says what a while of that costs its process. */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import * as client from 'prom-client'
import { Relay } from 'waybill'
import { recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'

const { url, seconds } = JSON.parse(process.argv[2]!) as { url: string; seconds: number }
const pool = new pg.Pool({ connectionString: url })
recordMetrics({ client: client as never })
const relay = new Relay({ from: postgres({ pool }).outbox, to: async () => {} })
await relay.start()
await sleep(5000)
process.stdout.write(`${JSON.stringify({ idle: true })}\n`)
const before = process.cpuUsage()
await sleep(seconds * 1000)
const { user, system } = process.cpuUsage(before)
process.stdout.write(`${JSON.stringify({ cpu: user + system })}\n`)
await relay.stop()
await pool.end()
