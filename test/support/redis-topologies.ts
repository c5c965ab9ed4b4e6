/**
 * Redis servers of one test file's own, alone or together, to crash and to configure at will. All of them are private
 * processes on private ports and directories, and end after the test file:
 *
 *   const set = await sentinel()                       one master, one replica, three sentinels
 *   redisStreams({ client: set.ioredis() })
 *   await (await set.master()).stop('kill')            a failover; `await set.failedOver(old)` waits for it
 *
 *   const nodes = await cluster({ replicas: 1 })       three masters, each with so many replicas
 *   await (await nodes.masterOf('some-key')).stop('kill')
 *
 *   const pair = await replicated()                    one master with a replica, and nobody who would promote it
 *   pair.replicas[0].suspend()                         it falls behind, as a process that hangs does
 *
 * Clients are made, not connected: the code under test opens its own connections.
 */
import { chown, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Cluster, Redis } from 'ioredis'
import { createCluster, createSentinel } from 'redis'
import { afterAll } from 'vitest'
import { redis, redis6 } from '../../scripts/services/kinds/redis.ts'
import { freePort } from '../../scripts/services/ports.ts'
import type { Entry, Site } from '../../scripts/services/types.ts'
import { slotOf } from '../../src/drivers/redis/slot.ts'
import { privateServer, type Service } from './services.ts'
import { eventually } from './wait.ts'

export type RedisVersion = 'redis' | 'redis6'
type Settings = Record<string, string>

export interface Address {
  readonly host: string
  readonly port: number
}

export interface RedisNode extends Service, Address {
  /** SIGSTOP: it keeps its connections and answers nothing. */
  suspend(): void
  resume(): void
}

const admins = new Map<number, Redis>()
const suspended = new Set<RedisNode>()

afterAll(() => {
  for (const node of suspended) node.resume()
  for (const client of admins.values()) client.disconnect()
})

/** The connection of this test file to one node, whatever its role; closed for you. */
export function admin({ host, port }: Address): Redis {
  const known = admins.get(port)
  if (known !== undefined) return known
  const client = new Redis(port, host, { retryStrategy: () => 50, maxRetriesPerRequest: null })
  client.on('error', () => {})
  admins.set(port, client)
  return client
}

/** One server. */
export async function standalone(settings: Settings = {}, version: RedisVersion = 'redis'): Promise<RedisNode> {
  return nodeOf(await privateServer(version === 'redis6' ? redis6 : redis, settings))
}

function nodeOf(server: Service): RedisNode {
  const { hostname, port } = new URL(server.url)
  const node: RedisNode = Object.defineProperties(Object.create(server) as RedisNode, {
    host: { value: hostname },
    port: { value: Number(port) },
    suspend: {
      value: () => {
        process.kill(server.pid!, 'SIGSTOP')
        suspended.add(node)
      },
    },
    resume: {
      value: () => {
        if (suspended.delete(node) && server.pid !== null) process.kill(server.pid, 'SIGCONT')
      },
    },
  })
  return node
}

/**
 * Bytes of what is stored, from INFO: less what connections have in their buffers at this moment. The server subtracts
 * without a sign, and a busy one may have more buffers than memory when it counts.
 */
export function datasetOf(info: string): number {
  return Number(BigInt.asIntN(64, BigInt(/used_memory_dataset:(\d+)/.exec(info)![1]!)))
}

/** The append-only file that is being written. */
export async function logOf(node: Address): Promise<string> {
  const [, dir] = (await admin(node).config('GET', 'dir')) as [string, string]
  const parts = await readdir(join(dir, 'appendonlydir')).catch(() => [])
  const last = parts.filter((name) => name.endsWith('.incr.aof')).sort()
  return last.length > 0 ? join(dir, 'appendonlydir', last.at(-1)!) : join(dir, 'appendonly.aof')
}

/**
 * Until its append-only file is written anew; for a server that was killed and is to be killed again. Killed in the middle
 * of a write it leaves a part of a script's effects in the file, and Redis then cuts off the command that is not whole, not
 * the transaction: at its next start that part comes to life, and what was written since may be gone. Fixed in Valkey,
 * see https://github.com/valkey-io/valkey/pull/4342.
 */
export async function rewritten(node: Address): Promise<void> {
  await admin(node).bgrewriteaof()
  await eventually('the append-only file is rewritten', async () => {
    const info = await admin(node).info('persistence')
    return /aof_rewrite_in_progress:0/.test(info) && /aof_rewrite_scheduled:0/.test(info)
  })
}

