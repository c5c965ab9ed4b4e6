/** A relay whose metrics are served over HTTP, as a process of a real deployment has them; until SIGTERM. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import pg from 'pg'
import * as client from 'prom-client'
import { Relay, run, shutdownSignal } from '../../../src/index.ts'
import { recordMetrics } from '../../../src/observability/index.ts'
import { postgres } from '../../../src/postgres/index.ts'

const { DATABASE, NAME, READER } = process.env
recordMetrics({ client })
const server = createServer((_, response) => void client.register.metrics().then((text) => response.end(text)))
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
console.log(`port ${(server.address() as AddressInfo).port}`)
const pool = new pg.Pool({ connectionString: DATABASE! })
const from = postgres({ pool }).outbox
const relay = new Relay({ from, to: async () => {}, name: NAME!, lease: '3s', reader: READER as 'owner' | 'lease' })
await run([relay], { signal: shutdownSignal() })
await pool.end()
server.closeAllConnections()
server.close()
