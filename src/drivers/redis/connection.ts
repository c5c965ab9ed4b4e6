import { createHash } from 'node:crypto'
import { systemClock, Unavailable, withDeadline } from '../../core/index.ts'
import {
  type CommandOptions,
  isKind,
  type RedisArg,
  type RedisConnection,
  type RedisConnectOptions,
  RedisError,
  type RedisReply,
  type RedisScript,
} from './redis.ts'

/** What a driver has to give; the rest is the same for all of them. */
export interface RawRedis {
  /** Written at once; commands of one turn of the event loop reach the server in order. */
  send(args: readonly RedisArg[], key: string | undefined): Promise<unknown>
  /** Several to one node, in one go; what fails is an Error in its place. */
  sendAll(commands: readonly (readonly RedisArg[])[], key: string | undefined): Promise<readonly unknown[]>
  /** Calls back once when the connection has ended. */
  onEnd(listener: (reason?: unknown) => void): void
  /** Ends it now, answered or not. */
  destroy(): void
}

export function redisScript(name: string, text: string): RedisScript {
  return { name, text, sha: createHash('sha1').update(text).digest('hex') }
}

export function connectionOf(raw: RawRedis, options: RedisConnectOptions): RedisConnection {
  return new TimedConnection(raw, options.timeout)
}

/** To connect takes several replies, and drivers wait for them for ever. */
const SHORTEST_CONNECT = 5000

/** What `connecting` returns, unless a server takes the connection and then says nothing. Whoever calls closes it then. */
export function openedInTime<T>(connecting: Promise<T>, { timeout }: RedisConnectOptions): Promise<T> {
  const limit = Math.max(timeout, SHORTEST_CONNECT)
  return withDeadline(connecting, limit, systemClock, () => {
    throw new Unavailable(`Redis has not responded within ${limit} ms`)
  })
}

class TimedConnection implements RedisConnection {
  readonly #raw: RawRedis
  readonly #timeout: number
  readonly #lost = new AbortController()
  #unanswered = 0
  #retired = false

  constructor(raw: RawRedis, timeout: number) {
    this.#raw = raw
    this.#timeout = timeout
    raw.onEnd((reason) => this.#end(reason ?? new Unavailable('the connection to Redis has ended')))
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  command(args: readonly RedisArg[], options: CommandOptions = {}): Promise<RedisReply> {
    return this.#answer(() => this.#raw.send(args, options.key ?? keyOf(args)), options.timeout)
  }

  async pipeline(
    commands: readonly (readonly RedisArg[])[],
    options: CommandOptions = {},
  ): Promise<readonly (RedisReply | RedisError)[]> {
    const key = options.key ?? keyOf(commands[0] ?? [])
    const replies = await this.#answer(() => this.#raw.sendAll(commands, key), options.timeout)
    const results = (replies as readonly unknown[]).map((reply) => {
      if (!(reply instanceof Error)) return reply as RedisReply
      const error = judged(reply)
      if (error instanceof RedisError) return error
      throw error
    })
    // Drivers follow a slot that has moved for single commands only, and learn from them where it is.
    if (key !== undefined && results.some((reply) => isKind(reply, 'MOVED'))) {
      await this.command(['exists', key]).catch(() => {})
    }
    return results
  }

  async script(script: RedisScript, keys: readonly string[], args: readonly RedisArg[]): Promise<RedisReply> {
    const options = keys.length > 0 ? { key: keys[0]! } : {}
    const count = String(keys.length)
    try {
      return await this.command(['evalsha', script.sha, count, ...keys, ...args], options)
    } catch (error) {
      if (!isKind(error, 'NOSCRIPT')) throw error
      return await this.command(['eval', script.text, count, ...keys, ...args], options)
    }
  }

  retire(): void {
    this.#retired = true
    this.#endSoon()
  }

  async close(): Promise<void> {
    this.#end(new Unavailable('the connection to Redis was closed'))
  }

  #answer(send: () => Promise<unknown>, timeout = this.#timeout): Promise<RedisReply> {
    return new Promise((resolve, reject) => {
      if (this.#lost.signal.aborted) throw this.#lost.signal.reason
      this.#unanswered++
      // Not withDeadline: a signal for each command would cost ten times as much as the timer alone.
      const timer = setTimeout(() => {
        const error = new Unavailable(`Redis has not responded within ${timeout} ms`)
        reject(error)
        // Its answer may still come, and would be taken for that of another command if we went on.
        this.#end(error)
      }, timeout)
      const over = () => {
        clearTimeout(timer)
        this.#unanswered--
        if (this.#retired) this.#endSoon()
      }
      const failed = (error: unknown) => {
        over()
        reject(judged(error))
      }
      const answered = (reply: unknown) => {
        over()
        resolve(reply as RedisReply)
      }
      try {
        send().then(answered, failed)
      } catch (error) {
        failed(error)
      }
    })
  }

  /** Not in this turn: somebody may be about to send, or to send again what the server did not know. */
  #endSoon(): void {
    setImmediate(() => {
      if (this.#unanswered === 0) this.#end(new Unavailable('the connection to Redis was closed'))
    })
  }

  #end(reason: unknown): void {
    if (this.#lost.signal.aborted) return
    this.#lost.abort(reason)
    this.#raw.destroy()
  }
}

function keyOf(args: readonly RedisArg[]): string | undefined {
  const name = String(args[0]).toLowerCase()
  // XGROUP CREATE key, XINFO STREAM key
  const key = name === 'xgroup' || name === 'xinfo' ? args[2] : args[1]
  return key === undefined ? undefined : String(key)
}

const REDIRECTED =
  /^Too many Cluster redirections\. Last error: (?:ReplyError: )?((?:TRYAGAIN|MOVED|ASK|CLUSTERDOWN)\b.*)/

/** Refusals begin with a word in capitals, with every driver. Drivers attach the arguments to them; those stay out. */
function judged(error: unknown): Error {
  if (error instanceof RedisError || error instanceof Unavailable) return error
  const said = error instanceof Error ? error.message : String(error)
  // ioredis asks again for a while, and then quotes the refusal: nothing was done.
  const message = REDIRECTED.exec(said)?.[1] ?? said
  if (/^-?[A-Z][A-Z0-9]+( |$)/.test(message)) return new RedisError(message)
  return new Unavailable(`the connection to Redis failed: ${message}`, { cause: error })
}
