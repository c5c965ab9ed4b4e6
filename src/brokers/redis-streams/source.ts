import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { Unavailable, WaybillError } from '../../core/index.ts'
import { checkServer, type Durability, isUnknownCommand, unsupported } from '../../drivers/redis/checks.ts'
import type { ReconnectingRedis } from '../../drivers/redis/reconnecting.ts'
import {
  isKind,
  listOf,
  numberOf,
  type RedisClient,
  type RedisCommands,
  type RedisConnection,
  RedisError,
  textOf,
} from '../../drivers/redis/redis.ts'
import type { Source } from '../../flow/index.ts'
import type { Predecessor } from './claims.ts'
import { type DeadLetterOptions, deadLettersOf, type StreamDeadLetter } from './dead-letters.ts'
import type { GroupSettings } from './member.ts'
import { DUE, RETURNED, scripts } from './scripts.ts'
import { type StreamDelivery, StreamSession } from './session.ts'
import { STAKES } from './setup.ts'

/** A consumer group, as a source. Every session is a consumer of its own. */
export class StreamsSource implements Source<StreamDelivery> {
  readonly name: string
  readonly features = { redelivers: true } as const
  readonly #settings: GroupSettings
  readonly #client: RedisClient
  readonly #redis: ReconnectingRedis
  readonly #durability: Durability
  readonly #stableName: string | undefined
  /** Consumers of this process whose session ended without giving back what it had. */
  readonly #abandoned = new Set<string>()
  #checked = false

  constructor(
    name: string,
    settings: GroupSettings,
    client: RedisClient,
    redis: ReconnectingRedis,
    durability: Durability,
    stableName: string | undefined,
  ) {
    this.name = name
    this.#settings = settings
    this.#client = client
    this.#redis = redis
    this.#durability = durability
    this.#stableName = stableName
  }

