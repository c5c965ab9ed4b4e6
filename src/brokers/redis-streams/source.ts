import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { checkAccess, telemetry, Unavailable, WaybillError } from '../../core/index.ts'
import {
  checkServer,
  type Durability,
  isUnknownCommand,
  REFUSED_LOGIN,
  unsupported,
} from '../../drivers/redis/checks.ts'
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
import {
  appendLetter,
  compareIds,
  type DeadLetterOptions,
  deadLettersOf,
  type StreamDeadLetter,
} from './dead-letters.ts'
import { type GroupPosition, type GroupSettings, positionOf, type Stream } from './member.ts'
import { isRefusal } from './refused-streams.ts'
import { DUE, RETURNED, scripts } from './scripts.ts'
import { type StreamDelivery, StreamSession } from './session.ts'
import { DURABILITY_TEXTS } from './setup.ts'

/** From so many milliseconds on it is reported that the server's clock has gone back. */
const CLOCK_STEP = 5000

/** As rearm.lua returns. */
const APPEND_IT = 2

/** A consumer group, as a source. Every session is a consumer of its own. */
export class StreamsSource implements Source<StreamDelivery> {
  readonly name: string
  readonly system = 'redis'
  readonly features = { redelivers: true } as const
  readonly #settings: GroupSettings
  readonly #client: RedisClient
  readonly #redis: ReconnectingRedis
  readonly #durability: Durability
  readonly #stableName: string | undefined
  /** Consumers of this process whose session ended without giving back what it had. */
  readonly #abandoned = new Set<string>()
  /** How far the group was in each stream when it was last looked at, and when that was. */
  readonly #positions = new Map<Stream, { at: number; now: number; settled: string | undefined }>()
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

