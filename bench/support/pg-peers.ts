import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { command } from '../../scripts/services/files.ts'

/** Those that empty a queue in PostgreSQL. */
export type Peer = 'graphile-worker' | 'pg-boss' | 'pg-transactional-outbox'

const folder = new URL('../peers/', import.meta.url)
const path = fileURLToPath(folder)

/** Installs the peers as their lockfile says, unless they are there; returns their versions. */
export async function installPeers(say: (text: string) => void): Promise<Record<Peer | 'bullmq', string>> {
  const { dependencies } = JSON.parse(readFileSync(`${path}package.json`, 'utf8'))
  // Also when one has joined since.
  if (!Object.keys(dependencies).every((name) => existsSync(`${path}node_modules/${name}`))) {
    say('installing the peers')
    await command('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: path })
  }
  const { pg: _, ioredis: __, ...versions } = dependencies
  return versions
}

export const peerFile = (peer: Peer | 'bullmq') => new URL(`${peer}.mjs`, folder)

/** DBOS, a package of its own: sagas alone are measured against it. Returns its version. */
export const installDbos = (say: (text: string) => void) => install('dbos', '@dbos-inc/dbos-sdk', say)

/** Emmett, for projections alone. Returns its version. */
export const installEmmett = (say: (text: string) => void) =>
  install('emmett', '@event-driven-io/emmett-postgresql', say)

async function install(name: string, dependency: string, say: (text: string) => void): Promise<string> {
  const cwd = `${path}${name}`
  if (!existsSync(`${cwd}/node_modules/${dependency}`)) {
    say(`installing ${name}`)
    await command('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], { cwd })
  }
  const { dependencies } = JSON.parse(readFileSync(`${cwd}/package.json`, 'utf8'))
  return dependencies[dependency]
}
