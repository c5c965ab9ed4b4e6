/**
 * A consumer that writes one effect per message and returns two events, which go to its own outbox. It may be killed
 * anywhere between taking a message and acking it. It reads a broker, or, with FROM=outbox, the outbox itself.
 */
import pg from 'pg'
import { type Message, outboxSource, Router, type Source, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { crashingSource, crashPoint } from '../../../src/testing/index.ts'
import { BILLING, Invoiced, Placed } from './business.ts'
import { sqlBrokerSource } from './sql-broker.ts'

const pool = new pg.Pool({ connectionString: process.env['URL']! })
const db = postgres({ pool, ...BILLING })
const store = {
  inbox: db.inbox,
  outbox: {
    async enqueue(tx: pg.PoolClient, events: readonly Message[]) {
      crashPoint('consumer.before-outputs')
      const receipts = await db.outbox.enqueue(tx, events)
      crashPoint('consumer.after-outputs')
      return receipts
    },
  },
  async withTransaction<T>(fn: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
    const value = await db.withTransaction(fn)
    crashPoint('consumer.after-commit')
    return value
  },
}
const router = new Router('billing').use(transactional(store)).on(Placed, async ({ id, data }, { tx }) => {
  crashPoint('consumer.before-effect')
  await tx.query('INSERT INTO effects VALUES ($1)', [id])
  crashPoint('consumer.after-effect')
  return [Invoiced({ of: data.n, part: 1 }), Invoiced({ of: data.n, part: 2 })]
})

const unpublished = `SELECT 1 FROM outbox WHERE state <> 'published' LIMIT 1`

if (process.env['FROM'] === 'outbox') {
  const from = outboxSource(postgres({ pool }).outbox, { lease: '500ms' })
  const consumer = router.consume(crashing(from), { concurrency: 1, poll: '20ms', maxPoll: '20ms' })
  await consumer.start()
  while ((await pool.query(unpublished)).rowCount !== 0) await new Promise((resolve) => setTimeout(resolve, 20))
  await consumer.stop()
} else {
  const consumer = router.consume(crashing(sqlBrokerSource(pool)), { concurrency: 1 })
  while ((await consumer.runOnce()).taken > 0);
  await consumer.stop()
}
await pool.end()

function crashing<D extends Parameters<typeof crashingSource>[0] | Source>(source: D): D {
  return crashingSource(source as Source, 'consumer') as D
}
