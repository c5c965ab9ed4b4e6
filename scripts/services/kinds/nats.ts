/** NATS with JetStream. */
import { join } from 'node:path'
import { type Executable, installed, unpacked } from '../binaries.ts'
import { ownDir } from '../files.ts'
import type { Entry } from '../types.ts'

const natsServer: Executable = {
  name: 'nats-server',
  folder: 'usr/sbin',
  version: ['--version'],
  accept: (version) => Number.parseInt(version, 10) >= 2,
}

export const nats: Entry = {
  name: 'nats',
  variable: 'WAYBILL_TEST_NATS_URL',
  defaultUrl: 'nats://127.0.0.1:4222',
  protocol: 'nats',
  install: 'a Debian with apt-get, or nats-server 2 on the PATH, or a server named in WAYBILL_TEST_NATS_URL',
  accounts: ['nobody'],
  container: true,
  url: (port) => `nats://127.0.0.1:${port}`,
  binaries: async (say) =>
    (await installed(natsServer)) ?? (await unpacked('nats-2', { packages: ['nats-server'] }, natsServer, say)),
  async prepare(site) {
    const port = await site.port()
    const dataDir = await ownDir(join(site.dir, 'jetstream'), site.account)
    const server = site.launch('nats', {
      command: join(site.binaries.bin, 'nats-server'),
      args: ['--addr', '127.0.0.1', '--port', String(port), '--jetstream', '--store_dir', dataDir],
    })
    return { port, launches: [server], dataDir }
  },
}
