import { WaybillError } from '../../core/index.ts'

/**
 * What we call of a Redis client, and nothing else: commands by their words, scripts, and connections of our own. Bytes
 * come as they are: text in a reply is a Buffer, since not everything in Redis is UTF-8. The protocol is RESP2, whose
 * replies have one shape on every server and with every driver.
 */
export type RedisArg = string | Buffer
export type RedisReply = Buffer | string | number | null | readonly RedisReply[]

export interface CommandOptions {
  /** A key of the node that is to run it; for commands that name none themselves. */
  readonly key?: string
  /** How long to wait for the answer, in milliseconds, instead of the connection's limit. */
  readonly timeout?: number
}

/** A Lua script: run by its hash, and sent whole when the server does not know it (yet, or after a failover). */
export interface RedisScript {
  readonly name: string
  readonly text: string
  readonly sha: string
}

/**
 * A refusal of the server rejects with `RedisError`: nothing was done. Anything else (a lost connection, no answer in
 * time) rejects with `Unavailable`: whether it was done is unknown. A command is never sent twice behind our back.
 */
export interface RedisCommands {
  command(args: readonly RedisArg[], options?: CommandOptions): Promise<RedisReply>
  /** In one go to one node, one answer each; a refusal stands in its place. In a cluster all keys share a slot. */
  pipeline(
    commands: readonly (readonly RedisArg[])[],
    options?: CommandOptions,
  ): Promise<readonly (RedisReply | RedisError)[]>
  script(script: RedisScript, keys: readonly string[], args: readonly RedisArg[]): Promise<RedisReply>
}

/** A connection of our own. It does not heal: once it is lost, open another. (That of a cluster heals its nodes.) */
export interface RedisConnection extends RedisCommands {
  /** Aborted when the connection is gone, whoever ended it. */
  readonly lost: AbortSignal
  /** Ends it now; what is on its way is not known to be done. */
  close(): Promise<void>
  /** Ends it once all that is on its way has been answered. Default: `close`. */
  retire?(): void
}

export interface RedisConnectOptions {
  /** How it is called in CLIENT LIST. */
  readonly name?: string
  /** How long a command may take, in milliseconds, before the connection counts as lost. */
  readonly timeout: number
}

/** The client that was given. Only its settings are used: every connection is opened anew and is ours. */
export interface RedisClient {
  readonly driver: string
  readonly cluster: boolean
  /** What the client puts before every key. Ours do not; whoever names keys does. */
  readonly keyPrefix: string
  /** Which server, or servers that know each other, it connects to; absent where that is not known. */
  readonly server?: string | undefined
  connect(options: RedisConnectOptions): Promise<RedisConnection>
}

/** An error reply of the server. `kind` is the first word: `WRONGTYPE`, `NOGROUP`, `OOM`, … */
export class RedisError extends WaybillError {
  readonly kind: string

  constructor(said: string) {
    // Of an unknown command it repeats the arguments, which are data.
    const message = said.split(/,? with args beginning with/, 1)[0]!
    super('REDIS_ERROR', message)
    this.name = 'RedisError'
    this.kind = kindOf(message)
  }
}

/** Refusals that say something about the server or our rights, not about the command. */
const SERVER_KINDS = new Set([
  'LOADING',
  'CLUSTERDOWN',
  'TRYAGAIN',
  'MASTERDOWN',
  'READONLY',
  'BUSY',
  'UNKILLABLE',
  'NOREPLICAS',
  'OOM',
  'MISCONF',
  'NOAUTH',
  'NOPERM',
  'WRONGPASS',
  'MOVED',
  'ASK',
])

/** Whether it is the server that is in trouble: another command would have been refused too. */
export function isServerTrouble(error: unknown): boolean {
  return error instanceof RedisError && SERVER_KINDS.has(error.kind)
}

/** The server is not the one to talk to any more: somebody else is master now, or it has just begun. */
export function isWrongServer(error: unknown): boolean {
  if (!(error instanceof RedisError)) return false
  // UNBLOCKED says that what was waited for is gone, or that a master became a replica; only the text differs.
  if (error.kind === 'UNBLOCKED') return /state changed/.test(error.message)
  return /^(READONLY|MASTERDOWN|LOADING|CLUSTERDOWN)$/.test(error.kind)
}

export function isKind(error: unknown, kind: string): error is RedisError {
  return error instanceof RedisError && error.kind === kind
}

// Before 7.0 an error inside a script is wrapped: `ERR Error running script (…): @user_script:3: NOGROUP …`.
const INSIDE_SCRIPT = /@user_script: ?\d+: -?([A-Z]{2,})\b/

function kindOf(message: string): string {
  return INSIDE_SCRIPT.exec(message)?.[1] ?? /^-?([A-Z][A-Z0-9]*)/.exec(message)?.[1] ?? 'ERR'
}

export function textOf(reply: RedisReply | undefined): string {
  return typeof reply === 'string' ? reply : Buffer.isBuffer(reply) ? reply.toString() : String(reply ?? '')
}

export function listOf(reply: RedisReply | undefined): readonly RedisReply[] {
  return Array.isArray(reply) ? reply : []
}

export function numberOf(reply: RedisReply | undefined): number {
  return typeof reply === 'number' ? reply : Number(textOf(reply))
}

/**
 * The fields of a stream entry: the event in structured mode, and where an outbox wants it to go. A stream entry costs
 * the server, the wire and both ends per field, and JSON embedded in JSON costs nothing.
 */
export const ENTRY_EVENT = 'event'
export const ENTRY_TOPIC = 'topic'
