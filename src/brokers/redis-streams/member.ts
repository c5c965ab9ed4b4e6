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
export interface ClaimedEntry {
  readonly stream: Stream
  readonly id: string
  readonly fields: RedisReply
  /** The number of this delivery: attempts spent, and one. */
  readonly count: number
  /** Its consumer is gone, and had not settled it. */
  readonly abandoned: boolean
}

export interface ClaimOptions {
  /** Whose; '' for everybody's. */
  readonly owner: string
  readonly idle: number
  readonly charge: 0 | 1
  readonly limit: number
  /** Of all of them, but at least one is given. */
  readonly bytes: number
  readonly start?: string
  /** Only these, which this session gave back with that count, and which are due by its own clock. */
  readonly ids?: readonly { readonly id: string; readonly count: number }[]
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

/** How far a group is in a stream. */
export interface GroupPosition {
  /** The last id of the stream; undefined when there is no stream. */
  readonly last: string | undefined
  /** Everything up to here is settled; undefined when there is no group. */
  readonly settled: string | undefined
  /** Milliseconds of the server's clock. */
  readonly now: number
}

export function positionOf(reply: RedisReply): GroupPosition {
  const [last, at, pending, now] = listOf(reply).map(textOf) as [string, string, string, string]
  const settled = pending === '1' ? idBefore(at) : at
  return { last: last || undefined, settled: settled || undefined, now: Number(now) }
}

function idBefore(id: string): string {
  const [ms, sequence] = id.split('-').map(BigInt) as [bigint, bigint]
  return sequence > 0n ? `${ms}-${sequence - 1n}` : `${ms - 1n}-${2n ** 64n - 1n}`
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
  ): Promise<{ following: string; claimed: ClaimedEntry[]; lost: string[] }> {
    const { owner, idle, charge, limit, bytes, start = '-', ids = [] } = options
    const numbers = [DUE, idle, charge, limit].map(String)
    const args = [this.#settings.group, this.consumer, RETURNED, ...numbers, owner, start, String(PAGE), String(bytes)]
    for (const { id, count } of ids) args.push(id, String(count))
    const [following, entries, lost] = listOf(await this.#redis.script(scripts.claim, [stream.key, stream.taken], args))
    const list = listOf(entries)
    const claimed: ClaimedEntry[] = []
    for (let i = 0; i < list.length; i += 4) {
      const [id, fields, count, abandoned] = list.slice(i, i + 4)
      claimed.push({ stream, id: textOf(id), fields: fields!, count: numberOf(count), abandoned: abandoned === 1 })
    }
    return { following: textOf(following), claimed, lost: listOf(lost).map(textOf) }
  }

  /** Returns how many were not ours any more. `asks`: it may be another stream by now, with entries of the same ids. */
  async settle(
    stream: Stream,
    done: readonly string[],
    back: readonly GivenBack[] = [],
    dead: readonly DeadEntry[] = [],
    asks = false,
  ): Promise<number> {
    const { group, removes } = this.#settings
    const args: RedisArg[] = [group, this.consumer, RETURNED, removes ? '1' : '0', asks ? '1' : '0']
    args.push(String(done.length), String(back.length), ...done)
    for (const { id, after, count } of back) {
      args.push(id, String(Math.max(0, DUE - Math.ceil(after))), String(count))
    }
    for (const { id, reason, attempts } of dead) args.push(id, reason, String(attempts))
    return numberOf(await this.#redis.script(scripts.settle, [stream.key, stream.letters, stream.taken], args))
  }

  /** Keeps entries alive that are still ours; returns how many others have by now. */
  async extend(stream: Stream, entries: readonly { entry: string; attempts: number }[]): Promise<number> {
    const words = entries.flatMap(({ entry, attempts }) => [entry, String(attempts + 1)])
    const args = [this.#settings.group, this.consumer, RETURNED, ...words]
    return numberOf(await this.#redis.script(scripts.extend, [stream.key], args))
  }

  /** Gives back all it owns, and ends the membership. */
  async leave(stream: Stream): Promise<void> {
    const args = [this.#settings.group, this.consumer, RETURNED, String(DUE), String(PAGE)]
    while (numberOf(await this.#redis.script(scripts.leave, [stream.key], args)) === PAGE);
  }

  /** From where the group would have to read so that nothing is missed, and the server's clock. */
  async position(stream: Stream): Promise<GroupPosition> {
    return positionOf(await this.#redis.script(scripts.position, [stream.key], [this.#settings.group]))
  }

  /** Removes members that own nothing: one of that name, or all that were not heard of for `idle`. */
  async retire(stream: Stream, idle: number, only = ''): Promise<void> {
    await this.#redis.script(scripts.retire, [stream.key], [this.#settings.group, this.consumer, String(idle), only])
  }
}
