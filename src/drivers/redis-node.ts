import { has } from './recognise.ts'
import type { ConnectOptions, RedisArg, RedisClient, RedisConnection } from './redis.ts'
import { connectionOf, type RawRedis } from './redis-connection.ts'

/** What is called of node-redis: a client and a cluster. */
interface NodeCommon {
  connect(): Promise<unknown>
  destroy(): void
  // biome-ignore lint/suspicious/noExplicitAny: each event has arguments of its own.
  on(event: string, listener: (...args: any[]) => void): unknown
}

interface SendOptions {
  readonly typeMapping: Readonly<Record<number, unknown>>
  readonly timeout: undefined
}

interface NodeClient extends NodeCommon {
  readonly options?: { readonly keyPrefix?: string; readonly socket?: object }
  readonly isOpen: boolean
  duplicate(override: object): NodeClient
  sendCommand(args: readonly RedisArg[], options: SendOptions): Promise<unknown>
}

interface NodeCluster extends NodeCommon {
  readonly slots: unknown
  readonly _options?: { readonly keyPrefix?: string; readonly defaults?: object }
  duplicate(override: object): NodeCluster
  sendCommand(
    key: string | undefined,
    readonly: boolean,
    args: readonly RedisArg[],
    options: SendOptions,
  ): Promise<unknown>
}

export function isNodeRedis(given: unknown): given is NodeClient | NodeCluster {
  return has(given, 'sendCommand', 'duplicate', 'connect', 'destroy', 'withTypeMapping')
}

/** `$`: the type of text and bytes in a reply. */
const SEND: SendOptions = { typeMapping: { 36: Buffer }, timeout: undefined }

const OURS = {
  RESP: 2,
  keyPrefix: undefined,
  clientSideCache: undefined,
  commandsQueueMaxLength: undefined,
  maintNotifications: 'disabled',
  pingInterval: undefined,
  disableOfflineQueue: true,
}

export function nodeRedis(given: NodeClient | NodeCluster): RedisClient {
  return isCluster(given) ? nodeCluster(given) : nodeClient(given)
}

function isCluster(given: NodeClient | NodeCluster): given is NodeCluster {
  return 'slots' in given && !('isPubSubActive' in given)
}

function nodeClient(given: NodeClient): RedisClient {
  return {
    driver: 'node-redis',
    cluster: false,
    keyPrefix: given.options?.keyPrefix ?? '',
    async connect(options: ConnectOptions): Promise<RedisConnection> {
      const socket = { ...given.options?.socket, reconnectStrategy: false }
      const client = given.duplicate({ ...OURS, ...named(options), socket })
      const end = await opened(client)
      return connectionOf(
        rawOf(client, end, (args) => client.sendCommand(args, SEND)),
        options,
      )
    },
  }
}

function nodeCluster(given: NodeCluster): RedisClient {
  return {
    driver: 'node-redis',
    cluster: true,
    keyPrefix: given._options?.keyPrefix ?? '',
    async connect(options: ConnectOptions): Promise<RedisConnection> {
      const { RESP, maintNotifications } = OURS
      const defaults = { ...given._options?.defaults, ...named(options) }
      const client = given.duplicate({ RESP, maintNotifications, keyPrefix: undefined, useReplicas: false, defaults })
      const end = await opened(client)
      return connectionOf(
        rawOf(client, end, (args, key) => client.sendCommand(key, false, args, SEND)),
        options,
      )
    },
  }
}

type OnEnd = RawRedis['onEnd']

async function opened(client: NodeCommon): Promise<OnEnd> {
  let last: unknown
  let ended = false
  let tell: (reason?: unknown) => void = () => {
    ended = true
  }
  client.on('error', (error) => {
    last = error
    // Without reconnecting, an error of the socket is its end.
    if ('isOpen' in client && !(client as NodeClient).isOpen) tell(error)
  })
  client.on('terminated', (error) => tell(error))
  client.on('end', () => tell(last))
  try {
    await client.connect()
  } catch (error) {
    destroy(client)
    throw error
  }
  return (listener) => {
    tell = listener
    if (ended) listener(last)
  }
}

function rawOf(
  client: NodeCommon,
  onEnd: OnEnd,
  send: (args: readonly RedisArg[], key: string | undefined) => Promise<unknown>,
): RawRedis {
  return {
    send,
    // What is sent in one turn leaves in one write.
    sendAll: (commands, key) => Promise.all(commands.map((args) => send(args, key).catch((error: unknown) => error))),
    onEnd,
    destroy: () => destroy(client),
  }
}

function destroy(client: NodeCommon): void {
  try {
    client.destroy()
  } catch {
    // It was closed already.
  }
}

function named({ name }: ConnectOptions): { name?: string } {
  return name === undefined ? {} : { name }
}
