/** RabbitMQ with its own epmd (Erlang's name service): the usual one is shared by the machine and outlives everything. */
import { chmod, open, readdir, readFile, rename, writeFile } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import type { Source } from '../apt-sources.ts'
import { exists } from '../cache.ts'
import { debianPackages, libraryPath } from '../debian.ts'
import { give, onPath, ownDir } from '../files.ts'
import type { Binaries, Entry, Launch, Site } from '../types.ts'

async function installedServer(): Promise<Binaries | null> {
  if (!onPath('erl')) return null
  // Debian's command on the PATH insists on the user rabbitmq and the system's folders; the script behind it does not.
  const bin = '/usr/lib/rabbitmq/bin'
  if (await exists(join(bin, 'rabbitmq-server'))) return { origin: 'installed', version: '', bin }
  const path = process.platform === 'linux' ? null : onPath('rabbitmq-server')
  return path ? { origin: 'installed', version: '', bin: join(path, '..') } : null
}

async function unpackedServer(say: (text: string) => void): Promise<Binaries> {
  const root = await debianPackages('rabbitmq-3', { packages: ['rabbitmq-server'], finish: relocateErlang }, say)
  return await binariesIn(root, await libraryPath(root))
}

async function binariesIn(root: string, libraries: Record<string, string>): Promise<Binaries> {
  const bin = join(root, 'usr/lib/rabbitmq/bin')
  const [server] = (await readdir(join(root, 'usr/lib/rabbitmq/lib'))).filter((name) =>
    name.startsWith('rabbitmq_server-'),
  )
  const erlang = join(root, 'usr/lib/erlang/bin')
  const env = { PATH: `${erlang}:${process.env['PATH']}`, ...libraries }
  return { origin: 'debian', version: server?.replace('rabbitmq_server-', '') ?? '', bin, env }
}

/** The start script has its final place built in. */
async function relocateErlang(root: string): Promise<void> {
  const file = join(root, 'usr/lib/erlang/bin/erl')
  const script = await readFile(file, 'utf8')
  const here = 'ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")'
  await writeFile(file, script.replaceAll('ROOTDIR=/usr/lib/erlang', here))
}

const ERLANG =
  'base asn1 crypto public-key mnesia runtime-tools ssl eldap inets os-mon parsetools syntax-tools tools xmerl'
const RABBITMQ4 = ['rabbitmq-server', ...ERLANG.split(' ').map((name) => `erlang-${name}`)]
/** Its programs need a later C library than Debian 12 has, and with that all others of the same release. */
const RABBITMQ4_LIBRARIES = [
  'libc6',
  'libgcc-s1',
  'libstdc++6',
  'libtinfo6',
  'zlib1g',
  'libzstd1',
  'liblzma5',
  'libcap2',
  'libsystemd0',
  'libssl3t64',
]

/** The first Debian that has RabbitMQ 4. */
function debian13(own: Source[]): Source[] {
  const main = own.find((source) => !source.suite.includes('-'))
  return main ? [{ ...main, suite: 'trixie', components: 'main' }] : []
}

async function unpackedServer4(say: (text: string) => void): Promise<Binaries> {
  const packages = [...RABBITMQ4, ...RABBITMQ4_LIBRARIES]
  const finish = async (root: string) => {
    await relocateErlang(root)
    await startThroughOwnLoader(root)
  }
  return await binariesIn(await debianPackages('rabbitmq-4', { packages, sources: debian13, finish }, say), {})
}

/**
 * A program finds the C library by the loader it names, which is the machine's. So in the place of each program of Erlang
 * stands a script that starts it through the loader that was unpacked with it. The shell itself is the machine's: no
 * variable may point it at these libraries.
 */
async function startThroughOwnLoader(root: string): Promise<void> {
  const base = join(root, 'usr/lib')
  const [libraries] = (await readdir(base)).filter((name) => name.endsWith('-linux-gnu'))
  const [loader] = (await readdir(join(base, libraries!))).filter((name) => name.startsWith('ld-linux'))
  const entries = await readdir(join(base, 'erlang'), { recursive: true, withFileTypes: true })
  for (const entry of entries) {
    const file = join(entry.parentPath, entry.name)
    if (!entry.isFile() || entry.name.includes('.so') || !(await isProgram(file))) continue
    const real = join(dirname(file), `.${basename(file)}`)
    await rename(file, real)
    const up = relative(dirname(file), join(base, libraries!))
    const script = [
      '#!/bin/sh',
      'here=$(dirname "$(readlink -f "$0")")',
      `libraries="$here/${up}"`,
      `exec "$libraries/${loader}" --library-path "$libraries" "$here/${basename(real)}" "$@"`,
    ]
    await writeFile(file, `${script.join('\n')}\n`)
    await chmod(file, 0o755)
  }
}

