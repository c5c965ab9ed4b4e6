/** A relay from an outbox in PostgreSQL into Kafka; ends gracefully on SIGTERM. JOB says from where to where. */
import pg from 'pg'
import { type ReaderKind, Relay } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { onServer } from './support.ts'

const { url, topic, database, reader } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>
const pool = new pg.Pool({ connectionString: database! })
const db = postgres({ pool })
const to = onServer(url!).publisher({ topic: topic! })
const from = db.outbox
const relay = new Relay({ from, to, reader: reader as ReaderKind, lease: '2s', poll: '50ms', batch: 50, maxBatch: 50 })
await relay.start()
process.once('SIGTERM', async () => {
  await relay.stop()
  await to.close!()
  await pool.end()
})
console.log('ready')
