import { Unavailable, warnOnce } from '../../core/index.ts'
import { has } from '../has.ts'
import { connectionOf, openedInTime, type RawRedis } from './connection.ts'
import {
  listOf,
  type RedisArg,
  type RedisClient,
  type RedisConnection,
  type RedisConnectOptions,
  RedisError,
  textOf,
} from './redis.ts'
import { type Address, addressIn, serverOf } from './server.ts'
import { slotOf } from './slot.ts'

/** What is called of node-redis: a client, a cluster, and the master that sentinels name. */
interface NodeCommon {
  connect(): Promise<unknown>
  destroy(): unknown
  // biome-ignore lint/suspicious/noExplicitAny: each event has arguments of its own.
  on(event: string, listener: (...args: any[]) => void): unknown
}

interface SendOptions {
  readonly typeMapping: Readonly<Record<number, unknown>>
  readonly timeout: undefined
}

interface NodeClient extends NodeCommon {
  readonly options?: { readonly keyPrefix?: string; readonly socket?: Address; readonly database?: number }
  readonly isOpen: boolean
  duplicate(override: object): NodeClient
  sendCommand(args: readonly RedisArg[], options: SendOptions): Promise<unknown>
}

interface NodeCluster extends NodeCommon {
  readonly slots: readonly { readonly master: object }[]
  /** Not of its public face. Without it the user's settings of nodes are used as they are. */
  readonly _options?: {
    readonly keyPrefix?: string
    readonly defaults?: object
    readonly rootNodes?: readonly { readonly url?: string; readonly socket?: Address }[]
  }
  readonly _keyPrefix?: string
  duplicate(override: object): NodeCluster
  nodeClient(node: object): Promise<NodeClient>
  sendCommand(
    key: string | undefined,
    readonly: boolean,
    args: readonly RedisArg[],
    options: SendOptions,
  ): Promise<unknown>
}

interface NodeSentinel extends NodeCommon {
  readonly _keyPrefix?: string
  getMasterNode(): unknown
  duplicate(override: object): NodeSentinel
  sendCommand(readonly: boolean, args: readonly RedisArg[], options: SendOptions): Promise<unknown>
  /** Lends a client of the master. Not of its public face: without it commands go through the sentinel's client itself. */
  _execute?<T>(readonly: boolean, work: (client: NodeClient) => Promise<T>): Promise<T>
}

type NodeRedis = NodeClient | NodeCluster | NodeSentinel