export interface ReplicatedOptions {
  readonly replicas?: number
  readonly version?: RedisVersion
  readonly settings?: Settings
}

/** A master and replicas that have its data. */
export async function replicated({ replicas = 1, version = 'redis', settings = {} }: ReplicatedOptions = {}) {
  const master = await standalone(settings, version)
  const followers = []
  for (let i = 0; i < replicas; i++) {
    followers.push(await standalone({ ...settings, replicaof: `${master.host} ${master.port}` }, version))
  }
  await follow(master, followers)
  return { master, replicas: followers }
}

async function follow(master: RedisNode, replicas: readonly RedisNode[]): Promise<void> {
  for (const replica of replicas) {
    await eventually('the replica has caught up', async () => {
      return /master_link_status:up/.test(await admin(replica).info('replication'))
    })
  }
  await eventually('the master knows them', async () => {
    const online = (await admin(master).info('replication')).match(/state=online/g) ?? []
    return online.length === replicas.length
  })
}

export interface SentinelOptions extends ReplicatedOptions {
  /** How long a master may be silent before it counts as down, in milliseconds. */
  readonly downAfter?: number
}

/** A master, its replicas, and three sentinels that promote one of them when it is gone. */
export async function sentinel({ downAfter = 2000, ...options }: SentinelOptions = {}) {
  const { master: first, replicas } = await replicated(options)
  const nodes = [first, ...replicas]
  const name = 'primary'
  const entry = sentinelEntry(options.version === 'redis6' ? redis6 : redis, [
    `sentinel monitor ${name} ${first.host} ${first.port} 2`,
    `sentinel down-after-milliseconds ${name} ${downAfter}`,
    `sentinel failover-timeout ${name} ${downAfter * 5}`,
    `sentinel parallel-syncs ${name} 1`,
  ])
  const sentinels: RedisNode[] = []
  for (let i = 0; i < 3; i++) sentinels.push(nodeOf(await privateServer(entry)))
  const calm = async () => {
    for (const one of sentinels) {
      await eventually('the sentinels know each other and the replicas, and nothing is going on', async () => {
        const [master] = ((await admin(one).call('sentinel', 'masters')) as string[][]).map(factsOf)
        const slaves = ((await admin(one).call('sentinel', 'slaves', name)) as string[][]).map(factsOf)
        const follow = slaves.filter((slave) => slave['flags'] === 'slave' && slave['master-link-status'] === 'ok')
        return (
          master!['flags'] === 'master' && master!['num-other-sentinels'] === '2' && follow.length === replicas.length
        )
      })
    }
  }
  await calm()
  const addresses = sentinels.map(({ host, port }) => ({ host, port }))
  /** Whom the sentinels call master now. */
  const master = async (): Promise<RedisNode> => {
    const reply = (await admin(sentinels[0]!).call('sentinel', 'get-master-addr-by-name', name)) as string[]
    return nodes.find(({ port }) => String(port) === reply[1])!
  }
  return {
    name,
    nodes,
    sentinels,
    master,
    /** Until a failover is over for everybody, and all nodes are up and follow the master. */
    calm,
    /** Until another than `old` is master and says so itself. Answers it. */
    async failedOver(old: RedisNode): Promise<RedisNode> {
      let now = old
      await eventually('another is master', async () => {
        now = await master()
        if (now === old) return false
        return ((await admin(now).call('role')) as string[])[0] === 'master'
      })
      return now
    },
    ioredis: () => new Redis({ sentinels: addresses, name, lazyConnect: true }),
    nodeRedis: () => createSentinel({ name, sentinelRootNodes: addresses }),
  }
}

function factsOf(reply: readonly string[]): Record<string, string> {
  return Object.fromEntries(reply.flatMap((word, i) => (i % 2 === 0 ? [[word, reply[i + 1]!]] : [])))
}

/** Sentinel writes what it learns into its configuration, so that must be a file of its own. */
function sentinelEntry(entry: Entry, lines: readonly string[]): Entry {
  return {
    ...entry,
    async prepare(site: Site) {
      const port = await site.port()
      const file = join(site.dir, 'sentinel.conf')
      const head = [`port ${port}`, 'bind 127.0.0.1', `dir ${site.dir}`]
      await writeFile(file, `${[...head, ...lines].join('\n')}\n`)
      if (site.account) await chown(file, site.account.uid, site.account.gid)
      const command = join(site.binaries.bin, 'redis-server')
      const launch = site.launch('sentinel', { command, args: [file, '--sentinel'] })
      return { port, launches: [launch], dataDir: site.dir }
    },
  }
}

