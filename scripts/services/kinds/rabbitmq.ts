/** RabbitMQ with its own epmd (Erlang's name service): the usual one is shared by the machine and outlives everything. */
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
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
  const bin = join(root, 'usr/lib/rabbitmq/bin')
  const [server] = (await readdir(join(root, 'usr/lib/rabbitmq/lib'))).filter((name) =>
    name.startsWith('rabbitmq_server-'),
  )
  const erlang = join(root, 'usr/lib/erlang/bin')
  const env = { PATH: `${erlang}:${process.env['PATH']}`, ...(await libraryPath(root)) }
  return { origin: 'debian', version: server?.replace('rabbitmq_server-', '') ?? '', bin, env }
}

/** The start script has its final place built in. */
async function relocateErlang(root: string): Promise<void> {
  const file = join(root, 'usr/lib/erlang/bin/erl')
  const script = await readFile(file, 'utf8')
  const here = 'ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")'
  await writeFile(file, script.replaceAll('ROOTDIR=/usr/lib/erlang', here))
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

export const rabbitmq: Entry = {
  name: 'rabbitmq',
  variable: 'WAYBILL_TEST_RABBITMQ_URL',
  defaultUrl: 'amqp://guest:guest@127.0.0.1:5672',
  protocol: 'amqp',
  install: 'a Debian with apt-get, or rabbitmq-server and erl on the PATH, or a server in WAYBILL_TEST_RABBITMQ_URL',
  accounts: ['rabbitmq', 'nobody'],
  container: true,
  url: (port) => `amqp://guest:guest@127.0.0.1:${port}`,
  binaries: async (say) => (await installedServer()) ?? (await unpackedServer(say)),
  prepare,
}
