/**
 * A receiver to be killed: one effect per message, in the transaction of its inbox, and one line per call of the handler
 * outside of it. Arguments: database, port, delay.
 */
import { createServer } from 'node:http'
import pg from 'pg'
import { httpReceiver, nodeListener } from '../../../src/brokers/http/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { event, Router, run, shutdownSignal, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { close, listen, SECRET } from './support.ts'

const [url, port, delay] = process.argv.slice(2) as [string, string, string]
const Tested = event<{ n: number }>('http.tested')
const pool = new pg.Pool({ connectionString: url, max: 20 })
pool.on('error', () => {})
const db = postgres({ pool })
const receiver = httpReceiver({ secrets: SECRET })
const router = new Router('billing').use(transactional(db)).on(Tested, async ({ id }, { tx }) => {
  await tx.query('INSERT INTO effects VALUES ($1)', [id])
  await systemClock.sleep(Number(delay))
})
const consumer = router.consume(receiver, { concurrency: 10 })
const server = createServer(nodeListener(receiver))
await listen(server, Number(port))
const http = { name: 'server', phase: 'connections' as const, stop: () => close(server) }
console.log('ready')
await run([receiver, consumer, http], { signal: shutdownSignal() })
await pool.end()
