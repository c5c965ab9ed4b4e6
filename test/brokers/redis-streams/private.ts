/** Redis servers of one test file's own, to crash, to configure and to listen to. */
import { Redis } from 'ioredis'
import { afterAll } from 'vitest'
import { redis, redis6 } from '../../../scripts/services/kinds/redis.ts'
import { freePort } from '../../../scripts/services/ports.ts'
import { startPrivate } from '../../../scripts/services/provision.ts'
import { openRun, type Run } from '../../../scripts/services/run.ts'
import * as control from '../../../scripts/services/server.ts'
import type { Server } from '../../../scripts/services/types.ts'
import { systemClock } from '../../../src/core/index.ts'

let run: Promise<Run> | undefined
const servers: Server[] = []

afterAll(async () => {
  await Promise.all(servers.map((server) => control.stop(server, 'immediate')))
  await (await run)?.close()
})

export async function privateRedis(settings: Record<string, string> = {}, version: 'redis' | 'redis6' = 'redis') {
  run ??= openRun()
  const entry = version === 'redis6' ? redis6 : redis
  const server = await startPrivate(entry, { run: (await run).dir, settings })
  servers.push(server)
  return server
}

/** Three masters that share the slots. Answers where they listen. */
export async function privateCluster(): Promise<{ host: string; port: number }[]> {
  const nodes = []
  for (let i = 0; i < 3; i++) {
    const bus = await freePort()
    const server = await privateRedis({ 'cluster-enabled': 'yes', 'cluster-port': String(bus) })
    nodes.push({ host: '127.0.0.1', port: Number(new URL(server.url).port), bus })
  }
  const clients = nodes.map(({ host, port }) => new Redis(port, host))
  for (const [i, client] of clients.entries()) {
    const [from, to] = [i, i + 1].map((part) => Math.floor((16384 * part) / 3)) as [number, number]
    await client.call('cluster', 'addslotsrange', String(from), String(to - 1))
  }
  for (const { host, port, bus } of nodes.slice(1)) {
    await clients[0]!.call('cluster', 'meet', host, String(port), String(bus))
  }
  for (const client of clients) {
    for (const end = performance.now() + 30_000; ; await systemClock.sleep(50)) {
      const info = (await client.call('cluster', 'info')) as string
      if (/cluster_state:ok/.test(info) && /cluster_known_nodes:3/.test(info)) break
      if (performance.now() > end) throw new Error(`the cluster does not form: ${info}`)
    }
    client.disconnect()
  }
  return nodes.map(({ host, port }) => ({ host, port }))
}
