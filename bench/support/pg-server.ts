import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import pg from 'pg'
import { catalog } from '../../scripts/services/catalog.ts'
import { startPrivate } from '../../scripts/services/provision.ts'
import { openRun } from '../../scripts/services/run.ts'
import { pid } from '../../scripts/services/server.ts'

/**
 * Durable, as in production: fsync and synchronous_commit stay on. Memory is what a small server has, and checkpoints
 * are as far apart as people set them who write much. `replica` is PostgreSQL's own default for wal_level.
 */
const SETTINGS = {
  shared_buffers: '1GB',
  effective_cache_size: '4GB',
  max_wal_size: '8GB',
  min_wal_size: '2GB',
  checkpoint_timeout: '15min',
  wal_level: 'replica',
  shared_preload_libraries: "'pg_stat_statements'",
  'pg_stat_statements.track': 'top',
}

/** A PostgreSQL 15 of its own for one benchmark. */
export interface BenchServer {
  readonly version: string
  /** Of the process that has all others as children. */
  readonly pid: number | null
  /** Folder of its executables. */
  readonly bin: string
  url(database: string): string
  /** Runs one statement. */
  sql(database: string, text: string, values?: unknown[]): Promise<pg.QueryResult>
  close(): Promise<void>
}

export async function startServer(say: (text: string) => void): Promise<BenchServer> {
  const run = await openRun()
  try {
    const server = await startPrivate(catalog['postgres15']!, { run: run.dir, say, settings: SETTINGS })
    const launch = server.control.kind === 'process' ? server.control.launches.at(-1)! : undefined
    const url = (database: string) => Object.assign(new URL(server.url), { pathname: `/${database}` }).href
    return {
      version: server.version,
      pid: pid(server),
      bin: dirname(launch!.command),
      url,
      async sql(database, text, values) {
        const client = new pg.Client({ connectionString: url(database) })
        await client.connect()
        try {
          return await client.query(text, values)
        } finally {
          await client.end()
        }
      },
      close: async () => {
        await run.close()
      },
    }
  } catch (error) {
    await run.close()
    throw error
  }
}

export function pgbench(server: BenchServer): string {
  const file = join(server.bin, 'pgbench')
  if (!existsSync(file)) throw new Error('pgbench is missing: apt-get install postgresql-15')
  return file
}

export const cores = availableParallelism()
