/** Relays, or consumes, with traces; until SIGTERM. */
import * as api from '@opentelemetry/api'
import pg from 'pg'
import { event, Relay, Router, run, shutdownSignal, transactional } from '../../../src/index.ts'
import { useOpenTelemetry } from '../../../src/observability/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type Job, PLACES } from './place.ts'
import { exportTo } from './spans.ts'

const job = JSON.parse(process.env['JOB']!) as Job & { role: 'relay' | 'consumer' }
exportTo(job.spans)
useOpenTelemetry(api)
const pool = new pg.Pool({ connectionString: job.database })
const db = postgres({ pool })
const place = PLACES[job.broker](job)
const Placed = event<{ n: number }>('order.placed')
const Sent = event<{ n: number }>('invoice.sent')

async function worker() {
  if (job.role === 'relay') {
    console.log('ready')
    return new Relay({ from: db.outbox, to: place.publisher(), poll: '20ms', maxPoll: '50ms' })
  }
  const router = new Router('billing')
    .use(transactional(db))
    .on(Placed, ({ data }) => Sent(data))
    .on(Sent, () => {})
  const [source, url] = await place.source()
  // What comes before its queue is there is not kept by each of them.
  await (await source.open(new AbortController().signal))?.close()
  console.log(`ready ${url}`)
  return router.consume(source, { poll: 20, maxPoll: 50 })
}

await run([await worker()], { signal: shutdownSignal() })
await place.close()
await pool.end()