/** An ELF file that may be executed. */
async function isProgram(file: string): Promise<boolean> {
  const handle = await open(file)
  try {
    const { mode } = await handle.stat()
    const { buffer } = await handle.read(Buffer.alloc(4), 0, 4, 0)
    return (mode & 0o111) !== 0 && buffer.toString('latin1') === '\x7fELF'
  } finally {
    await handle.close()
  }
}

const CONFIGURATION = `
log.console = true
log.console.level = warning
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.5
`

async function prepare(site: Site): Promise<{ port: number; launches: Launch[]; dataDir: string }> {
  const [port, distribution, epmdPort] = [await site.port(), await site.port(), await site.port()]
  const dataDir = await ownDir(join(site.dir, 'data'), site.account)
  const file = join(site.dir, 'rabbitmq.conf')
  await writeFile(file, CONFIGURATION)
  await writeFile(join(site.dir, 'enabled_plugins'), '[].\n')
  // A container may have no /etc/hosts, and a node whose own name is unknown does not start.
  const names = join(site.dir, 'inetrc')
  await writeFile(names, '{host, {127,0,0,1}, ["localhost"]}.\n{lookup, [file, native]}.\n')
  await give(site.dir, site.account)
  const env = {
    ERL_EPMD_PORT: String(epmdPort),
    ERL_INETRC: names,
    ERL_EPMD_ADDRESS: '127.0.0.1',
    RABBITMQ_NODENAME: `waybill${port}@localhost`,
    RABBITMQ_NODE_IP_ADDRESS: '127.0.0.1',
    RABBITMQ_NODE_PORT: String(port),
    RABBITMQ_DIST_PORT: String(distribution),
    RABBITMQ_MNESIA_BASE: dataDir,
    RABBITMQ_LOG_BASE: join(site.dir, 'log'),
    RABBITMQ_LOGS: '-',
    RABBITMQ_CONFIG_FILE: file,
    RABBITMQ_CONF_ENV_FILE: '/dev/null',
    RABBITMQ_ENABLED_PLUGINS_FILE: join(site.dir, 'enabled_plugins'),
    RABBITMQ_PID_FILE: join(site.dir, 'rabbitmq.pid'),
    // The script then becomes the server instead of standing before it: the pid we signal is the server's.
    RUNNING_UNDER_SYSTEMD: '1',
  }
  const epmd = site.launch('epmd', { command: await epmdOf(site.binaries), args: [], env })
  const server = site.launch('rabbitmq', { command: join(site.binaries.bin, 'rabbitmq-server'), args: [], env })
  return { port, launches: [epmd, server], dataDir }
}

async function epmdOf(binaries: Binaries): Promise<string> {
  const ours = binaries.env ? join(binaries.env['PATH']!.split(':')[0]!, 'epmd') : onPath('epmd')
  if (!ours) throw new Error('rabbitmq-server is installed but epmd is not on the PATH')
  return ours
}

const common = {
  protocol: 'amqp' as const,
  accounts: ['rabbitmq', 'nobody'],
  container: true,
  url: (port: number) => `amqp://guest:guest@127.0.0.1:${port}`,
  prepare,
}

export const rabbitmq: Entry = {
  ...common,
  name: 'rabbitmq',
  variable: 'WAYBILL_TEST_RABBITMQ_URL',
  defaultUrl: 'amqp://guest:guest@127.0.0.1:5672',
  install: 'a Debian with apt-get, or rabbitmq-server and erl on the PATH, or a server in WAYBILL_TEST_RABBITMQ_URL',
  binaries: async (say) => (await installedServer()) ?? (await unpackedServer(say)),
}

/** Counts deliveries otherwise, and limits those of every quorum queue. Only in the full tier. */
export const rabbitmq4: Entry = {
  ...common,
  name: 'rabbitmq4',
  variable: 'WAYBILL_TEST_RABBITMQ4_URL',
  // Nobody's: what listens on the usual port may be of any version.
  defaultUrl: 'amqp://guest:guest@127.0.0.1:5674',
  install: 'a Debian with apt-get whose archive has trixie, or a RabbitMQ 4 server in WAYBILL_TEST_RABBITMQ4_URL',
  binaries: unpackedServer4,
}