export interface ClusterOptions {
  readonly masters?: number
  /** Of each master. */
  readonly replicas?: number
  /** How long a node may be silent before it counts as down, in milliseconds. */
  readonly nodeTimeout?: number
  readonly settings?: Settings
}

/** Masters that share the slots, each with its replicas. Redis 7.0: on 6.0 the port of the bus cannot be chosen. */
export async function cluster({ masters = 3, replicas = 0, nodeTimeout = 3000, settings = {} }: ClusterOptions = {}) {
  const nodes: RedisNode[] = []
  const buses: number[] = []
  for (let i = 0; i < masters * (1 + replicas); i++) {
    buses.push(await freePort())
    nodes.push(
      await standalone({
        'cluster-enabled': 'yes',
        'cluster-port': String(buses[i]),
        'cluster-node-timeout': String(nodeTimeout),
        // A replica that was without its master for long may still be promoted: on a busy machine everything takes long.
        'cluster-replica-validity-factor': '0',
        ...settings,
      }),
    )
  }
  const clients = nodes.map((node) => admin(node))
  for (let i = 0; i < masters; i++) {
    const [from, to] = [i, i + 1].map((part) => Math.floor((16384 * part) / masters)) as [number, number]
    await clients[i]!.call('cluster', 'addslotsrange', String(from), String(to - 1))
  }
  // Before they meet: masters with equal epochs settle who is newer later, and when one is killed just then, its replica
  // claims slots by an epoch that another master knows to be old, so that it is never elected.
  for (const [i, client] of clients.entries()) await client.call('cluster', 'set-config-epoch', String(i + 1))
  for (const [i, { host, port }] of nodes.entries()) {
    if (i > 0) await clients[0]!.call('cluster', 'meet', host, String(port), String(buses[i]))
  }
  const formed = () =>
    eventually('all nodes know each other, and every slot is served', async () => {
      for (const [i, client] of clients.entries()) {
        if (nodes[i]!.pid === null) continue
        const info = (await client.call('cluster', 'info')) as string
        if (!/cluster_state:ok/.test(info) || !info.includes(`cluster_known_nodes:${nodes.length}`)) return false
      }
      return true
    })
  await formed()
  const ids = await Promise.all(clients.map(async (client) => String(await client.call('cluster', 'myid'))))
  for (let i = masters; i < nodes.length; i++) await clients[i]!.call('cluster', 'replicate', ids[i % masters]!)
  for (let i = 0; i < masters && replicas > 0; i++) {
    await follow(
      nodes[i]!,
      nodes.filter((_, at) => at >= masters && at % masters === i),
    )
  }
  const roots = nodes.map(({ host, port }) => ({ host, port }))
  /** The node that owns the slot of a key now, asked of one that lives. */
  const masterOf = async (key: string): Promise<RedisNode> => {
    const living = nodes.find((node) => node.pid !== null && !suspended.has(node))!
    const client = clients[nodes.indexOf(living)]!
    const slot = Number(await client.call('cluster', 'keyslot', key))
    const slots = (await client.call('cluster', 'slots')) as [number, number, [string, number]][]
    const [, , [, port]] = slots.find(([from, to]) => from <= slot && slot <= to)!
    return nodes.find((node) => node.port === port)!
  }
  return {
    nodes,
    roots,
    /** The names nodes have for each other, in the order of `nodes`. */
    ids,
    masterOf,
    /** Until the cluster works, for every node that lives. */
    formed,
    /** Until another than `old` owns the key's slot and the cluster works. Answers it. */
    async failedOver(key: string, old: RedisNode): Promise<RedisNode> {
      let now = old
      await eventually('another owns the slot', async () => {
        now = await masterOf(key)
        return now !== old && /cluster_state:ok/.test(String(await admin(now).call('cluster', 'info')))
      })
      return now
    },
    ioredis: () => new Cluster(roots, { lazyConnect: true }),
    nodeRedis: () => createCluster({ rootNodes: roots.map(({ host, port }) => ({ url: `redis://${host}:${port}` })) }),
  }
}

/** So many names that are not all on one node of a cluster of three masters. */
export function spread(count: number, name: () => string): string[] {
  for (;;) {
    const names = Array.from({ length: count }, name)
    if (new Set(names.map((one) => Math.floor((slotOf(one) * 3) / 16384))).size > 1) return names
  }
}

export { eventually }
