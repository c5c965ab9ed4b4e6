import { telemetry, WaybillError } from '../core/index.ts'
import { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import { numberOf } from '../drivers/redis/redis.ts'
import type { Source } from '../flow/index.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import { GaugeLeader } from './gauge-leader.ts'
import { type OutboxLeaseSettings, OutboxSession, type RedisDelivery } from './lease.ts'
import type { Hints } from './outbox.ts'
import { outboxScripts } from './scripts.ts'
import type { Shard, Shards } from './shards.ts'

export interface Readable {
  readonly name: string
  readonly shards: Shards
  readonly hints: Hints
}

const KEYS_AT_ONCE = 500

/**
 * A relay's part in reading the outbox: a source for each shard, so that one whose server is away stops no other. Relays
 * compete: each claims what it takes, and of a key only the first can be claimed, so that order is kept without an owner.
 * All of them read all shards.
 */
export class RedisReader implements Reader {
  readonly #sources: readonly Source[]
  readonly #leader: GaugeLeader
  readonly competes = true
  #announce: (() => void) | undefined

  constructor({ name, shards, hints }: Readable, options: ReaderOptions) {
    if (options.reader === 'owner') {
      throw new WaybillError(
        'INVALID_OPTION',
        'Relay: reader: "owner" is not for an outbox on Redis: relays compete there, and order per key is kept; leave it out',
      )
    }
    if (options.shards !== 1) {
      throw new WaybillError(
        'INVALID_OPTION',
        `Relay: shards: ${options.shards} is not for an outbox on Redis: it has as many as the stores it was given; leave it out`,
      )
    }
    this.#leader = new GaugeLeader(options.lease, options.clock)
    this.#sources = shards.all.map((shard, i) => {
      const about = { table: name, leader: i === 0 ? this.#leader : undefined }
      const settings = {
        ...options,
        name: shards.all.length === 1 ? name : `${name} {${shard.store.tag}}`,
        shard,
        hints,
        ...about,
      }
      const features = { redelivers: true, holdsKeys: true } as const
      const source: Source<RedisDelivery> = { name: settings.name, features, open: () => open(settings) }
      return source as unknown as Source
    })
    this.#announce = () => {
      const why = 'relays on Redis compete, and keep order per key'
      telemetry['relay.reader'].publish({ table: name, reader: 'lease', shards: shards.all.length, why })
    }
  }

  async assignment(): Promise<readonly Source[]> {
    this.#announce?.()
    this.#announce = undefined
    return this.#sources
  }

  leads(): boolean | undefined {
    return this.#leader.leads
  }

  async close(): Promise<void> {}
}

async function open(settings: OutboxLeaseSettings): Promise<OutboxSession> {
  const { client, tag } = settings.shard.store
  const timeout = Math.max(1000, settings.lease / 3)
  const connection = new ReconnectingRedis(client, { timeout, name: `waybill-relay-${tag}` })
  try {
    await connection.connection()
    if (settings.deadKey === 'continue') await openKeys(settings.shard.over(connection))
  } catch (error) {
    await connection.close()
    throw error
  }
  const session = new OutboxSession(settings, connection)
  await session.renewLook()
  return session
}

/** Keys that an earlier relay has left waiting for their dead. */
async function openKeys(shard: Shard): Promise<void> {
  while (numberOf(await shard.run(outboxScripts.open, [String(KEYS_AT_ONCE)])) > 0) {
    // The next page.
  }
}
