import { onAbort, Unavailable, WaybillError } from '../../core/index.ts'
import {
  type CommandOptions,
  isWrongServer,
  type RedisArg,
  type RedisClient,
  type RedisCommands,
  type RedisConnection,
  type RedisConnectOptions,
  RedisError,
  type RedisReply,
  type RedisScript,
} from './redis.ts'
import { type ReplicaAcks, replicatedScript } from './wait.ts'

/** A connection that is opened when it is needed, and again when it was lost. What was under way then is not repeated. */
export class ReconnectingRedis implements RedisCommands {
  readonly #client: RedisClient
  readonly #options: RedisConnectOptions
  #connecting: Promise<RedisConnection> | undefined
  /** No longer used, and not ended yet: something is on its way over them. */
  readonly #retired = new Set<RedisConnection>()
  #closed = false

  constructor(client: RedisClient, options: RedisConnectOptions) {
    this.#client = client
    this.#options = options
  }

  command(args: readonly RedisArg[], options?: CommandOptions): Promise<RedisReply> {
    return this.#use((connection) => connection.command(args, options))
  }

  pipeline(
    commands: readonly (readonly RedisArg[])[],
    options?: CommandOptions,
  ): Promise<readonly (RedisReply | RedisError)[]> {
    return this.#use((connection) => connection.pipeline(commands, options))
  }

  script(script: RedisScript, keys: readonly string[], args: readonly RedisArg[]): Promise<RedisReply> {
    return this.#use((connection) => connection.script(script, keys, args))
  }

  /** The same, and so many replicas must have what it wrote. */
  replicated(
    script: RedisScript,
    keys: readonly [string, ...string[]],
    args: readonly RedisArg[],
    replicaAcks: ReplicaAcks,
  ) {
    return this.#use((connection) => replicatedScript(connection, script, keys, args, replicaAcks))
  }

  /** One connection for several commands that must share it. */
  async connection(): Promise<RedisConnection> {
    if (this.#closed) throw new Unavailable('the connection to Redis was closed')
    this.#connecting ??= this.#connect()
    return await this.#connecting
  }

  /**
   * The next command goes over another connection. What is on its way over this one is still answered: in a cluster it may
   * go to nodes that are well, and without an answer nobody would know whether it was done.
   */
  retire(connection: RedisConnection): void {
    this.#forget(connection)
    if (connection.lost.aborted) return
    this.#retired.add(connection)
    if (connection.retire === undefined) void connection.close()
    else connection.retire()
  }

  async close(): Promise<void> {
    this.#closed = true
    const connecting = this.#connecting
    this.#connecting = undefined
    await Promise.all([...this.#retired].map((connection) => connection.close()))
    await (await connecting?.catch(() => undefined))?.close()
  }

  async #connect(): Promise<RedisConnection> {
    try {
      const connection = await this.#client.connect(this.#options)
      onAbort(connection.lost, () => this.#forget(connection))
      return connection
    } catch (error) {
      this.#connecting = undefined
      // What the server is, and not whether it is there.
      if (error instanceof WaybillError && !(error instanceof Unavailable || error instanceof RedisError)) throw error
      const message = error instanceof Error ? error.message : String(error)
      throw new Unavailable(`cannot connect to Redis: ${message}`, { cause: error })
    }
  }

  async #use<T>(work: (connection: RedisConnection) => Promise<T>): Promise<T> {
    const connection = await this.connection()
    try {
      return await work(connection)
    } catch (error) {
      // After a failover the old master is a replica, and stays connected.
      if (isWrongServer(error)) this.retire(connection)
      throw error
    }
  }

  #forget(connection: RedisConnection): void {
    this.#retired.delete(connection)
    const connecting = this.#connecting
    // Another may be under way by now, and whoever waits for it hears how it ended.
    connecting?.then(
      (current) => {
        if (current === connection && this.#connecting === connecting) this.#connecting = undefined
      },
      () => {},
    )
  }
}
