import type { Clock } from '../../core/index.ts'
import {
  listOf,
  numberOf,
  type RedisArg,
  type RedisCommands,
  type RedisReply,
  textOf,
} from '../../drivers/redis/redis.ts'
import type { Decoder } from './encoding.ts'
import { DUE, RETURNED, scripts } from './scripts.ts'

/** A stream that a group reads, where its dead letters go, and who lost entries to others. Keys as the server has them. */
export interface Stream {
  readonly key: string
  readonly letters: string
  readonly taken: string
}

/** A source's options, checked, with their defaults. Times are milliseconds. */
export interface GroupSettings {
  readonly where: string
  readonly streams: readonly Stream[]
  readonly group: string
  /** From where a group that is made now reads. */
  readonly start: string
  readonly batch: number
  readonly block: number
  /** How often to look for entries whose owner is gone, and how long it must have let them lie. */
  readonly every: number
  readonly idle: number
  /** How many deliveries an entry survives whose consumers die with it. */
  readonly maxCrashes: number
  readonly removes: boolean
  readonly timeout: number
  readonly decode: Decoder
  readonly clock: Clock
}

/** A pending entry that is ours now. */
export interface Claimed {
  readonly stream: Stream
  readonly id: string
  readonly fields: RedisReply
  /** The number of this delivery: attempts spent, and one. */
  readonly count: number
  /** It was in hand of somebody who is gone. */
  readonly abandoned: boolean
}

export interface ClaimOptions {
  /** Whose; '' for everybody's. */
  readonly owner: string
  readonly idle: number
  readonly charge: 0 | 1
  readonly limit: number
  readonly start?: string
  /** Only these. */
  readonly ids?: readonly string[]
}

/** An entry that is given back, and how long until it is due. */
export interface GivenBack {
  readonly id: string
  readonly after: number
  readonly count: number
}

export interface DeadEntry {
  readonly id: string
  readonly reason: string
  readonly attempts: number
}

/** How many pending entries one script looks at: it must not hold up others for long. */
export const PAGE = 200

/** What one consumer says to its group. */
export class GroupMember {
  readonly consumer: string
  readonly #settings: GroupSettings
  readonly #redis: RedisCommands

  constructor(settings: GroupSettings, redis: RedisCommands, consumer: string) {
    this.#settings = settings
    this.#redis = redis
    this.consumer = consumer
  }

  async claim(
    stream: Stream,
    options: ClaimOptions,
  ): Promise<{ following: string; claimed: Claimed[]; lost: string[] }> {
    const { owner, idle, charge, limit, start = '-', ids = [] } = options
    const numbers = [DUE, idle, charge, limit].map(String)
    const args = [this.#settings.group, this.consumer, RETURNED, ...numbers, owner, start, String(PAGE), ...ids]
    const [following, entries, lost] = listOf(await this.#redis.script(scripts.claim, [stream.key, stream.taken], args))
    const list = listOf(entries)
    const claimed: Claimed[] = []
    for (let i = 0; i < list.length; i += 4) {
      const [id, fields, count, abandoned] = list.slice(i, i + 4)
      claimed.push({ stream, id: textOf(id), fields: fields!, count: numberOf(count), abandoned: abandoned === 1 })
    }
    return { following: textOf(following), claimed, lost: listOf(lost).map(textOf) }
  }

  /** Answers how many were not ours any more. */
  async settle(
    stream: Stream,
    done: readonly string[],
    back: readonly GivenBack[] = [],
    dead: readonly DeadEntry[] = [],
  ): Promise<number> {
    const { group, removes } = this.#settings
    const args: RedisArg[] = [group, this.consumer, RETURNED, removes ? '1' : '0']
    args.push(String(done.length), String(back.length), ...done)
    for (const { id, after, count } of back) {
      args.push(id, String(Math.max(0, DUE - Math.ceil(after))), String(count))
    }
    for (const { id, reason, attempts } of dead) args.push(id, reason, String(attempts))
    return numberOf(await this.#redis.script(scripts.settle, [stream.key, stream.letters, stream.taken], args))
  }

  /** Keeps entries alive that are still ours; answers how many are. */
  async extend(stream: Stream, entries: readonly { entry: string; attempts: number }[]): Promise<number> {
    const words = entries.flatMap(({ entry, attempts }) => [entry, String(attempts + 1)])
    const args = [this.#settings.group, this.consumer, ...words]
    return numberOf(await this.#redis.script(scripts.extend, [stream.key], args))
  }

  /** Gives back all it owns, and ends the membership. */
  async leave(stream: Stream): Promise<void> {
    const args = [this.#settings.group, this.consumer, RETURNED, String(DUE), String(PAGE)]
    while (numberOf(await this.#redis.script(scripts.leave, [stream.key], args)) === PAGE);
  }

  /** Removes members that own nothing: one of that name, or all that were not heard of for `idle`. */
  async retire(stream: Stream, idle: number, only = ''): Promise<void> {
    await this.#redis.script(scripts.retire, [stream.key], [this.#settings.group, this.consumer, String(idle), only])
  }
}
