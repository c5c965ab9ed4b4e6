/** A relay from an outbox in PostgreSQL into RabbitMQ; ends gracefully on SIGTERM. JOB says from where to where. */
import amqplib from 'amqplib'
import pg from 'pg'
import { rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { type ReaderKind, Relay } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'

export interface RelayJob {
  readonly url: string
  readonly exchange: string
  readonly database: string
  readonly reader: ReaderKind
}

const { url, exchange, database, reader }: RelayJob = JSON.parse(process.env['JOB'] ?? '{}')
const pool = new pg.Pool({ connectionString: database })
const db = postgres({ pool })
const broker = rabbitmq({ client: amqplib, url, exchange, declare: true, reconnect: { min: 50, max: 500 } })
const relay = new Relay({ from: db.outbox, to: broker, reader, lease: '2s', poll: '50ms', batch: 50, maxBatch: 50 })
await relay.start()
process.once('SIGTERM', async () => {
  await relay.stop()
  await broker.close()
  await pool.end()
})
console.log('ready')
