/** A relay from an outbox in PostgreSQL into NATS; ends gracefully on SIGTERM. JOB says from where to where. */
import pg from 'pg'
import { nats } from '../../../src/brokers/nats/index.ts'
import { type ReaderKind, Relay } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { connecting } from './support.ts'

const { url, stream, database, reader } = JSON.parse(process.env['JOB'] ?? '{}') as Record<string, string>
const pool = new pg.Pool({ connectionString: database! })
const db = postgres({ pool })
const broker = nats({ connection: connecting(url!), stream: stream! })
const to = broker.publisher({ subject: ({ type }) => `${stream}.${type}` })
const from = db.outbox
const relay = new Relay({ from, to, reader: reader as ReaderKind, lease: '2s', poll: '50ms', batch: 50, maxBatch: 50 })
await relay.start()
process.once('SIGTERM', async () => {
  await relay.stop()
  await to.close()
  await pool.end()
})
console.log('ready')
