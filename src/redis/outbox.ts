import {
  checkOptions,
  type Duration,
  type Message,
  milliseconds,
  type OptionNames,
  startError,
  WaybillError,
} from '../core/index.ts'
import { REFUSED_LOGIN } from '../drivers/redis/checks.ts'
import { listOf, numberOf, type RedisReply } from '../drivers/redis/redis.ts'
import type { OutboxReader, Reader, ReaderOptions } from '../outbox/reader.ts'
import {
  checkEnqueueOptions,
  type Enqueued,
  enqueueArguments,
  publishEnqueued,
  type Receipts,
  topicFunction,
} from '../store/enqueue.ts'
import type { EnqueueOptions, Outbox, Store } from '../store/store.ts'
import { RedisOutboxAdmin } from './admin.ts'
import { CallBatcher } from './call-batcher.ts'
import type { RedisInbox } from './inbox.ts'
import { RedisReader } from './reader.ts'
import { OutboxRepair, type RepairOptions } from './repair.ts'
import { enqueueArgs, entryOf, type NewEntry } from './row.ts'
import { outboxScripts } from './scripts.ts'
import { type Shard, Shards } from './shards.ts'
import type { RedisStore } from './store.ts'
import type { RedisStreamOutbox } from './stream-outbox.ts'
import { type RedisTx, type Unit, unitOf } from './unit.ts'

/** `redis({ …, outbox: { kind: 'stored' } })`: an outbox that keeps states, attempts and order. */
export interface StoredOutboxOptions {
  kind: 'stored'
  /** Default `outbox`: its keys are `{tag}:outbox:…`. */
  name?: string
  /** The topic of events for which none is given. Default: the event's type. */
  topic?: string | ((message: Message) => string)
  /** How long published events are kept by the cleaner. Default 7 days. It is memory: choose less where events are many. */
  retention?: Duration
}

/** A store on Redis, whatever its own outbox is. */
export type AnyRedisStore = RedisStore<RedisStreamOutbox | RedisOutbox>

/** One outbox over several stores. */
export interface RedisOutboxOptions extends Omit<StoredOutboxOptions, 'kind'> {
  /**
   * The stores, each with a tag of its own. They are as many shards, and events are spread over them by key. Their number
   * and order must stay as they are while events are pending.
   */
  on: readonly AnyRedisStore[]
}

/** One tag of an outbox over several: its units of work and its inbox, with the outbox that spans all of them. */
export interface RedisTagStore extends Store<RedisTx> {
  readonly tag: string
  readonly inbox: RedisInbox
  readonly outbox: RedisOutbox
  /** A name in its slot: `key('order:1')` is `{shop-2}:order:1`. */
  key(name: string): string
}

const ENQUEUE_OPTIONS: OptionNames<EnqueueOptions> = {
  key: true,
  topic: true,
  tenant: true,
  availableAt: true,
  aggregate: true,
}

/** One script writes at most so many: Redis does nothing else meanwhile, and before 7.0 takes 1,048,576 words at most. */
const AT_ONCE = 10_000

/**
 * An outbox on Redis that keeps its entries until they are published, and longer: claims, retries, parked events,
 * order per key, people's actions. Every change is one script. The receipt of an event is its id.
 */
export class RedisOutbox implements Outbox<RedisTx>, OutboxReader {
  readonly name: string
  readonly admin: RedisOutboxAdmin
  /** Nothing here is a transaction of a database: what must be atomic is one script. */
  readonly requiresTransaction = false
  readonly shards: Shards
  readonly #stores: readonly AnyRedisStore[]
  /** The same, each with this outbox, in the order of the shards. */
  readonly #tagStores: readonly RedisTagStore[]
  readonly #hints = new Hints()
  readonly #topicOf: (message: Message) => string
  /** What is enqueued on its own in one turn shares a script. */
  readonly #alone: ReadonlyMap<Shard, CallBatcher<readonly NewEntry[], void>>

