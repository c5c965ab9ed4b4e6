import pg from 'pg'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaRunner } from '../../../src/saga/index.ts'
import { orderSaga } from './order.ts'

/** A runner of the order saga, until it is killed. */
interface Job {
  readonly url: string
  readonly lease: number
  readonly concurrency: number
  readonly fails: number
  readonly hangs: number
  readonly unknown?: 'undo' | 'retry'
  readonly timeout?: '5s'
}
const { url, lease, concurrency, ...trouble } = JSON.parse(process.env['JOB']!) as Job
const pool = new pg.Pool({ connectionString: url, max: 20 })
pool.on('error', () => {})
const db = postgres({ pool, sagas: true })
const order = orderSaga(pool, { next: Math.random, ...trouble })
await new SagaRunner({ store: db, sagas: [order], lease, concurrency, maxPoll: '1s' }).start()
console.log('ready')
