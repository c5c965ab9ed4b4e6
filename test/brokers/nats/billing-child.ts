/** A consumer with an inbox that writes one effect per message; ends gracefully on SIGTERM. JOB says where. */
import pg from 'pg'
import { nats } from '../../../src/brokers/nats/index.ts'
import { event, Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { connecting } from './support.ts'

const { url, stream, database } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>
const pool = new pg.Pool({ connectionString: database! })
const db = postgres({ pool })
const broker = nats({ connection: connecting(url!), stream: stream! })
const router = new Router('billing')
  .use(transactional(db))
  .on(event<{ n: number }>('order.placed'), async ({ id }, { tx }) => {
    await tx.query('INSERT INTO effects VALUES ($1)', [id])
  })
const from = broker.source({ group: 'billing', create: true, ackWait: '2s', block: '200ms' })
const consumer = router.consume(from, { poll: { base: 100, max: 500 } })
await consumer.start()
process.once('SIGTERM', async () => {
  await consumer.stop()
  await broker.close()
  await pool.end()
})
console.log('ready')