  /**
   * A user that the server refuses, a server that cannot be used, or a key of another type is an error of `start`; what may
   * pass is waited for.
   */
  async check(signal: AbortSignal): Promise<void> {
    const connect = async () => {
      const connection = await this.#connect()
      try {
        await this.#checkOnce(connection)
        // What `open` asks too: a user who may not ask this cannot read.
        for (const { key } of this.#settings.streams) await this.#positionIn(key, connection)
      } catch (error) {
        throw error instanceof RedisError ? new Unavailable(error.message, { cause: error }) : error
      } finally {
        await connection.close()
      }
    }
    await checkAccess(connect, REFUSED_LOGIN, this.#settings.clock, signal)
  }

  async open(): Promise<StreamSession> {
    const writer = await this.#connect()
    let reader: RedisConnection | undefined
    try {
      await this.#checkOnce(writer)
      const refused = await this.#prepareAll(writer)
      reader = await this.#connect()
      const readerId = this.#client.cluster ? undefined : textOf(await reader.command(['client', 'id']))
      const consumer = `${this.#stableName ?? `${hostname()}-${process.pid}`}:${randomBytes(6).toString('hex')}`
      const predecessors = await this.#predecessors(writer, refused)
      const onAbandon = (name: string) => this.#abandoned.add(name)
      const onPosition = (stream: Stream, position: GroupPosition) => this.#note(stream, position)
      const prepare = async (stream: Stream) => {
        await this.#prepare(stream, writer)
        return await this.#earlier(stream, writer)
      }
      const parts = { reader, writer, consumer, readerId, predecessors, refused, prepare, onAbandon, onPosition }
      return new StreamSession(this.#settings, parts)
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
   * Gives a dead letter to the group again, with all its attempts. Returns false when there is none of that id. When
   * the entry itself is gone from the stream it is appended anew, and every group gets it.
   */
  async rearm(letter: string): Promise<boolean> {
    for (const stream of this.#settings.streams) {
      const became = await this.#act(stream, letter, false)
      if (became === APPEND_IT) await appendLetter(this.#settings, this.#redis, stream, letter)
      if (became === APPEND_IT) await this.#act(stream, letter, true)
      if (became !== 0) return true
    }
    return false
  }

  /** Drops a dead letter for good. */
  async discard(letter: string): Promise<boolean> {
    for (const stream of this.#settings.streams) if ((await this.#act(stream, letter, true)) !== 0) return true
    return false
  }

  async #act({ key, letters }: Stream, letter: string, drops: boolean): Promise<number> {
    const args = [this.#settings.group, RETURNED, String(DUE), letter, drops ? '1' : '0']
    return numberOf(await this.#redis.script(scripts.rearm, [key, letters], args))
  }

  async #checkOnce(redis: RedisConnection): Promise<void> {
    if (this.#checked) return
    const { where, streams } = this.#settings
    await checkServer(redis, streams[0]!.key, where, this.#durability, DURABILITY_TEXTS)
    this.#checked = true
  }

  async #connect(): Promise<RedisConnection> {
    const { timeout, group } = this.#settings
    try {
      return await this.#client.connect({ timeout, name: `waybill-${group.replace(/\s/g, '-')}` })
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      throw new Unavailable(`cannot connect to Redis: ${message}`, { cause: error })
    }
  }

  /** Returns what is refused and why: the others are read meanwhile, if there are any. */
  async #prepareAll(redis: RedisConnection): Promise<Map<Stream, unknown>> {
    const { streams } = this.#settings
    const refused = new Map<Stream, unknown>()
    for (const stream of streams) {
      try {
        await this.#prepare(stream, redis)
      } catch (error) {
        if (!isRefusal(error)) throw error
        refused.set(stream, error)
      }
    }
    for (const error of refused.values()) if (refused.size === streams.length) throw error
    return refused
  }

  /** Sees to it that there is a group. */
  async #prepare(stream: Stream, redis: RedisConnection): Promise<void> {
    const { key } = stream
    const { group, where } = this.#settings
    try {
      const found = await this.#positionIn(key, redis)
      const position = { ...found, settled: found.settled ?? this.#startIn(stream, found.last) }
      // One that is there is not made again: a server without memory would refuse that too.
      if (found.settled === undefined)
        await redis.command(['xgroup', 'CREATE', key, group, position.settled, 'MKSTREAM'])
      this.#note(stream, position)
    } catch (error) {
      if (isKind(error, 'BUSYGROUP')) return
      if (isUnknownCommand(error)) throw unsupported(where, DURABILITY_TEXTS, 'a server without streams')
      throw error
    }
  }

  async #positionIn(key: string, redis: RedisConnection): Promise<GroupPosition> {
    try {
      return positionOf(await redis.script(scripts.position, [key], [this.#settings.group]))
    } catch (error) {
      if (!isKind(error, 'WRONGTYPE') && !isWrongTypeOf6(error)) throw error
      const type = textOf(await redis.command(['type', key]))
      const what = `the key ${JSON.stringify(key)} holds a ${type}, not a stream; name another, or remove it`
      throw new WaybillError('WRONG_KEY_TYPE', `${this.#settings.where}: ${what}`, { cause: error })
    }
  }

  /**
   * Where a group begins that is made now. One that this process has read, and that was deleted, goes on from where all was
   * settled: what came since would be missed otherwise. Where it was to read all there is, it does.
   */
  #startIn(stream: Stream, last: string | undefined): string {
    const { start } = this.#settings
    const known = this.#positions.get(stream)?.settled
    // Ids begin anew with a new stream.
    if (start !== '0' && known !== undefined) return last === undefined || compareIds(last, known) < 0 ? '0-0' : known
    return start === '$' ? (last ?? '0-0') : start
  }

  #note(stream: Stream, position: GroupPosition): void {
    const { clock, where } = this.#settings
    const before = this.#positions.get(stream)
    const at = clock.monotonic()
    // A group that is gone has no place; the last one that was known counts.
    this.#positions.set(stream, { at, now: position.now, settled: position.settled ?? before?.settled })
    const back = before === undefined ? 0 : before.now + (at - before.at) - position.now
    if (back < CLOCK_STEP) return
    const message =
      `the clock of Redis went back by ${Math.round(back / 1000)} s: entries of consumers that died, and what was given back ` +
      'with a delay by processes that are gone, wait that much longer'
    telemetry.warning.publish({ where, message })
  }

  /** Whoever left something that this session may have at once. */
  async #predecessors(redis: RedisConnection, refused: ReadonlyMap<Stream, unknown>): Promise<Predecessor[]> {
    const found: Predecessor[] = [...this.#abandoned].map((consumer) => ({
      consumer,
      charge: 0,
      onEnd: () => this.#abandoned.delete(consumer),
    }))
    const names = new Set<string>()
    for (const stream of this.#settings.streams.filter((one) => !refused.has(one))) {
      for (const earlier of await this.#earlier(stream, redis)) {
        if (!names.has(earlier.consumer)) found.push(earlier)
        names.add(earlier.consumer)
      }
    }
    return found
  }

  /** Processes of the same stable name, as far as they are known in that stream. */
  async #earlier({ key }: Stream, redis: RedisConnection): Promise<Predecessor[]> {
    if (this.#stableName === undefined) return []
    const consumers = listOf(await redis.command(['xinfo', 'CONSUMERS', key, this.#settings.group]))
    return consumers
      .map((consumer) => textOf(listOf(consumer)[1]))
      .filter((name) => stableNameOf(name) === this.#stableName && !this.#abandoned.has(name))
      .map((consumer) => ({ consumer, charge: 1 }))
  }
}

/** What `open` has put before the random part. It may have colons too: `worker` is not `worker:1`, which may live. */
function stableNameOf(consumer: string): string {
  return consumer.slice(0, consumer.lastIndexOf(':'))
}

/** 6.0 replies to XGROUP CREATE on another type of key with a plain ERR on some builds. */
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
  /** Given and not settled: taken by a consumer … */
  readonly unsettled: number
  /** … or given back, waiting for the next try. */
  readonly waiting: number
  /** Entries of its dead-letter stream, also those of others who share it. */
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
      unsettled: numberOf(pending) - numberOf(waiting),
      waiting: numberOf(waiting),
      dead: numberOf(dead),
      oldest: Number.isNaN(since) ? 0 : Math.max(0, numberOf(now) - since),
    })
  }
  return all
}
