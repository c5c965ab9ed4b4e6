import { describe, Unavailable, WaybillError } from '../core/index.ts'
import type { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import {
  isKind,
  isServerTrouble,
  type RedisArg,
  type RedisClient,
  type RedisCommands,
  RedisError,
  type RedisReply,
  type RedisScript,
  textOf,
} from '../drivers/redis/redis.ts'
import { mayBeSame } from '../drivers/redis/server.ts'
import { slotOf } from '../drivers/redis/slot.ts'
import type { ReplicaAcks } from '../drivers/redis/wait.ts'
import { ABSENT } from './scripts.ts'
import { type Unit, unitOf } from './unit.ts'

/** What is needed of a store: its slot, and the way to its server. */
export interface ShardStore {
  readonly tag: string
  readonly client: RedisClient
  readonly connection: ReconnectingRedis
  readonly replicaAcks: ReplicaAcks
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

/** What the steps of a unit of work touch of a shard. */
const STEP_KEYS = {
  enqueue: ['entries', 'states', 'heads', 'pending', 'held', 'sequence'],
  due: ['due', 'revoked'],
} as const

/** A part of the outbox that lives in one slot, with everything of the keys that fall to it. */
export class Shard {
  readonly store: ShardStore
  /** As the server has it. All keys of the shard begin with it. */
  readonly base: string
  /** What the steps of a unit of work touch of it. */
  readonly touched: Readonly<Record<keyof typeof STEP_KEYS, readonly string[]>>
  /** Tokens under which relays of this process may have claimed what they cannot settle any more, and since when. */
  readonly abandoned = new Map<string, number>()
  readonly #redis: RedisCommands
  /** All of them, and first the one that never exists: see outbox-shared.lua. */
  readonly #keys: readonly [string, ...string[]]

  constructor(store: ShardStore, name: string, redis: RedisCommands = store.connection) {
    this.store = store
    this.base = `${store.client.keyPrefix}{${store.tag}}:${name}`
    this.#redis = redis
    const named = (names: readonly string[]) => names.map((one) => `${this.base}:${one}`)
    this.touched = { enqueue: named(STEP_KEYS.enqueue), due: named(STEP_KEYS.due) }
    this.#keys = [this.base + ABSENT, ...named(Object.keys(KEYS))]
  }

  /** The same shard over another connection. */
  over(redis: RedisCommands): Shard {
    const name = this.base.slice(this.store.client.keyPrefix.length + this.store.tag.length + 3)
    return new Shard(this.store, name, redis)
  }

  async run(script: RedisScript, args: readonly RedisArg[]): Promise<RedisReply> {
    return await this.#checked(() => this.#redis.script(script, this.#keys, args))
  }

  /** Runs a script that writes what must not be lost with a master: as many replicas have it as the store asks for. */
  async write(script: RedisScript, args: readonly RedisArg[], moreKeys: readonly string[] = []): Promise<RedisReply> {
    const { connection, replicaAcks } = this.store
    const [absent, ...keys] = this.#keys
    return await this.#checked(() => connection.replicated(script, [absent, ...moreKeys, ...keys], args, replicaAcks))
  }

  async #checked(work: () => Promise<RedisReply>): Promise<RedisReply> {
    try {
      return await work()
    } catch (error) {
      // The server does not say which key.
      if (isKind(error, 'WRONGTYPE')) await this.check()
      throw unlessInTrouble(error)
    }
  }

  /** Throws when a key under our names holds what is not ours. */
  async check(): Promise<void> {
    const names = Object.keys(KEYS)
    const types = await this.#redis.pipeline(names.map((name) => ['type', `${this.base}:${name}`]))
    for (const [i, name] of names.entries()) {
      const found = types[i]!
      if (found instanceof RedisError) throw unlessInTrouble(found)
      if (textOf(found) === 'none' || textOf(found) === KEYS[name]) continue
      const key = JSON.stringify(`${this.base}:${name}`)
      const text = `the outbox needs a ${KEYS[name]} at the key ${key}, which holds a ${textOf(found)}: give the outbox another name, or remove it`
      throw new WaybillError('WRONG_KEY_TYPE', text)
    }
  }
}

/** A server that takes no writes, or a slot that is on its way to another node, is nobody's fault: it is waited for. */
function unlessInTrouble(error: unknown): unknown {
  if (!isServerTrouble(error)) return error
  return new Unavailable(`Redis refused: ${(error as RedisError).message}`, { cause: error })
}

/** A shard that could not be asked, and why. */
export interface MissingShard {
  readonly shard: Shard
  readonly error: unknown
}

/** The shards of an outbox: all events of a key are in the same one. */
export class Shards {
  readonly all: readonly Shard[]

  constructor(stores: readonly ShardStore[], name: string) {
    const twice = stores.find((store, i) => stores.findIndex(({ tag }) => tag === store.tag) !== i)
    if (twice !== undefined) {
      throw new WaybillError(
        'INVALID_OPTION',
        `outbox: two stores have the tag ${describe(twice.tag)}; give each store its own`,
      )
    }
    this.all = stores.map((store) => new Shard(store, name))
  }

  /**
   * Does something with each of them, one after the other. One that fails keeps no other from its turn; its error is thrown
   * at the end, rather one that nobody can wait out than that a server is away.
   */
  async each(work: (shard: Shard) => Promise<void>): Promise<void> {
    const errors: unknown[] = []
    for (const shard of this.all) await work(shard).catch((error: unknown) => errors.push(error))
    if (errors.length > 0) throw errors.find((error) => !(error instanceof Unavailable)) ?? errors[0]
  }

  /**
   * Asks all of them at once. One that cannot answer costs only itself: it is named among `missing`. Throws when none can.
   */
  async ask<T>(
    work: (shard: Shard) => Promise<T>,
  ): Promise<{ answers: readonly T[]; missing: readonly MissingShard[] }> {
    const answers: T[] = []
    const missing: MissingShard[] = []
    const results = await Promise.allSettled(this.all.map((shard) => work(shard)))
    for (const [i, result] of results.entries()) {
      if (result.status === 'fulfilled') answers.push(result.value)
      else missing.push({ shard: this.all[i]!, error: result.reason })
    }
    if (answers.length === 0) throw missing[0]!.error
    return { answers, missing }
  }

  of(key: string): Shard {
    return this.all[hash(key) % this.all.length]!
  }

  /** Where a unit of work can write an event. In a fixed slot that is one shard, and the event's key must fall to it. */
  forUnit(unit: Unit, key: string | undefined, id: string): Shard {
    const { slot, server } = unit
    if (slot === undefined || this.all.length === 1) return onServerOf(unit, this.of(key ?? id))
    const here = this.all.find(
      ({ base, store }) => slotOf(base) === slotOf(slot) && mayBeSame(store.client.server, server),
    )
    if (key === undefined && here !== undefined) return here
    const shard = this.of(key ?? id)
    if (shard === here) return onServerOf(unit, shard)
    throw new WaybillError(
      'CROSSSLOT',
      `enqueue: events of this key live under the tag ${describe(shard.store.tag)}, and this unit of work is of another; ` +
        'begin it with the store that storeOf(key) returns',
    )
  }
}

/** Throws when the unit would take it to another server, where no relay reads it. */
function onServerOf(unit: Unit, shard: Shard): Shard {
  unitOf(unit, shard.store.client.server)
  return shard
}

/** FNV-1a: stable for good, since events of a key must stay together. */
function hash(text: string): number {
  let value = 0x811c9dc5
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0
  return value
}
