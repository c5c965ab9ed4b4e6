/** Redis 7, and 6.0 as the oldest we support: it lacks much that is easily used by mistake (XAUTOCLAIM, GETDEL, …). */
import { join } from 'node:path'
import type { Source } from '../apt-sources.ts'
import { type Executable, installed, unpacked } from '../binaries.ts'
import type { Binaries, Entry, Site } from '../types.ts'

const redisServer: Executable = {
  name: 'redis-server',
  folder: 'usr/bin',
  version: ['--version'],
  accept: (version) => Number.parseInt(version, 10) >= 7,
}

async function prepare(site: Site) {
  const port = await site.port()
  const settings: Record<string, string> = {
    port: String(port),
    bind: '127.0.0.1',
    dir: site.dir,
    // Like a server that is trusted with messages: what was answered is in the log when the process is killed.
    appendonly: 'yes',
    save: '',
    // Replicas that tests add need not wait for others to join.
    'repl-diskless-sync-delay': '0',
    ...(site.binaries.version.startsWith('6') ? {} : { 'enable-debug-command': 'local' }),
    ...site.settings,
  }
  const server = site.launch('redis', {
    command: join(site.binaries.bin, 'redis-server'),
    // 6.0 takes an argument with a space for one word.
    args: Object.entries(settings).flatMap(([name, value]) => [`--${name}`, ...value.split(' ')]),
  })
  return { port, launches: [server], dataDir: site.dir }
}

const common = {
  protocol: 'redis' as const,
  accounts: ['redis', 'nobody'],
  container: true,
  url: (port: number) => `redis://127.0.0.1:${port}`,
  prepare,
}

export const redis: Entry = {
  ...common,
  name: 'redis',
  variable: 'WAYBILL_TEST_REDIS_URL',
  defaultUrl: 'redis://127.0.0.1:6379',
  install: 'a Debian with apt-get, or redis-server 7 or later on the PATH, or a server named in WAYBILL_TEST_REDIS_URL',
  binaries: async (say): Promise<Binaries> =>
    (await installed(redisServer)) ?? (await unpacked('redis-7', { packages: ['redis-server'] }, redisServer, say)),
}

const REDIS6 = ['redis-server', 'redis-tools', 'libssl1.1', 'liblua5.1-0', 'lua-cjson', 'lua-bitop', 'liblzf1']
const REDIS6_LIBRARIES = ['libjemalloc2', 'libatomic1']

/** Debian 11 was the last to carry it; its keys are still in the keyring of later releases. */
function debian11(own: Source[]): Source[] {
  const main = own.find((source) => !source.suite.includes('-'))
  const security = own.find((source) => source.suite.endsWith('-security'))
  return [
    ...(main ? [{ ...main, suite: 'bullseye', components: 'main' }] : []),
    ...(security ? [{ ...security, suite: 'bullseye-security', components: 'main' }] : []),
  ]
}

export const redis6: Entry = {
  ...common,
  name: 'redis6',
  variable: 'WAYBILL_TEST_REDIS6_URL',
  defaultUrl: 'redis://127.0.0.1:6379',
  install: 'a Debian whose archive still has bullseye, or a Redis 6.0 server named in WAYBILL_TEST_REDIS6_URL',
  async binaries(say): Promise<Binaries> {
    const wanted = { packages: [...REDIS6, ...REDIS6_LIBRARIES], sources: debian11 }
    return await unpacked('redis-6.0', wanted, { ...redisServer, accept: (version) => version.startsWith('6.0') }, say)
  },
}
