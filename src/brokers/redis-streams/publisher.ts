import {
  encodeData,
  errorSummary,
  type RawMessage,
  startError,
  telemetry,
  Unavailable,
  WaybillError,
  warnOnce,
} from '../../core/index.ts'
import { checkServer, type Durability, REFUSED_LOGIN } from '../../drivers/redis/checks.ts'
import type { ReconnectingRedis } from '../../drivers/redis/reconnecting.ts'
import {
  isKind,
  isServerTrouble,
  isWrongServer,
  listOf,
  numberOf,
  type RedisArg,
  type RedisConnection,
  RedisError,
  textOf,
} from '../../drivers/redis/redis.ts'
import { replicatedScript } from '../../drivers/redis/wait.ts'
import { OK, type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import { scripts } from './scripts.ts'
import { DURABILITY_TEXTS } from './setup.ts'

/** One script appends at most so many: Redis does nothing else meanwhile. */
const AT_ONCE = 500
/** Redis before 7.0 takes 1,048,576 words in a command, and ends the connection over more. */
const MOST_WORDS = 1_000_000

export interface PublisherSettings {
  readonly name: string
  readonly redis: ReconnectingRedis
  /** The key of the stream a message goes to. */
  readonly keyOf: (message: RawMessage) => string
  /** All go to one stream. */
  readonly oneForAll: boolean
  /** Any key, to ask the server about itself. */
  readonly anyKey: string
  readonly encode: (message: RawMessage) => readonly RedisArg[]
  readonly maxLen: number | undefined
  /** To exactly so many, not about. */
  readonly exact: boolean
  readonly acceptLoss: boolean
  readonly durability: Durability
}

/** A message on its way: its place in the call, and its words. */
interface Item {
  readonly at: number
  readonly words: readonly RedisArg[]
}

/**
 * XADD, a batch in one script per stream: one round trip, and all of it in order or, from some message on, none of it.
 * The answer is given when Redis has accepted them, and, where replicas are asked for, when they have too.
 */
export class StreamsPublisher implements Publisher {
  readonly name: string
  readonly system = 'redis'
  readonly features = { ordered: true } as const
  readonly #settings: PublisherSettings
  #checked = false

  constructor(settings: PublisherSettings) {
    this.name = settings.name
    this.#settings = settings
    if (settings.maxLen !== undefined && !settings.acceptLoss) {
      warnOnce(
        `publisher ${settings.name}`,
        `maxLen trims entries whether or not they were handled: a group that is behind by ${settings.maxLen} loses messages. ` +
          'Use trimmer() instead, or say acceptLoss',
      )
    }
  }

  /**
   * A server that is away is a warning, and is checked again with the first message. It is no error here: in a cluster it
   * may be a node that the messages do not need.
   */
  async start(): Promise<void> {
    try {
      await this.#check(this.#settings.anyKey)
    } catch (thrown) {
      const error = startError(thrown, REFUSED_LOGIN)
      if (error instanceof WaybillError && !(error instanceof Unavailable || error instanceof RedisError)) throw error
      const message = `Redis cannot be reached yet: ${errorSummary(error)}`
      telemetry.warning.publish({ where: `publisher ${this.name}`, message })
    }
  }

  /** Of a cluster the node that is needed anyway: another may be gone, and hold up what does not need it. */
  async #check(key: string): Promise<void> {
    if (this.#checked) return
    const { redis, name, durability } = this.#settings
    await checkServer(redis, key, `publisher ${name}`, durability, DURABILITY_TEXTS)
    this.#checked = true
  }

  async publish(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    if (messages.length === 0) return []
    const outcomes: Outcome[] = new Array(messages.length)
    const streams = this.#sort(messages, outcomes)
    await Promise.all([...streams].map(([key, items]) => this.#append(key, items, outcomes)))
    return outcomes
  }

  async close(): Promise<void> {
    await this.#settings.redis.close()
  }

  /** By stream. What cannot be sent has its outcome now, and so has what comes after it of the same key. */
  #sort(messages: readonly RawMessage[], outcomes: Outcome[]): Map<string, Item[]> {
    const { keyOf, encode } = this.#settings
    const streams = new Map<string, Item[]>()
    let stopped: Set<string> | undefined
    messages.forEach((message, at) => {
      const { key } = message
      if (key !== undefined && stopped?.has(key)) {
        const error = new WaybillError('OUT_OF_ORDER', `${message}: one before it did not arrive`)
        outcomes[at] = { kind: 'failed', error }
        return
      }
      try {
        const stream = keyOf(message)
        const item = { at, words: encode(encodeData(message)) }
        const items = streams.get(stream)
        if (items === undefined) streams.set(stream, [item])
        else items.push(item)
      } catch (error) {
        outcomes[at] = outcomeOf(error)
        if (key !== undefined) {
          stopped ??= new Set()
          stopped.add(key)
        }
      }
    })
    return streams
  }

  async #append(key: string, items: readonly Item[], outcomes: Outcome[]): Promise<void> {
    for (let from = 0, to = 0; from < items.length; from = to) {
      to = endOfPart(items, from)
      const part = items.slice(from, to)
      const { appended, error } = await this.#appendPart(key, part)
      for (let i = 0; i < appended; i++) outcomes[part[i]!.at] = OK
      if (error === undefined) continue
      // The server's trouble is nobody's fault; a refusal concerns the stream, so those after it were not tried.
      const kind = this.#failsAlone(error) ? 'failed' : 'down'
      for (const { at } of items.slice(from + appended)) outcomes[at] = { kind, error }
      return
    }
  }

  /** Where all go to one stream, a key that holds something else stops all of them until somebody has mended that. */
  #failsAlone(error: unknown): boolean {
    if (!(error instanceof RedisError) || isServerTrouble(error)) return false
    return !(this.#settings.oneForAll && isKind(error, 'WRONGTYPE'))
  }

  async #appendPart(key: string, part: readonly Item[]): Promise<{ appended: number; error?: unknown }> {
    const { redis, maxLen, exact, durability } = this.#settings
    const width = part[0]!.words.length
    const uniform = part.every(({ words }) => words.length === width)
    const args: RedisArg[] = [
      maxLen === undefined ? '' : `${exact ? '=' : '~'}${maxLen}`,
      uniform ? String(width) : '0',
    ]
    for (const { words } of part) {
      if (!uniform) args.push(String(words.length))
      for (const word of words) args.push(word)
    }
    let connection: RedisConnection | undefined
    try {
      if (!this.#checked) await this.#check(key)
      connection = await redis.connection()
      const [appended, refusal] = listOf(await replicatedScript(connection, scripts.publish, [key], args, durability))
      if (refusal !== undefined) {
        const error = new RedisError(`${refusalText(textOf(refusal))} (stream ${JSON.stringify(key)})`)
        if (isWrongServer(error)) redis.retire(connection)
        return { appended: numberOf(appended), error }
      }
      return { appended: part.length }
    } catch (error) {
      if (isWrongServer(error) && connection !== undefined) redis.retire(connection)
      // The server will never do as it is set up: an error of its own, and not the outcome of a message.
      if (error instanceof WaybillError && !(error instanceof Unavailable || error instanceof RedisError)) throw error
      return { appended: 0, error }
    }
  }
}

/** How far the items from there on fit into one script. */
function endOfPart(items: readonly Item[], from: number): number {
  const most = Math.min(from + AT_ONCE, items.length)
  let to = from
  for (let words = 0; to < most; to++) {
    words += items[to]!.words.length + 1
    if (words > MOST_WORDS) break
  }
  return to
}

/** Errors of commands inside a script begin with a minus or a dash on some servers. */
function refusalText(text: string): string {
  return text.replace(/^-/, '').replace(/^@user_script: ?\d+: /, '')
}
