/** Sagas of three steps, driven by their caller. The pool is as large as that of the others. */
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { SagaRunner, saga } from 'waybill/saga'
import { race, type SagaChildOptions } from './saga-rounds.ts'

const options = JSON.parse(process.argv[2]!) as SagaChildOptions & { readonly transactions?: boolean }
const { url, update, transactions = false } = options
const pool = new pg.Pool({ connectionString: url, max: 20 })
const db = postgres({ pool, sagas: true })
const text = 'UPDATE counters SET n = n + 1 WHERE id = $1'
const work = update
  ? (c: { input: { n: number } }) => pool.query({ name: 'c', text, values: [c.input.n % 1000] })
  : () => {}
const step = async (c: { input: { n: number } }) => {
  await work(c)
  return c.input.n
}
const inTransaction = async (c: { input: { n: number } }, tx: pg.PoolClient) => {
  await tx.query({ name: 'c', text, values: [c.input.n % 1000] })
  return c.input.n
}
const base = saga<{ n: number }>('bench', { version: 1 })
const three = transactions
  ? base.transaction('a', inTransaction).transaction('b', inTransaction).transaction('c', inTransaction)
  : base.step('a', step).step('b', step).step('c', step)
const runner = await new SagaRunner({ store: db, sagas: [three] }).start()
const client = runner.client(three)
await race(options, (n) => client.run({ n }))
await runner.stop()
await pool.end()
