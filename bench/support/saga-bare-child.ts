/** The four writes of a saga and nothing else: no fence of a runner, no lease, no retry, no telemetry. A ceiling. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { race, type SagaChildOptions } from './saga-rounds.ts'

const options = JSON.parse(process.argv[2]!) as SagaChildOptions
const { url, update } = options
const pool = new pg.Pool({ connectionString: url, max: 20 })

const begin = `WITH saga AS (
  INSERT INTO bare_sagas (id, saga_type, input, current_step) VALUES ($1, 'bench', $2, 'a') RETURNING id
) INSERT INTO bare_steps (saga_id, step_name, ordinal) SELECT id, 'a', 0 FROM saga`
const progress = `WITH saga AS (
  UPDATE bare_sagas SET version = version + 1, current_step = $3, updated_at = clock_timestamp() WHERE id = $1 AND version = $2 RETURNING id
), done AS (
  UPDATE bare_steps SET status = 'completed', output = $5, executed_at = clock_timestamp() FROM saga WHERE saga_id = saga.id AND step_name = $4
) INSERT INTO bare_steps (saga_id, step_name, ordinal) SELECT id, $3, $2 FROM saga`
const end = `WITH saga AS (
  UPDATE bare_sagas SET version = version + 1, status = 'completed', ended_at = clock_timestamp() WHERE id = $1 AND version = 3 RETURNING id
) UPDATE bare_steps SET status = 'completed', output = $2, executed_at = clock_timestamp() FROM saga WHERE saga_id = saga.id AND step_name = 'c'`

const step = async (n: number) => {
  if (update)
    await pool.query({ name: 'update', text: 'UPDATE counters SET n = n + 1 WHERE id = $1', values: [n % 1000] })
  return JSON.stringify(n)
}
await race(options, async (n) => {
  const id = randomUUID()
  await pool.query({ name: 'begin', text: begin, values: [id, JSON.stringify({ n })] })
  const a = await step(n)
  await pool.query({ name: 'progress', text: progress, values: [id, 1, 'b', 'a', a] })
  const b = await step(n)
  await pool.query({ name: 'progress', text: progress, values: [id, 2, 'c', 'b', b] })
  const c = await step(n)
  await pool.query({ name: 'end', text: end, values: [id, c] })
})
await pool.end()
