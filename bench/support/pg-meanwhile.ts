import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Contest, Meanwhile } from './pg-contest.ts'
import { enqueueScript, graphileScript } from './pg-pgbench.ts'
import { pgbench } from './pg-server.ts'

/** A transaction elsewhere that has a snapshot and stays open: no vacuum may remove what is deleted after it began. */
export function holdSnapshot({ server }: Contest): Meanwhile {
  return async (database) => {
    const client = new pg.Client({ connectionString: server.url(database) })
    await client.connect()
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await client.query('SELECT count(*) FROM pg_class')
    return () => client.end()
  }
}

/** How much eight writers write together per second: the same for all, so that the load is the same. */
const RATE = 2000

/** Eight connections that go on adding events, one in a transaction, by each product's own statement. */
export function writers({ server }: Contest, product: 'waybill' | 'graphile'): Meanwhile {
  return async (database) => {
    const folder = await mkdtemp(join(tmpdir(), 'waybill-writers-'))
    const file = join(folder, 'script.sql')
    const { script, variables } = product === 'waybill' ? await enqueueScript({ wake: 'flag' }) : graphileScript()
    await writeFile(file, script)
    const args = ['-n', '-M', 'prepared', '-c', '8', '-j', '1', '-T', '600', '-R', String(RATE), '-f', file]
    for (const [name, value] of Object.entries(variables)) args.push('-D', `${name}=${value}`)
    const child = spawn(pgbench(server), [...args, server.url(database)], { stdio: 'ignore' })
    const ended = new Promise((resolve) => child.once('exit', resolve))
    return async () => {
      child.kill('SIGTERM')
      await ended
      await rm(folder, { recursive: true })
    }
  }
}
