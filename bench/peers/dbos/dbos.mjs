/** DBOS: a workflow of three steps, called and awaited. One pool of 20 for its system database, as its documentation has it. */
import { DBOS } from '@dbos-inc/dbos-sdk'
import pg from 'pg'
import { race } from '../../support/saga-rounds.ts'

const options = JSON.parse(process.argv[2])
const { url, update } = options
const pool = new pg.Pool({ connectionString: url, max: 20 })
const quiet = () => {}
const logger = { info: quiet, debug: quiet, warn: quiet, error: quiet }
DBOS.setConfig({ name: 'bench', systemDatabaseUrl: url, systemDatabasePoolSize: 20, logger, enableOTLP: false })

async function work(n) {
  if (update) {
    await pool.query({ name: 'c', text: 'UPDATE counters SET n = n + 1 WHERE id = $1', values: [n % 1000] })
  }
  return n
}
const three = DBOS.registerWorkflow(
  async ({ n }) => {
    const a = await DBOS.runStep(() => work(n), { name: 'a' })
    const b = await DBOS.runStep(() => work(n), { name: 'b' })
    const c = await DBOS.runStep(() => work(n), { name: 'c' })
    return { a, b, c }
  },
  { name: 'three' },
)
await DBOS.launch()
await race(options, (n) => three({ n }))
await DBOS.shutdown()
await pool.end()
