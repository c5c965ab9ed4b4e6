/** A service that writes business rows and events, and may be killed anywhere in its transaction. */
import pg from 'pg'
import { postgres } from '../../../src/postgres/index.ts'
import { crashPoint } from '../../../src/testing/index.ts'
import { Placed, record } from './business.ts'

const pool = new pg.Pool({ connectionString: process.env['URL']! })
const db = postgres({ pool })
for (let n = 1; n <= 3; n++) {
  const event = Placed({ n }, { key: 'key 0' })
  await db
    .withTransaction(async (tx) => {
      crashPoint('enqueue.begun')
      await record(tx, [event])
      crashPoint('enqueue.before-enqueue')
      await db.outbox.enqueue(tx, event)
      crashPoint('enqueue.after-enqueue')
      // The second one is rolled back.
      if (n === 2) throw new Error('no')
    })
    .catch(() => {})
  crashPoint('enqueue.ended')
}
await pool.end()