export function isNodeRedis(given: unknown): given is NodeRedis {
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

const OUR_CLUSTER = {
  keyPrefix: undefined,
  useReplicas: false,
  // It would wait for every master before it is ready, for ever for one that is gone.
  minimizeConnections: true,
  // How long a master may be out of reach before others are asked who has its slots, in milliseconds.
  topologyRefreshOnReconnectionAttemptStrategy: 500,
}

export function nodeRedis(given: NodeRedis): RedisClient {
  if ('getMasterNode' in given) return nodeSentinel(given)
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
    server: serverOf([given.options?.socket ?? {}], String(given.options?.database ?? 0)),
    async connect(options: RedisConnectOptions): Promise<RedisConnection> {
      const socket = { ...given.options?.socket, reconnectStrategy: false }
      const client = given.duplicate({ ...OURS, ...named(options), socket })
      const end = await opened(client, options)
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
    keyPrefix: prefixOf(given, given._options !== undefined || '_keyPrefix' in given),
    server: serverOf((given._options?.rootNodes ?? []).map(({ url, socket }) => addressIn(url ?? socket))),
    async connect(options: RedisConnectOptions): Promise<RedisConnection> {
      const { RESP, maintNotifications, disableOfflineQueue } = OURS
      // What its nodes are given in any case, such as a password, must be in the new settings too.
      const theirs = given._options
      const ours =
        theirs === undefined ? {} : { defaults: { ...theirs.defaults, ...named(options), disableOfflineQueue } }
      const client = given.duplicate({ ...OUR_CLUSTER, RESP, maintNotifications, ...ours })
      const end = await opened(client, options)
      // A slot that nobody served when it looked stays unknown to it for good: whoever hears this connects anew.
      const find = (key: string | undefined) => {
        if (key === undefined || client.slots[slotOf(key)] !== undefined) return
        throw new RedisError('CLUSTERDOWN the client knows no node that serves the slot')
      }
      const send = async (args: readonly RedisArg[], key: string | undefined) => {
        find(key)
        return await client.sendCommand(key, false, args, SEND)
      }
      const sendAll: RawRedis['sendAll'] = async (commands, key = '') => {
        find(key)
        // By itself it asks every node to WAIT: they must reach the one that has the key, on the connection that wrote.
        const node = await client.nodeClient(client.slots[slotOf(key)]?.master ?? {})
        return await together(commands, (args) => node.sendCommand(args, SEND))
      }
      return connectionOf({ send, sendAll, onEnd: end, destroy: () => destroy(client) }, options)
    },
  }
}

/**
 * The sentinels are asked for the master, and then it is a client like any other. Their own sends a command again when
 * the master changes, whether it was run or not.
 */
function nodeSentinel(given: NodeSentinel): RedisClient {
  return {
    driver: 'node-redis',
    cluster: false,
    keyPrefix: prefixOf(given, '_keyPrefix' in given),
    async connect(options: RedisConnectOptions): Promise<RedisConnection> {
      const once = { maxCommandRediscovers: 0, scanInterval: 0 }
      const pool = { masterPoolSize: 1, replicaPoolSize: 0, reserveClient: false, clientSideCache: undefined }
      const sentinel = given.duplicate({ ...once, ...pool, RESP: 2, keyPrefix: undefined })
      if (sentinel._execute === undefined) return await master(await throughSentinel(sentinel, options))
      sentinel.on('error', () => {})
      try {
        await openedInTime(sentinel.connect(), options)
        const connection = await sentinel._execute(false, (client) => nodeClient(client).connect(options))
        return await master(connection)
      } finally {
        destroy(sentinel)
      }
    },
  }
}

/**
 * The sentinel's own client, which has one connection to the master and repeats nothing (`maxCommandRediscovers`). It
 * would heal by itself; here it has ended with the first command that was not answered, or when the master changes.
 */
async function throughSentinel(sentinel: NodeSentinel, options: RedisConnectOptions): Promise<RedisConnection> {
  const onEnd = await opened(sentinel, options)
  let report: (reason?: unknown) => void = () => {}
  sentinel.on('topology-change', ({ type }: { type?: string }) => {
    if (type === 'MASTER_CHANGE') report(new Error('another is master now'))
  })
  const send = async (args: readonly RedisArg[]) => {
    try {
      return await sentinel.sendCommand(false, args, SEND)
    } catch (error) {
      if (!isReply(error)) report(error)
      throw error
    }
  }
  const listen: OnEnd = (listener) => {
    report = listener
    onEnd(listener)
  }
  return connectionOf(
    rawOf(sentinel, listen, (args) => send(args)),
    options,
  )
}

/** What the server said, as against what happened to the connection. */
function isReply(error: unknown): boolean {
  return error instanceof Error && /^-?[A-Z][A-Z0-9]+( |$)/.test(error.message)
}

/** Which prefix a client puts before keys is not of its public face everywhere. */
function prefixOf(given: NodeCluster | NodeSentinel, exposed: boolean): string {
  if (exposed) return given._keyPrefix ?? ('_options' in given ? given._options?.keyPrefix : undefined) ?? ''
  warnOnce('node-redis', 'this version does not expose its keyPrefix: keys are used as they are named, without one')
  return ''
}

/** Until they have heard of a failover sentinels name the old master, which may be a replica by now. */
async function master(connection: RedisConnection): Promise<RedisConnection> {
  const [role] = listOf(await connection.command(['role']))
  if (textOf(role) === 'master') return connection
  await connection.close()
  throw new Unavailable(`the sentinels name a ${textOf(role)} as master`)
}

type OnEnd = RawRedis['onEnd']

async function opened(client: NodeCommon, options: RedisConnectOptions): Promise<OnEnd> {
  let last: unknown
  let ended = false
  let report: (reason?: unknown) => void = () => {
    ended = true
  }
  client.on('error', (error) => {
    last = error
    // Without reconnecting, an error of the socket is its end.
    if ('isOpen' in client && !(client as NodeClient).isOpen) report(error)
  })
  client.on('terminated', (error) => report(error))
  client.on('end', () => report(last))
  try {
    await openedInTime(client.connect(), options)
  } catch (error) {
    destroy(client)
    throw error
  }
  return (listener) => {
    report = listener
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
    sendAll: (commands, key) => together(commands, (args) => send(args, key)),
    onEnd,
    destroy: () => destroy(client),
  }
}

/** What is sent in one turn leaves in one write. */
async function together(
  commands: readonly (readonly RedisArg[])[],
  send: (args: readonly RedisArg[]) => Promise<unknown>,
): Promise<unknown[]> {
  return await Promise.all(commands.map((args) => send(args).catch((error: unknown) => error)))
}

function destroy(client: NodeCommon): void {
  // What it throws, or rejects with: it was closed already.
  void (async () => client.destroy())().catch(() => {})
}

function named({ name }: RedisConnectOptions): { name?: string } {
  return name === undefined ? {} : { name }
}
