/** A consumer that writes one effect per message, and may be killed anywhere between taking a message and acking it. */
import pg from 'pg'
import { Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { crashingSource, crashPoint } from '../../../src/testing/index.ts'
import { Placed } from './business.ts'
import { sqlBrokerSource } from './sql-broker.ts'

const pool = new pg.Pool({ connectionString: process.env['URL']! })
const db = postgres({ pool })
const router = new Router('billing').use(transactional(db)).on(Placed, async ({ id }, { tx }) => {
  crashPoint('consumer.before-effect')
  await tx.query('INSERT INTO effects VALUES ($1)', [id])
  crashPoint('consumer.after-effect')
})
const consumer = router.consume(crashingSource(sqlBrokerSource(pool), 'consumer'), { concurrency: 1 })
while ((await consumer.runOnce()).taken > 0);
await consumer.stop()
await pool.end()