  constructor(stores: readonly AnyRedisStore[], options: Omit<StoredOutboxOptions, 'kind'>, where: string) {
    const { name = 'outbox', topic } = options
    if (typeof name !== 'string' || name === '' || /[{}]/.test(name)) {
      throw new WaybillError('INVALID_OPTION', `${where}: name: give text without braces, such as outbox`)
    }
    this.#stores = stores
    this.#tagStores = stores.map((store) => tagStore(store, this))
    this.#topicOf = topicFunction(topic)
    this.shards = new Shards(stores, name)
    this.#alone = new Map(
      this.shards.all.map((shard) => [shard, new CallBatcher((parts) => this.#write(shard, parts.flat()))]),
    )
    this.name = stores.length === 1 ? `{${stores[0]!.tag}}:${name}` : name
    const retention = milliseconds(options.retention ?? '7d', `${where}: retention`)
    this.admin = new RedisOutboxAdmin(this.name, this.shards, retention)
  }

  /**
   * Queues events in a unit of work: `enqueue(tx, event, options)`, or `enqueue(event, options)` in the one that
   * `withTransaction` has begun. They are written in the same script as its commands. Returns their ids.
   */
  enqueue<Given extends Enqueued>(events: Given, options?: EnqueueOptions): Promise<Receipts<Given, string>>
  // Last, so that `outbox(…)` of the middleware infers what a transaction is.
  enqueue<Given extends Enqueued>(
    tx: RedisTx,
    events: Given,
    options?: EnqueueOptions,
  ): Promise<Receipts<Given, string>>
  async enqueue(...given: unknown[]): Promise<string | string[]> {
    const current = () => this.#current()
    const { tx, events, single, options } = enqueueArguments<RedisTx, EnqueueOptions>(
      given,
      current,
      ENQUEUE_OPTIONS,
      ', or say enqueueAlone(event)',
    )
    const unit = unitOf(tx)
    const entries = events.map((event) => this.entryOf(event, options))
    for (const [shard, part] of grouped(entries, ({ key, id }) => this.shards.forUnit(unit, key, id))) {
      this.#queue(unit, shard, part)
    }
    return receipts(entries, single)
  }

  /**
   * Writes events on their own, for when there is nothing they must be atomic with. One script for each shard, and for each
   * 10,000 events: what fails between two of them is healed by calling again, since an event that is there already changes
   * nothing.
   */
  async enqueueAlone<Given extends Enqueued>(
    events: Given,
    options: EnqueueOptions = {},
  ): Promise<Receipts<Given, string>> {
    checkEnqueueOptions(options, ENQUEUE_OPTIONS)
    const entries = [events].flat().map((event) => this.entryOf(event, options))
    for (const [shard, part] of grouped(entries, ({ key, id }) => this.shards.of(key ?? id))) {
      await this.#alone.get(shard)!.ask(part, bytesOf(part), () => {})
    }
    return receipts(entries, !Array.isArray(events)) as Receipts<Given, string>
  }

  /**
   * The store whose units of work can write what has this key, with this outbox in it. In a router:
   * `transactional((message) => outbox.storeOf(message.key ?? message.id))`.
   */
  storeOf(key: string): RedisTagStore {
    return this.#tagStores[this.shards.all.indexOf(this.shards.of(key))]!
  }

  reader(options: ReaderOptions): Reader {
    return new RedisReader({ name: this.name, shards: this.shards, hints: this.#hints }, options)
  }

  /** A worker that finds what does not belong together, and puts it right. */
  repair(options?: RepairOptions): OutboxRepair {
    return new OutboxRepair(this.name, this.shards, options)
  }

  /** Throws when a key under its names holds something else, or the server refuses the user: no waiting mends that. */
  async check(): Promise<void> {
    await this.shards.each(async (shard) => {
      await shard.check().catch((error: unknown) => {
        throw startError(error, REFUSED_LOGIN)
      })
    })
  }

  /** For those who enqueue by other scripts: notifies relays here and telemetry. `known`: the places of duplicates. */
  committed(shard: Shard, entries: readonly NewEntry[], known: RedisReply = []): void {
    const places = new Set(listOf(known).map(numberOf))
    publishEnqueued(
      this.name,
      entries.map(({ topic }, place) => ({ topic, isNew: !places.has(place) })),
    )
    if (places.size < entries.length) this.#hints.notify(shard)
  }

  /** An event as it is written, but for its shard. */
  entryOf(event: Message, options: EnqueueOptions): NewEntry {
    return entryOf(event, options, this.#topicOf)
  }

  async #write(shard: Shard, entries: readonly NewEntry[]): Promise<readonly void[]> {
    for (let from = 0; from < entries.length; from += AT_ONCE) {
      const page = entries.slice(from, from + AT_ONCE)
      this.committed(shard, page, await shard.write(outboxScripts.enqueue, enqueueArgs(page)))
    }
    return []
  }

  #queue(unit: Unit, shard: Shard, entries: readonly NewEntry[]): void {
    unit.add({
      step: 'outbox-enqueue',
      base: shard.base,
      keys: shard.touched.enqueue,
      args: enqueueArgs(entries),
      onCommit: (known) => this.committed(shard, entries, known),
    })
  }

  #current(): RedisTx | undefined {
    for (const store of this.#stores) {
      const tx = store.current()
      if (tx !== undefined) return tx
    }
    return undefined
  }
}

/**
 * One outbox over several tags: `redisOutbox({ on: tags.map((tag) => redis({ client, tag })) })`. For one tag it is
 * `redis({ client, tag, outbox: { kind: 'stored' } })`.
 */
export function redisOutbox(options: RedisOutboxOptions): RedisOutbox {
  checkOptions('redisOutbox', options, { on: true, name: true, topic: true, retention: true })
  const { on, ...rest } = options
  if (Array.isArray(on) && on.length > 0 && on.every((store) => typeof store?.withTransaction === 'function')) {
    return new RedisOutbox(on, rest, 'redisOutbox')
  }
  throw new WaybillError(
    'INVALID_OPTION',
    "redisOutbox: on: give a list of stores, each of redis({ client, tag }); for one tag it is redis({ …, outbox: { kind: 'stored' } })",
  )
}

function tagStore(store: AnyRedisStore, outbox: RedisOutbox): RedisTagStore {
  return {
    name: store.name,
    tag: store.tag,
    inbox: store.inbox,
    outbox,
    key: (name) => store.key(name),
    withTransaction: (fn, options) => store.withTransaction(fn, options),
    current: () => store.current(),
    afterCommit: (fn) => store.afterCommit(fn),
  }
}

function grouped(entries: readonly NewEntry[], shardOf: (entry: NewEntry) => Shard): Map<Shard, NewEntry[]> {
  const groups = new Map<Shard, NewEntry[]>()
  for (const entry of entries) {
    const shard = shardOf(entry)
    const group = groups.get(shard) ?? []
    groups.set(shard, group)
    group.push(entry)
  }
  return groups
}

function bytesOf(entries: readonly NewEntry[]): number {
  return entries.reduce((sum, { body }) => sum + body.length, 0)
}

function receipts(entries: readonly NewEntry[], single: boolean): string | string[] {
  return single ? entries[0]!.id : entries.map(({ id }) => id)
}

/** Notifies relays of this process that something was committed, so that they need not wait for their next poll. */
export class Hints {
  readonly #listeners = new Map<Shard, Set<() => void>>()

  listen(shard: Shard, listener: () => void): () => void {
    const listeners = this.#listeners.get(shard) ?? new Set()
    this.#listeners.set(shard, listeners.add(listener))
    return () => listeners.delete(listener)
  }

  notify(shard: Shard): void {
    for (const listener of this.#listeners.get(shard) ?? []) listener()
  }
}
