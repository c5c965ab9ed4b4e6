/**
 * The newest clients on the registry that run on this Node, installed beside ours: what a user gets who installs today. They
 * are kept in the cache folder; a version that is new there is fetched once.
 *
 *   vi.mock('pg', async () => (await import('../support/newest.ts')).newest('pg'))
 */
import { createHash } from 'node:crypto'
import { copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { cached } from '../../scripts/services/cache.ts'
import { command } from '../../scripts/services/files.ts'

export const CLIENTS = ['ioredis', 'redis', 'pg', 'postgres', 'amqplib', 'kafkajs', '@nats-io/transport-node'] as const
export type Client = (typeof CLIENTS)[number]

interface Installed {
  readonly versions: Readonly<Record<Client, string>>
  /** As a module in the folder of the installation would import it. */
  load(name: Client): Promise<Record<string, unknown>>
}

let installed: Promise<Installed> | undefined

/** The module, for `vi.mock`. */
export async function newest(name: Client): Promise<Record<string, unknown>> {
  return { ...(await (await newestClients()).load(name)) }
}

export function newestClients(): Promise<Installed> {
  installed ??= install()
  return installed
}

const QUIETLY = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']

async function install(): Promise<Installed> {
  const draft = await mkdtemp(join(tmpdir(), 'waybill-clients-'))
  try {
    // Of a range npm takes the newest version whose `engines` suit the Node it runs on; of a tag it would take any.
    const wanted = Object.fromEntries(CLIENTS.map((name) => [name, '*']))
    await writeFile(join(draft, 'package.json'), JSON.stringify({ private: true, dependencies: wanted }))
    await command('npm', ['install', '--package-lock-only', '--prefer-online', ...QUIETLY], { cwd: draft })
    const lock = await readFile(join(draft, 'package-lock.json'), 'utf8')
    const hash = createHash('sha256').update(lock).digest('hex').slice(0, 12)
    const home = await cached(`npm/newest-clients-${hash}`, async (dir) => {
      for (const file of ['package.json', 'package-lock.json']) await copyFile(join(draft, file), join(dir, file))
      await command('npm', ['ci', ...QUIETLY], { cwd: dir })
      await writeFile(join(dir, 'load.mjs'), 'export const load = (name) => import(name)\n')
    })
    const { packages } = JSON.parse(lock) as { packages: Record<string, { version: string }> }
    const versions = CLIENTS.map((name) => [name, packages[`node_modules/${name}`]!.version])
    const { load } = (await import(/* @vite-ignore */ pathToFileURL(join(home, 'load.mjs')).href)) as Installed
    return { versions: Object.fromEntries(versions) as Installed['versions'], load }
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
}
