/**
 * A consumer with an inbox that counts one effect per message, in PostgreSQL or on Redis; ends gracefully on SIGTERM.
 * JOB says where.
 */
import pg from 'pg'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { event, Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { redis } from '../../../src/redis/index.ts'
import { ioredis } from './support.ts'

const { url, stream, database, tag } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>
const Placed = event<{ n: number }>('order.placed')

function billing(): { router: Router; close: () => Promise<void> } {
  if (database !== undefined) {
    const pool = new pg.Pool({ connectionString: database })
    const router = new Router('billing').use(transactional(postgres({ pool }))).on(Placed, async ({ id }, { tx }) => {
      await tx.query('INSERT INTO effects VALUES ($1)', [id])
    })
    return { router, close: () => pool.end() }
  }
  const db = redis({ client: ioredis(url!), tag: tag!, inbox: { lease: '2s' } })
  const router = new Router('billing').use(transactional(db)).on(Placed, async ({ id }, { tx }) => {
    tx.hincrby(db.key('effects'), id, 1)
  })
  return { router, close: () => db.stop() }
}

const { router, close } = billing()
const broker = redisStreams({ client: ioredis(url!) })
const reclaim = { every: '200ms', idle: '2s' } as const
const from = broker.source({ stream: stream!, group: 'billing', block: '100ms', batch: 50, reclaim })
const consumer = router.consume(from, { poll: { base: 100, max: 500 } })
await consumer.start()
process.once('SIGTERM', async () => {
  await consumer.stop()
  await broker.close()
  await close()
})
console.log('ready')
