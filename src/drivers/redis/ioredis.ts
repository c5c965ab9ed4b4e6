import { has } from '../has.ts'
import { connectionOf, openedInTime, type RawRedis } from './connection.ts'
import type { RedisArg, RedisClient, RedisConnection, RedisConnectOptions } from './redis.ts'
import { type Address, addressIn, serverOf } from './server.ts'

/** What is called of ioredis: a client (also one found through Sentinel) and a cluster. */
interface IoCommands {
  callBuffer(name: string, args: readonly RedisArg[]): unknown
  pipeline(): IoPipeline
  connect(): Promise<unknown>
  disconnect(): void
  // biome-ignore lint/suspicious/noExplicitAny: each event has arguments of its own.
  on(event: string, listener: (...args: any[]) => void): unknown
}

interface IoPipeline {
  callBuffer(name: string, args: readonly RedisArg[]): unknown
  exec(): Promise<readonly (readonly [Error | null, unknown])[] | null>
}

interface IoRedis extends IoCommands {
  readonly options: Address & {
    readonly keyPrefix?: string
    readonly db?: number
    readonly sentinels?: readonly Address[] | null
    readonly name?: string
  }
  duplicate(override: object): IoCommands
}

interface IoCluster extends IoCommands {
  readonly isCluster: true
  /** Not of its public face. */
  readonly startupNodes?: readonly unknown[]
  readonly options: { readonly keyPrefix?: string; readonly redisOptions?: object }
  duplicate(nodes: readonly never[], override: object): IoCommands
}

export function isIoRedis(given: unknown): given is IoRedis | IoCluster {
  return has(given, 'callBuffer', 'duplicate', 'pipeline', 'disconnect') && 'options' in (given as object)
}

/**
 * Settings that matter to us, whatever the client has. `autoResendUnfulfilledCommands` and reconnecting would send a
 * command a second time whose answer was lost: every XADD among them a duplicate that goes unnoticed.
 */
const OURS = {
  lazyConnect: true,
  protocol: 2,
  keyPrefix: '',
  stringNumbers: false,
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  retryStrategy: null,
  reconnectOnError: null,
  sentinelRetryStrategy: null,
  maxRetriesPerRequest: 0,
  enableAutoPipelining: false,
  commandTimeout: undefined,
  socketTimeout: undefined,
  blockingTimeout: undefined,
  disconnectTimeout: 200,
  monitor: false,
  readOnly: false,
}

const OUR_CLUSTER = {
  lazyConnect: true,
  keyPrefix: '',
  scaleReads: 'master',
  enableAutoPipelining: false,
  // Above zero a command is sent again when its node is gone, whether it was run or not.
  retryDelayOnFailover: 0,
  clusterRetryStrategy: () => null,
}

export function ioRedis(given: IoRedis | IoCluster): RedisClient {
  const cluster = 'isCluster' in given && given.isCluster
  return {
    driver: 'ioredis',
    cluster,
    keyPrefix: given.options.keyPrefix ?? '',
    server: cluster ? serverOf(((given as IoCluster).startupNodes ?? []).map(addressIn)) : addressOf(given as IoRedis),
    async connect(options: RedisConnectOptions): Promise<RedisConnection> {
      const name = options.name === undefined ? {} : { connectionName: options.name }
      const client = cluster
        ? (given as IoCluster).duplicate([], {
            ...OUR_CLUSTER,
            redisOptions: { ...given.options.redisOptions, ...OURS, ...name },
          })
        : (given as IoRedis).duplicate({ ...OURS, ...name })
      let last: unknown
      client.on('error', (error) => {
        last = error
      })
      try {
        // The end of the client may come without an end of `connect`.
        await openedInTime(Promise.race([client.connect(), ended(client)]), options)
      } catch (error) {
        client.disconnect()
        // What ended the attempt is an event; the promise only says that it ended.
        throw last ?? error
      }
      return connectionOf(
        rawOf(client, cluster, () => last),
        options,
      )
    },
  }
}

function addressOf({ options: { db = 0, sentinels, name, host, port, path } }: IoRedis): string | undefined {
  if (sentinels) return serverOf(sentinels, `${name} ${db}`)
  return serverOf([{ ...(host && { host }), ...(port && { port }), ...(path && { path }) }], String(db))
}

/** A cluster that is down ends its client, and leaves whoever waits for the connection waiting. */
function ended(client: IoCommands): Promise<never> {
  return new Promise((_, reject) => {
    client.on('end', () => reject(new Error('the connection has ended')))
  })
}

function rawOf(client: IoCommands, cluster: boolean, why: () => unknown): RawRedis {
  const send = (args: readonly RedisArg[]) => client.callBuffer(String(args[0]), args.slice(1)) as Promise<unknown>
  return {
    send,
    async sendAll(commands) {
      if (!cluster) return await Promise.all(commands.map((args) => send(args).catch((error: unknown) => error)))
      // Only a pipeline keeps a command without a key on the node of those before it.
      const pipeline = client.pipeline()
      for (const args of commands) pipeline.callBuffer(String(args[0]), args.slice(1))
      return ((await pipeline.exec()) ?? []).map(([error, reply]) => error ?? reply)
    },
    onEnd: (listener) => client.on('end', () => listener(why())),
    destroy: () => client.disconnect(),
  }
}
