import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  type RawMessage,
  reportOnStderr,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import { type Durability, type DurabilityOptions, durabilityOf } from '../../drivers/redis/checks.ts'
import { type RedisLike, redisOf } from '../../drivers/redis/recognise.ts'
import { ReconnectingRedis } from '../../drivers/redis/reconnecting.ts'
import { numberOf, type RedisClient } from '../../drivers/redis/redis.ts'
import { besides, checkSameSlot } from '../../drivers/redis/slot.ts'
import { type Phase, type Publisher, RETRY_DEFAULTS, type Stoppable, Task, topicOf } from '../../flow/index.ts'
import { decoderOf, encoderOf, type StreamDecode, type StreamEncode } from './encoding.ts'
import type { GroupSettings, Stream } from './member.ts'
import { StreamsPublisher } from './publisher.ts'
import { scripts } from './scripts.ts'
import { StreamsSource } from './source.ts'

/** Redis Streams as a broker. */
export interface RedisStreamsOptions {
  /** A client of ioredis or node-redis. Its settings are used; connections are opened anew, and closed by us. */
  client: RedisLike
  name?: string
  /** How long a command may take before its connection counts as lost. Default 10 s. */
  timeout?: Duration
  /** Default: one field `event` with the message as CloudEvents JSON. */
  encode?: StreamEncode
  decode?: StreamDecode
  /**
   * `required`: refuse to start where settings can lose acknowledged messages (default: a warning). `replicas`: so many
   * must have a message within `within` (1 s) before it counts as published. That narrows what a failover can lose and
   * never rules it out: the promise is for failovers that keep acknowledged writes.
   */
  durability?: DurabilityOptions
  clock?: Clock
}

/** To which stream messages go, and how long it may get. */
export interface StreamsPublisherOptions {
  /** Where messages go: one stream for all, or by message. Default: what an outbox said, or else the message's type. */
  stream?: string | ((message: RawMessage) => string)
  /**
   * Trims the stream to about so many entries with every message, handled or not: what a slow group has not read is
   * lost. Default: no limit. Prefer `trimmer`.
   */
  maxLen?: number
  /** Trims to exactly `maxLen` entries, which costs more than about so many. Default false. */
  exact?: boolean
  /** Yes, `maxLen` may lose messages, and no warning is needed. */
  acceptLoss?: boolean
}

/** Which streams a consumer group reads, and how. */
export interface StreamsSourceOptions {
  stream: string | readonly string[]
  /** The consumer group. It is made when there is none. */
  group: string
  /** Where a group that is made now begins: with all there is (`0`, default), with what comes (`$`), or behind an id. */
  start?: string
  /**
   * A name that stays the same when this process is started again, and that no other process has: what the process left
   * when it died is taken over at once, not after `reclaim.idle`. Default: host, process and a random part.
   */
  consumer?: string
  /** How many entries a read asks for at most. Default 10; more is faster. */
  batch?: number
  /** How long a read waits for entries. Default 1 s. */
  block?: Duration
  /** How often to look for entries somebody let lie (30 s), and how long he must have (60 s). Work renews it. */
  reclaim?: { every?: Duration; idle?: Duration }
  /** How many crashes of its consumers a message survives. Default 25. */
  maxCrashes?: number
  /** The stream for what was given up. Default: `{stream}:dead:group`. */
  deadLetter?: string
  /** Delete an entry once it is handled, where no other group reads the stream: for outbox streams. */
  remove?: boolean
}

/** How often, and of which streams, entries are removed that every group has handled. */
export interface TrimmerOptions {
  stream: string | readonly string[]
  /** How often. Default 1 min. */
  every?: Duration
  /** How long an entry is kept although every group has handled it. Default 0. */
  keep?: Duration
}

const TRIM_AT_ONCE = 1000

