/** A consumer with an inbox that writes one effect per message; ends gracefully on SIGTERM. JOB says where. */
import amqplib from 'amqplib'
import pg from 'pg'
import { rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { event, Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'

export interface BillingJob {
  readonly url: string
  readonly exchange: string
  readonly queue: string
  readonly database: string
}

const { url, exchange, queue, database }: BillingJob = JSON.parse(process.env['JOB'] ?? '{}')
const pool = new pg.Pool({ connectionString: database })
const db = postgres({ pool })
const broker = rabbitmq({ client: amqplib, url, exchange, declare: true, reconnect: { min: 50, max: 500 } })
const router = new Router('billing')
  .use(transactional(db))
  .on(event<{ n: number }>('order.placed'), async ({ id }, { tx }) => {
    await tx.query('INSERT INTO effects VALUES ($1)', [id])
  })
const consumer = router.consume(broker.source({ queue }), { poll: { base: 100, max: 500 } })
await consumer.start()
process.once('SIGTERM', async () => {
  await consumer.stop()
  await broker.close()
  await pool.end()
})
console.log('ready')
