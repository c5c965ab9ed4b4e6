/** NATS servers of one test file's own, to crash and to configure. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { ownDir } from '../../../scripts/services/files.ts'
import { nats } from '../../../scripts/services/kinds/nats.ts'
import { startPrivate } from '../../../scripts/services/provision.ts'
import { openRun, type Run } from '../../../scripts/services/run.ts'
import * as control from '../../../scripts/services/server.ts'
import type { Entry, Server } from '../../../scripts/services/types.ts'

let run: Promise<Run> | undefined
const servers: Server[] = []

afterAll(async () => {
  await Promise.all(servers.map((server) => control.stop(server, 'immediate')))
  await (await run)?.close()
})

/** With a configuration file of this text. Where nothing is said of JetStream, it is on. */
export async function privateNats(configuration = ''): Promise<Server> {
  run ??= openRun()
  const entry: Entry = {
    ...nats,
    async prepare(site) {
      const port = await site.port()
      const dataDir = await ownDir(join(site.dir, 'jetstream'), site.account)
      const file = join(site.dir, 'nats.conf')
      const jetstream = /jetstream/.test(configuration) ? '' : `jetstream { store_dir: "${dataDir}" }\n`
      await writeFile(file, `listen: "127.0.0.1:${port}"\n${jetstream}${configuration}\n`)
      const launch = site.launch('nats', { command: join(site.binaries.bin, 'nats-server'), args: ['--config', file] })
      return { port, launches: [launch], dataDir }
    },
  }
  const server = await startPrivate(entry, { run: (await run).dir, settings: {} })
  servers.push(server)
  return server
}

export { control }
