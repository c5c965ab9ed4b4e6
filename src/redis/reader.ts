import { telemetry, WaybillError } from '../core/index.ts'
import { SteadyRedis } from '../drivers/redis/reconnecting.ts'
import { numberOf } from '../drivers/redis/redis.ts'
import type { Source } from '../flow/index.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import { type OutboxDelivery, OutboxSession, type Part } from './lease.ts'
import type { Hints } from './outbox-hints.ts'
import { outboxScripts } from './outbox-scripts.ts'
import type { Shards } from './shards.ts'

export interface Readable {
  readonly name: string
  readonly shards: Shards
  readonly hints: Hints
}

const KEYS_AT_ONCE = 500

/**
 * A relay's part in reading the outbox. Relays compete: each claims what it takes, and of a key only the first can be
 * claimed, so that order is kept without an owner. All of them read all shards.
 */
export class RedisReader implements Reader {
  readonly #source: Source<OutboxDelivery>
  #told: (() => void) | undefined

  constructor(of: Readable, options: ReaderOptions) {
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
    this.#source = {
      name: of.name,
      features: { redelivers: true, holdsKeys: true },
      open: () => open(of, options),
    }
    this.#told = () => {
      const why = 'relays on Redis compete, and keep order per key'
      telemetry['relay.reader'].publish({ table: of.name, reader: 'lease', shards: of.shards.all.length, why })
    }
  }

  async share(): Promise<readonly Source[]> {
    this.#told?.()
    this.#told = undefined
    return [this.#source as unknown as Source]
  }

  async close(): Promise<void> {}
}

async function open({ name, shards, hints }: Readable, options: ReaderOptions): Promise<OutboxSession> {
  const timeout = Math.max(1000, options.lease / 3)
  const parts: Part[] = shards.all.map((shard) => {
    const connection = new SteadyRedis(shard.store.client, { timeout, name: `waybill-relay-${shard.store.tag}` })
    return { connection, shard: shard.over(connection) }
  })
  try {
    await Promise.all(parts.map(({ connection }) => connection.connection()))
    if (options.deadKey === 'continue') await Promise.all(parts.map(openKeys))
  } catch (error) {
    await Promise.all(parts.map(({ connection }) => connection.close()))
    throw error
  }
  return new OutboxSession({ ...options, name, hints }, parts)
}

/** Keys that an earlier relay has left waiting for their dead. */
async function openKeys({ shard }: Part): Promise<void> {
  while (numberOf(await shard.run(outboxScripts.open, [String(KEYS_AT_ONCE)])) > 0) {
    // The next page.
  }
}
