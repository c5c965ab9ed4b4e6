/** A consumer with an inbox that writes one effect per message; ends gracefully on SIGTERM. JOB says where. */
import pg from 'pg'
import { event, Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { onServer } from './support.ts'

const { url, topic, group, database } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>
const pool = new pg.Pool({ connectionString: database! })
const db = postgres({ pool })
const broker = onServer(url!)
const router = new Router('billing')
  .use(transactional(db))
  .on(event<{ n: number }>('order.placed'), async ({ id, data, key }, { tx }) => {
    await tx.query('INSERT INTO effects (event_id, key, n) VALUES ($1, $2, $3)', [id, key, data.n])
  })
const from = broker.source({ topic: topic!, group: group!, session: '1s', block: '50ms' })
const consumer = router.consume(from, { retry: { breaker: { min: 20, max: 200 } } })
await consumer.start()
process.once('SIGTERM', async () => {
  await consumer.stop()
  await broker.close()
  await pool.end()
})
console.log('ready')
