import { subscribe } from 'node:diagnostics_channel'
import pg from 'pg'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaRunner } from '../../../src/saga/index.ts'
import { gatedSaga } from './suspended.ts'

/** A runner whose steps say where they are and wait at gates; its COMMITs too. `url` leads through a bad network. */
const { url, direct, lease } = JSON.parse(process.env['JOB']!) as { url: string; direct: string; lease: number }
const gates = new pg.Pool({ connectionString: direct, max: 2 })
const pool = new pg.Pool({ connectionString: url, max: 10 })
for (const one of [gates, pool]) one.on('error', () => {})

async function gate(name: string): Promise<void> {
  console.log(`at ${name}`)
  for (;;) {
    const { rowCount } = await gates.query('SELECT FROM gates WHERE name = $1', [name])
    if (rowCount) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

pool.on('connect', (client) => {
  const send = client.query.bind(client) as (...args: unknown[]) => Promise<unknown>
  client.query = ((...args: unknown[]) =>
    args[0] === 'COMMIT' ? gate('COMMIT').then(() => send(...args)) : send(...args)) as typeof client.query
})
subscribe('waybill:saga.fenced', () => console.log('fenced'))
const db = postgres({ pool, sagas: true })
await new SagaRunner({ store: db, sagas: [gatedSaga(gate)], lease, maxPoll: '500ms' }).start()
console.log('ready')
