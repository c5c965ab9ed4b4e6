/** A routing relay that kills itself where it is told, or is killed. Arguments: database, folder. */
import pg from 'pg'
import { run, shutdownSignal } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { crashingPublisher, crashPoint } from '../../src/testing/index.ts'
import { BRANCHES, filing } from './routing-routes.ts'

const [url, folder] = process.argv.slice(2) as [string, string]
const pool = new pg.Pool({ connectionString: url, max: 20 })
pool.on('error', () => {})
const { outbox } = postgres({ pool, outbox: { branches: BRANCHES } })

const distribute = outbox.distribute.bind(outbox)
outbox.distribute = async (events) => {
  crashPoint('move.before')
  await distribute(events)
  crashPoint('move.after')
}

console.log('ready')
await run([filing(outbox, folder, crashingPublisher)], { signal: shutdownSignal() })
await pool.end()
