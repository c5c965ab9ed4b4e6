/** A RabbitMQ of one test file's own, to stop, to crash and to alarm. */
import { execFile } from 'node:child_process'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll } from 'vitest'
import { rabbitmq } from '../../../scripts/services/kinds/rabbitmq.ts'
import { startPrivate } from '../../../scripts/services/provision.ts'
import { openRun, type Run } from '../../../scripts/services/run.ts'
import * as control from '../../../scripts/services/server.ts'
import type { Server, StopMode } from '../../../scripts/services/types.ts'

let run: Promise<Run> | undefined
const servers: Server[] = []

afterAll(async () => {
  await Promise.all(servers.map((server) => control.stopAll(server)))
  await (await run)?.close()
})

export interface PrivateRabbitmq {
  readonly url: string
  stop(mode?: StopMode): Promise<void>
  start(): Promise<void>
  /** `rabbitmqctl` on it. */
  ctl(...args: readonly string[]): Promise<string>
}

export async function privateRabbitmq(): Promise<PrivateRabbitmq> {
  run ??= openRun()
  const server = await startPrivate(rabbitmq, { run: (await run).dir })
  servers.push(server)
  if (server.control.kind !== 'process') throw new Error('it is a process of ours')
  const { command, env, account, cwd } = server.control.launches.at(-1)!
  return {
    url: server.url,
    stop: (mode) => control.stop(server, mode),
    start: () => control.start(server),
    async ctl(...args) {
      const user = account === null ? {} : { uid: account.uid, gid: account.gid }
      const { stdout } = await promisify(execFile)(join(dirname(command), 'rabbitmqctl'), args, { env, cwd, ...user })
      return stdout
    },
  }
}
