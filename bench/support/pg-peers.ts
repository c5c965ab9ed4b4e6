import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { command } from '../../scripts/services/files.ts'

/** Those that empty a queue in PostgreSQL. */
export type Peer = 'graphile-worker' | 'pg-boss' | 'pg-transactional-outbox'

const folder = new URL('../peers/', import.meta.url)
const path = fileURLToPath(folder)

/** Installs the peers as their lockfile says, unless they are there; answers their versions. */
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
