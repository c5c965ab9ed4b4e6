/** A relay into a stream, from an outbox in PostgreSQL or on Redis; ends gracefully on SIGTERM. JOB says which. */
import pg from 'pg'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { type OutboxReader, type ReaderKind, Relay } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { redis, redisOutbox } from '../../../src/redis/index.ts'
import { ioredis } from './support.ts'

const { url, stream, database, tag, reader } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>

function outbox(): { from: OutboxReader; close: () => Promise<void> } {
  if (database !== undefined) {
    const pool = new pg.Pool({ connectionString: database })
    return { from: postgres({ pool }).outbox, close: () => pool.end() }
  }
  const store = redis({ client: ioredis(url!), tag: tag! })
  return { from: redisOutbox({ on: store }), close: () => store.stop() }
}

const { from, close } = outbox()
const broker = redisStreams({ client: ioredis(url!) })
const to = broker.publisher({ stream: stream! })
const relay = new Relay({ from, to, reader: reader as ReaderKind, lease: '2s', poll: '50ms', batch: 50, maxBatch: 50 })
await relay.start()
process.once('SIGTERM', async () => {
  await relay.stop()
  await to.close!()
  await broker.close()
  await close()
})
console.log('ready')
