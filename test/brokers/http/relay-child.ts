/** A relay from an outbox to a receiver, to be killed. Arguments: database, url, reader. */
import pg from 'pg'
import type { ReaderKind } from '../../../src/adapter.ts'
import { Relay, run, shutdownSignal } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { sender } from './support.ts'

const [database, url, reader] = process.argv.slice(2) as [string, string, ReaderKind]
const pool = new pg.Pool({ connectionString: database, max: 10 })
pool.on('error', () => {})
const relay = new Relay({
  from: postgres({ pool }).outbox,
  to: sender(url),
  reader,
  lease: '1s',
  poll: '20ms',
  maxPoll: '100ms',
  maxBatch: 50,
  batch: 50,
  outage: { min: 20, max: 200 },
})
console.log('ready')
await run([relay], { signal: shutdownSignal() })
await pool.end()