  async open(): Promise<StreamSession> {
    const { where, timeout, streams } = this.#settings
    const writer = await this.#connect(timeout)
    let reader: RedisConnection | undefined
    try {
      if (!this.#checked) await checkServer(writer, streams[0]!.key, where, this.#durability, STAKES)
      this.#checked = true
      await this.#createGroups(writer)
      reader = await this.#connect(timeout)
      const readerId = this.#client.cluster ? undefined : textOf(await reader.command(['client', 'id']))
      const consumer = `${this.#stableName ?? `${hostname()}-${process.pid}`}:${randomBytes(6).toString('hex')}`
      const predecessors = await this.#predecessors(writer)
      const onAbandon = (name: string) => this.#abandoned.add(name)
      return new StreamSession(this.#settings, { reader, writer, consumer, readerId, predecessors, onAbandon })
    } catch (error) {
      await Promise.all([writer.close(), reader?.close()])
      throw error
    }
  }

  /** How far the group is, stream by stream. Works on 6.0. */
  async stats(): Promise<readonly StreamStats[]> {
    return await statsOf(this.#settings, this.#redis)
  }

  /** What the group gave up, oldest first. */
  async deadLetters(options?: DeadLetterOptions): Promise<readonly StreamDeadLetter[]> {
    return await deadLettersOf(this.#settings, this.#redis, options)
  }

  /**
   * Gives a dead letter to the group again, with all its attempts. Answers false when there is none of that id. When
   * the entry itself is gone from the stream it is appended anew, and every group gets it.
   */
  async rearm(letter: string): Promise<boolean> {
    for (const { key, letters } of this.#settings.streams) {
      const args = [this.#settings.group, RETURNED, String(DUE), letter]
      if (numberOf(await this.#redis.script(scripts.rearm, [key, letters], args)) === 1) return true
    }
    return false
  }

  /** Drops a dead letter for good. */
  async discard(letter: string): Promise<boolean> {
    let dropped = 0
    for (const letters of new Set(this.#settings.streams.map((stream) => stream.letters))) {
      dropped += numberOf(await this.#redis.command(['xdel', letters, letter]))
    }
    return dropped > 0
  }

  async #connect(timeout: number): Promise<RedisConnection> {
    try {
      return await this.#client.connect({ timeout, name: `waybill-${this.#settings.group.replace(/\s/g, '-')}` })
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      throw new Unavailable(`cannot connect to Redis: ${message}`, { cause: error })
    }
  }

  async #createGroups(redis: RedisConnection): Promise<void> {
    const { group, streams, start } = this.#settings
    for (const { key } of streams) {
      try {
        await redis.command(['xgroup', 'CREATE', key, group, start, 'MKSTREAM'])
      } catch (error) {
        if (isKind(error, 'BUSYGROUP')) continue
        if (isUnknownCommand(error)) throw unsupported(this.#settings.where, STAKES, 'a server without streams')
        if (!isKind(error, 'WRONGTYPE') && !isWrongTypeOf6(error)) throw error
        const type = textOf(await redis.command(['type', key]))
        const what = `the key ${JSON.stringify(key)} holds a ${type}, not a stream; name another, or remove it`
        throw new WaybillError('WRONG_KEY_TYPE', `${this.#settings.where}: ${what}`, { cause: error })
      }
    }
  }

  /** Whoever left something that this session may have at once. */
  async #predecessors(redis: RedisConnection): Promise<Predecessor[]> {
    const found: Predecessor[] = [...this.#abandoned].map((consumer) => ({
      consumer,
      charge: 0,
      onEnd: () => this.#abandoned.delete(consumer),
    }))
    if (this.#stableName === undefined) return found
    const names = new Set<string>()
    for (const { key } of this.#settings.streams) {
      for (const consumer of listOf(await redis.command(['xinfo', 'CONSUMERS', key, this.#settings.group]))) {
        names.add(textOf(listOf(consumer)[1]))
      }
    }
    const earlier = [...names].filter((name) => name.startsWith(`${this.#stableName}:`) && !this.#abandoned.has(name))
    return [...found, ...earlier.map((consumer) => ({ consumer, charge: 1 as const }))]
  }
}

/** 6.0 answers XGROUP CREATE on another type of key with a plain ERR on some builds. */
function isWrongTypeOf6(error: unknown): boolean {
  return error instanceof RedisError && /wrong kind of value/i.test(error.message)
}

/** How a group stands in one stream. */
export interface StreamStats {
  readonly stream: string
  /** Entries in the stream, handled or not. */
  readonly length: number
  /** Entries the group has not been given yet. */
  readonly lag: number
  /** Counting was given up there: the lag is that or more. */
  readonly lagIsAtLeast: boolean
  /** Given and not settled: in somebody's hand … */
  readonly inHand: number
  /** … or given back, waiting for the next try. */
  readonly waiting: number
  readonly dead: number
  /** Milliseconds since the oldest entry that is not handled was published; 0 without one. */
  readonly oldest: number
}

/** Before 7.0 the server does not know the lag, and counting all of a long stream would hold it up. */
const COUNT_TO = 10_000

export async function statsOf(settings: GroupSettings, redis: RedisCommands): Promise<StreamStats[]> {
  const all: StreamStats[] = []
  for (const { key, letters } of settings.streams) {
    const args = [settings.group, RETURNED, String(COUNT_TO)]
    const reply = listOf(await redis.script(scripts.stats, [key, letters], args))
    const [length, lag, more, pending, waiting, oldest, dead, now] =
      reply.length > 0 ? reply : [0, 0, '0', 0, 0, '', 0, 0]
    const since = Number.parseInt(textOf(oldest), 10)
    all.push({
      stream: key,
      length: numberOf(length),
      lag: numberOf(lag),
      lagIsAtLeast: textOf(more) === '1',
      inHand: numberOf(pending) - numberOf(waiting),
      waiting: numberOf(waiting),
      dead: numberOf(dead),
      oldest: Number.isNaN(since) ? 0 : Math.max(0, numberOf(now) - since),
    })
  }
  return all
}
