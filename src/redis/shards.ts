import { describe, WaybillError } from '../core/index.ts'
import type { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import {
  isKind,
  type RedisArg,
  type RedisClient,
  type RedisCommands,
  RedisError,
  type RedisReply,
  type RedisScript,
  textOf,
} from '../drivers/redis/redis.ts'
import { slotOf } from '../drivers/redis/slot.ts'
import type { Copies } from '../drivers/redis/wait.ts'
import type { Unit } from './unit.ts'

/** What is needed of a store: its slot, and the way to its server. */
export interface ShardStore {
  readonly tag: string
  readonly client: RedisClient
  readonly connection: ReconnectingRedis
  readonly copies: Copies
}

/** Which keys a shard has beside its base name, and what they hold. */
const KEYS: Readonly<Record<string, string>> = {
  entries: 'hash',
  states: 'hash',
  heads: 'hash',
  audits: 'hash',
  'audit-counts': 'hash',
  pending: 'zset',
  leased: 'zset',
  retrying: 'zset',
  held: 'zset',
  dead: 'zset',
  sent: 'zset',
  due: 'zset',
  revoked: 'zset',
  blocked: 'set',
  sequence: 'string',
}

/** A part of the outbox that lives in one slot, with everything of the keys that fall to it. */
export class Shard {
  readonly store: ShardStore
  /** As the server has it. All keys of the shard begin with it. */
  readonly base: string
  readonly #redis: RedisCommands

  constructor(store: ShardStore, name: string, redis: RedisCommands = store.connection) {
    this.store = store
    this.base = `${store.client.keyPrefix}{${store.tag}}:${name}`
    this.#redis = redis
  }

  /** The same shard over another connection. */
  over(redis: RedisCommands): Shard {
    const name = this.base.slice(this.store.client.keyPrefix.length + this.store.tag.length + 3)
    return new Shard(this.store, name, redis)
  }

  async run(script: RedisScript, args: readonly RedisArg[], moreKeys: readonly string[] = []): Promise<RedisReply> {
    return await this.#checked(() => this.#redis.script(script, [this.base, ...moreKeys], args))
  }

  /** Runs a script that writes what must not be lost with a master: as many replicas have it as the store asks for. */
  async write(script: RedisScript, args: readonly RedisArg[], moreKeys: readonly string[] = []): Promise<RedisReply> {
    const { connection, copies } = this.store
    return await this.#checked(() => connection.copied(script, [this.base, ...moreKeys], args, copies))
  }

  async #checked(work: () => Promise<RedisReply>): Promise<RedisReply> {
    try {
      return await work()
    } catch (error) {
      // The server does not say which key.
      if (isKind(error, 'WRONGTYPE')) await this.check()
      throw error
    }
  }

  /** Throws when a key under our names holds what is not ours. */
  async check(): Promise<void> {
    const names = Object.keys(KEYS)
    const types = await this.#redis.pipeline(names.map((name) => ['type', `${this.base}:${name}`]))
    for (const [i, name] of names.entries()) {
      const found = types[i]!
      if (found instanceof RedisError) throw found
      if (textOf(found) === 'none' || textOf(found) === KEYS[name]) continue
      const key = JSON.stringify(`${this.base}:${name}`)
      const text = `the outbox needs a ${KEYS[name]} at the key ${key}, which holds a ${textOf(found)}: give the outbox another name, or remove it`
      throw new WaybillError('WRONG_KEY_TYPE', text)
    }
  }
}

/** The shards of an outbox: all events of a key are in the same one. */
export class Shards {
  readonly all: readonly Shard[]

  constructor(stores: readonly ShardStore[], name: string) {
    const twice = stores.find((store, i) => stores.findIndex(({ tag }) => tag === store.tag) !== i)
    if (twice !== undefined) {
      throw new WaybillError('INVALID_OPTION', `outbox: two stores have the tag ${describe(twice.tag)}; one of each`)
    }
    this.all = stores.map((store) => new Shard(store, name))
  }

  of(key: string): Shard {
    return this.all[hash(key) % this.all.length]!
  }

  /** Where a unit of work can write an event. In a fixed slot that is one shard, and the event's key must fall to it. */
  forUnit(unit: Unit, key: string | undefined, id: string): Shard {
    const { slot } = unit
    if (slot === undefined || this.all.length === 1) return this.of(key ?? id)
    const here = this.all.find(({ base }) => slotOf(base) === slotOf(slot))
    if (key === undefined && here !== undefined) return here
    const shard = this.of(key ?? id)
    if (shard === here) return shard
    throw new WaybillError(
      'CROSSSLOT',
      `enqueue: events of this key live under the tag ${describe(shard.store.tag)}, and this unit of work is of another; ` +
        'begin it with the store that storeOf(key) answers',
    )
  }
}

/** FNV-1a: stable for good, since events of a key must stay together. */
function hash(text: string): number {
  let value = 0x811c9dc5
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0
  return value
}