/** Redis Streams as a broker: publishers, sources, and a trimmer that loses nothing. */
export class RedisStreamsBroker implements Stoppable {
  readonly name: string
  /** As a member of `run`: after consumers and relays. */
  readonly phase: Phase = 'connections'
  readonly #client: RedisClient
  readonly #timeout: number
  readonly #clock: Clock
  readonly #durability: Durability
  readonly #options: RedisStreamsOptions
  readonly #redis: ReconnectingRedis
  readonly #publishers: StreamsPublisher[] = []

  constructor(options: RedisStreamsOptions) {
    const where = 'redis streams'
    checkOptions(where, options, {
      client: true,
      name: true,
      timeout: true,
      encode: true,
      decode: true,
      durability: true,
      clock: true,
    })
    this.#options = options
    this.name = options.name ?? 'redis-streams'
    this.#client = redisOf(options.client)
    this.#timeout = milliseconds(options.timeout ?? '10s', `${where}: timeout`)
    this.#clock = options.clock ?? systemClock
    this.#durability = durabilityOf(where, options.durability)
    this.#redis = this.#connection()
    reportOnStderr()
  }

  publisher(options: StreamsPublisherOptions = {}): Publisher {
    const where = `publisher ${this.name}`
    checkOptions(where, options, { stream: true, maxLen: true, exact: true, acceptLoss: true })
    const { stream = topicOf, maxLen, exact = false, acceptLoss = false } = options
    if (exact && maxLen === undefined) {
      throw new WaybillError('INVALID_OPTION', `${where}: exact has no effect without maxLen; give maxLen too`)
    }
    const nameOf = typeof stream === 'function' ? stream : () => checkedName(where, stream)
    if (typeof stream !== 'function') checkedName(where, stream)
    const publisher = new StreamsPublisher({
      name: this.name,
      redis: this.#connection(),
      keyOf: (message) => this.#key(checkedName(where, nameOf(message))),
      oneForAll: typeof stream !== 'function',
      anyKey: this.#key(typeof stream === 'string' ? stream : 'waybill'),
      encode: encoderOf(this.#options.encode),
      maxLen: maxLen === undefined ? undefined : wholeNumber(`${where}: maxLen`, maxLen),
      exact,
      acceptLoss,
      durability: this.#durability,
    })
    this.#publishers.push(publisher)
    return publisher
  }

  source(options: StreamsSourceOptions): StreamsSource {
    const names: OptionNames<StreamsSourceOptions> = {
      stream: true,
      group: true,
      start: true,
      consumer: true,
      batch: true,
      block: true,
      reclaim: true,
      maxCrashes: true,
      deadLetter: true,
      remove: true,
    }
    checkOptions('redis streams source', options, names)
    const group = checkedName('redis streams source: group', options.group)
    const where = `source ${[options.stream].flat().join(', ')} of group ${group}`
    checkOptions(`${where}: reclaim`, options.reclaim, { every: true, idle: true })
    const streams = this.#streams(where, options.stream, group, options.deadLetter)
    const settings: GroupSettings = {
      where,
      streams,
      group,
      start: checkedStart(where, options.start ?? '0'),
      batch: wholeNumber(`${where}: batch`, options.batch ?? 10),
      // To Redis 0 says: for ever.
      block: Math.max(1, Math.round(milliseconds(options.block ?? '1s', `${where}: block`))),
      every: milliseconds(options.reclaim?.every ?? '30s', `${where}: reclaim.every`),
      idle: Math.max(1, milliseconds(options.reclaim?.idle ?? '60s', `${where}: reclaim.idle`)),
      maxCrashes: wholeNumber(`${where}: maxCrashes`, options.maxCrashes ?? RETRY_DEFAULTS.maxCrashes),
      removes: options.remove ?? false,
      timeout: this.#timeout,
      decode: decoderOf(this.#options.decode),
      clock: this.#clock,
    }
    const consumer = options.consumer === undefined ? undefined : checkedName(`${where}: consumer`, options.consumer)
    return new StreamsSource(`${this.name}:${group}`, settings, this.#client, this.#redis, this.#durability, consumer)
  }

  /**
   * A worker that deletes what every group of a stream has handled, oldest first, and nothing else. A group that is
   * behind, or that nobody reads any more, keeps everything from its place on. Returns how many it deleted.
   */
  trimmer(options: TrimmerOptions): Task<number> {
    checkOptions('redis streams trimmer', options, { stream: true, every: true, keep: true })
    const keys = this.#names('trimmer', options.stream).map((name) => this.#key(name))
    const keep = milliseconds(options.keep ?? 0, 'trimmer: keep')
    return new Task<number>({
      name: `trimmer ${keys.join(', ')}`,
      every: options.every ?? '1m',
      clock: this.#clock,
      run: async (signal) => {
        let deleted = 0
        const errors: unknown[] = []
        const trim = async (key: string) => {
          for (let page = TRIM_AT_ONCE; page === TRIM_AT_ONCE && !signal.aborted; deleted += page) {
            page = numberOf(await this.#redis.script(scripts.trim, [key], [String(TRIM_AT_ONCE), String(keep)]))
          }
        }
        // One that cannot be trimmed, or whose node is away, must not let the others grow.
        for (const key of keys) await trim(key).catch((error: unknown) => errors.push(error))
        if (errors.length > 0) throw errors[0]
        return deleted
      },
    })
  }

  /**
   * Ends its publishers, and the connection that `stats`, dead letters and trimmers share. Stop consumers and relays
   * first.
   */
  async close(): Promise<void> {
    await Promise.all([...this.#publishers, this.#redis].map((one) => one.close()))
  }

  /** For `run`. */
  async stop(): Promise<void> {
    await this.close()
  }

  #connection(): ReconnectingRedis {
    return new ReconnectingRedis(this.#client, { timeout: this.#timeout, name: `waybill-${this.name}` })
  }

  #streams(where: string, given: string | readonly string[], group: string, deadLetter: string | undefined): Stream[] {
    const streams = this.#names(where, given).map((name) => {
      const key = this.#key(name)
      const letters = deadLetter === undefined ? besides(key, `:dead:${group}`) : this.#key(deadLetter)
      return { key, letters, taken: besides(key, `:taken:${group}`) }
    })
    if (streams.some((stream) => streams.some(({ letters }) => letters === stream.key))) {
      throw new WaybillError('INVALID_OPTION', `${where}: deadLetter must not be a stream that is read`)
    }
    if (this.#client.cluster) {
      checkSameSlot(
        where,
        streams.flatMap(({ key, letters }) => [key, letters]),
      )
    }
    return streams
  }

  #names(where: string, given: string | readonly string[]): string[] {
    const names = [given].flat()
    if (names.length === 0) throw new WaybillError('INVALID_OPTION', `${where}: stream: name at least one`)
    return [...new Set(names.map((name) => checkedName(`${where}: stream`, name)))]
  }

  #key(name: string): string {
    return this.#client.keyPrefix + name
  }
}

/** Redis Streams as a broker, over a client of ioredis or node-redis. */
export function redisStreams(options: RedisStreamsOptions): RedisStreamsBroker {
  return new RedisStreamsBroker(options)
}

function checkedStart(where: string, start: unknown): string {
  if (start === '$' || start === '0') return start
  if (typeof start === 'string' && /^\d{1,20}(-\d{1,20})?$/.test(start))
    return start.includes('-') ? start : `${start}-0`
  const allowed = '0 for all there is, $ for what comes, or the id of an entry, such as 1700000000000-0'
  throw new WaybillError('INVALID_OPTION', `${where}: start: ${describe(start)} is not allowed; give ${allowed}`)
}

function checkedName(where: string, name: unknown): string {
  if (typeof name === 'string' && name !== '') return name
  throw new WaybillError('INVALID_OPTION', `${where}: ${describe(name)} is not a name; give text that is not empty`)
}
