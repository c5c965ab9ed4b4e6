/** One round of a relay, and no stop(): the process must end by itself. Arguments: connection string, reader. */
import pg from 'pg'
import { Relay } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'

const [url, reader] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: url! })
const relay = new Relay({ from: postgres({ pool }).outbox, to: async () => {}, reader: reader as 'owner' })
const { done } = await relay.runOnce()
console.log(JSON.stringify({ done }))
await pool.end()
