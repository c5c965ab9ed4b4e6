/** PgBouncer in transaction pooling in front of the newest PostgreSQL: what many of our users connect through. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Executable, installed, unpacked } from '../binaries.ts'
import { give } from '../files.ts'
import type { Entry } from '../types.ts'

const pgbouncerServer: Executable = {
  name: 'pgbouncer',
  folder: 'usr/sbin',
  version: ['--version'],
  accept: () => true,
}

/** Every database of the server behind it, as the user of its URL, whoever the client says it is. */
function configuration(port: number, postgresUrl: string): string {
  const target = new URL(postgresUrl)
  const user = decodeURIComponent(target.username) || 'postgres'
  const password = target.password ? ` password='${decodeURIComponent(target.password)}'` : ''
  return `
[databases]
* = host=${target.hostname} port=${target.port || 5432} user=${user}${password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
`
}

export const pgbouncer: Entry = {
  name: 'pgbouncer',
  variable: 'WAYBILL_TEST_PGBOUNCER_URL',
  defaultUrl: 'postgres://postgres@127.0.0.1:6432/postgres',
  protocol: 'postgres',
  install: 'a Debian with apt-get, or pgbouncer on the PATH, or a server named in WAYBILL_TEST_PGBOUNCER_URL',
  accounts: ['postgres', 'nobody'],
  after: ['postgres'],
  url: (port) => `postgres://postgres@127.0.0.1:${port}/postgres`,
  binaries: async (say) =>
    (await installed(pgbouncerServer)) ??
    (await unpacked('pgbouncer-1', { packages: ['pgbouncer'] }, pgbouncerServer, say)),
  async prepare(site) {
    const port = await site.port()
    const file = join(site.dir, 'pgbouncer.ini')
    await writeFile(file, configuration(port, site.other('postgres').url), { mode: 0o600 })
    await give(file, site.account)
    const server = site.launch('pgbouncer', { command: join(site.binaries.bin, 'pgbouncer'), args: [file] })
    return { port, launches: [server], dataDir: site.dir }
  },
}
