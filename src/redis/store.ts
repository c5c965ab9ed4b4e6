import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  oneOf,
  systemClock,
  WaybillError,
} from '../core/index.ts'
import { type DurabilityOptions, durabilityOf } from '../drivers/redis/checks.ts'
import { type RedisLike, redisOf } from '../drivers/redis/recognise.ts'
import { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import type { RedisClient } from '../drivers/redis/redis.ts'
import type { ReplicaAcks } from '../drivers/redis/wait.ts'
import type { Phase, Stoppable } from '../flow/index.ts'
import type { Store } from '../store/store.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
import { checkedClient } from './checks.ts'
import { type CommitSettings, UnitCommits } from './commit.ts'
import { RedisInbox, type RedisInboxOptions } from './inbox.ts'
import { RedisOutbox, type StoredOutboxOptions } from './outbox.ts'
import { RedisStreamOutbox, type StreamOutboxOptions } from './stream-outbox.ts'
import { type RedisTx, transactionOf, Unit, type UnitEnd, type UnitSettings } from './unit.ts'

export interface UnitOfWorkSettings extends CommitSettings {
  readonly unit: UnitSettings
}

/**
 * Units of work on Redis. Commands are queued, and run in one step when the function returns; when it throws they are
 * dropped. Nothing is sent before, and nothing is locked: what is read by other means may have changed by then.
 */
export class RedisUnitOfWork extends AmbientUnitOfWork<RedisTx> {
  constructor(settings: UnitOfWorkSettings) {
    const commits = new UnitCommits(settings)
    super((fn) => {
      const unit = new Unit(settings.unit)
      const failed = (error: unknown, ending: UnitEnd) =>
        ended(unit, ending, () => {
          throw error
        })
      return (async () => fn(transactionOf(unit)))().then(
        (value) => {
          unit.close()
          const committed = () => ended(unit, 'committed', () => value)
          const committing = commits.commit(unit)
          return committing === undefined
            ? committed()
            : committing.then(committed, (error) => failed(error, 'unknown'))
        },
        (error: unknown) => {
          unit.close()
          return failed(error, 'discarded')
        },
      )
    })
  }
}

/** Most units have nothing to wait for. */
function ended<T>(unit: Unit, ending: UnitEnd, then: () => T): T | Promise<T> {
  const waits = unit.ended(ending)
  return waits === undefined ? then() : waits.then(then)
}

/** The outbox that a kind stands for. */
type OutboxOf<K extends OutboxKind> = K extends 'stored' ? RedisOutbox : RedisStreamOutbox

type OutboxKind = 'stream' | 'stored'

/** A store on Redis: its client and the hash tag of its keys. */
export interface RedisOptions<K extends OutboxKind = OutboxKind> {
  /** A client of ioredis or node-redis. Its settings are used; the connection is opened anew, and is ours. */
  client: RedisLike
  /** The hash tag of all keys of a unit of work: claims and the outbox are `{tag}:…`, and so must be your keys. */
  tag: string
  /** How long a command may take before its connection counts as lost. Default 10 s. */
  timeout?: Duration
  /**
   * Lets a unit of work write keys of any slot. Then it runs on a single server only, and never on a cluster. Default
   * false: what would fail there fails here too.
   */
  anySlot?: boolean
  /**
   * `replicas`: so many must have a commit within `within` (1 s), or its outcome counts as unknown and the message comes
   * again. That narrows what a failover can lose and never rules it out. `required`: nothing is written where settings
   * of the server can lose what was committed, instead of a warning.
   */
  durability?: DurabilityOptions
  inbox?: RedisInboxOptions
  /**
   * `kind: 'stream'` (default): events are appended to a stream, which a source of Redis Streams forwards. `kind:
   * 'stored'`: they are kept until a Relay has published them and longer, with retries, dead events and order per key.
   */
  outbox?: (StreamOutboxOptions | StoredOutboxOptions) & { kind?: K }
  clock?: Clock
}

/** Units of work, an inbox and an outbox on Redis. Nothing is sent until something is called. */
export class RedisStore<O extends RedisStreamOutbox | RedisOutbox = RedisStreamOutbox>
  extends RedisUnitOfWork
  implements Store<RedisTx>, Stoppable
{
  readonly phase: Phase = 'stores'
  readonly name: string
  readonly inbox: RedisInbox
  readonly outbox: O
  /** The connection, for what belongs to the same store. */
  readonly connection: ReconnectingRedis
  readonly client: RedisClient
  readonly tag: string
  /** How many replicas must have what is written before it counts. */
  readonly replicaAcks: ReplicaAcks

  constructor(options: RedisOptions) {
    const where = 'redis'
    if (typeof options !== 'object' || options === null || !('client' in options)) {
      throw new WaybillError('INVALID_OPTION', "redis: give the client by its name: redis({ client, tag: 'shop' })")
    }
    checkOptions(where, options, {
      client: true,
      tag: true,
      timeout: true,
      anySlot: true,
      durability: true,
      inbox: true,
      outbox: true,
      clock: true,
    })
    const given = redisOf(options.client)
    const tag = checkedTag(options.tag)
    const anySlot = options.anySlot ?? false
    if (anySlot && given.cluster) {
      throw new WaybillError('INVALID_OPTION', 'redis: anySlot: a cluster runs a unit of work in one slot only')
    }
    const timeout = milliseconds(options.timeout ?? '10s', 'redis: timeout')
    const durability = durabilityOf(where, options.durability)
    const own = (name: string) => `{${tag}}:${name}`
    const key = (name: string) => given.keyPrefix + name
    const client = checkedClient(given, `redis ${tag}`, key(own('')), durability)
    const connection = new ReconnectingRedis(client, { timeout, name: `waybill-${tag.replace(/\s/g, '-')}` })
    const clock = options.clock ?? systemClock
    const inFlight = { calls: 0 }
    const settings = { name: tag, redis: connection, inFlight, own: (name: string) => key(own(name)), clock }
    const inbox = new RedisInbox(settings, options.inbox)
    super({
      name: tag,
      redis: connection,
      inFlight,
      replicaAcks: durability,
      retention: inbox.retention,
      lostByServer: (claim, token) => inbox.lostByServer(claim, token),
      absent: key(own('waybill:absent')),
      unit: { key, slot: anySlot ? undefined : key(own('')), server: given.server, keyPrefix: given.keyPrefix },
    })
    this.client = client
    this.connection = connection
    this.name = `redis ${tag}`
    this.tag = tag
    this.replicaAcks = durability
    this.inbox = inbox
    this.outbox = this.#outbox(options.outbox ?? {}, own) as O
  }

  #outbox(options: StreamOutboxOptions | StoredOutboxOptions, own: (name: string) => string) {
    const kind = oneOf('redis: outbox.kind', options.kind ?? 'stream', ['stream', 'stored'])
    if (kind === 'stream') {
      const { server } = this.client
      return new RedisStreamOutbox({ own, server, current: () => this.current() }, options as StreamOutboxOptions)
    }
    checkOptions('redis: outbox', options as StoredOutboxOptions, {
      kind: true,
      name: true,
      topic: true,
      retention: true,
    })
    return new RedisOutbox([this], options as StoredOutboxOptions, 'redis: outbox')
  }

  /** A name in the slot that all keys of a unit of work share: `key('order:1')` is `{shop}:order:1`. */
  key(name: string): string {
    return `{${this.tag}}:${name}`
  }

  /** Ends the connection and what runs in the background. Work that is under way fails. */
  async stop(): Promise<void> {
    await this.inbox.close()
    await this.connection.close()
  }
}

/**
 * `redis({ client, tag: 'shop' })`: units of work, inbox and outbox on the Redis you already have. One tag is one slot:
 * for more than one slot's worth on a cluster make several, each with a tag of its own.
 */
export function redis<K extends OutboxKind = 'stream'>(options: RedisOptions<K>): RedisStore<OutboxOf<K>> {
  return new RedisStore<OutboxOf<K>>(options)
}

function checkedTag(tag: unknown): string {
  if (typeof tag === 'string' && tag !== '' && !/[{}]/.test(tag)) return tag
  throw new WaybillError(
    'INVALID_OPTION',
    `redis: tag: ${describe(tag)} is not allowed; give the name of your service, without braces: all keys that change together begin with {name}`,
  )
}
