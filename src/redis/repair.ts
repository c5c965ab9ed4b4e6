import {
  type Clock,
  checkOptions,
  type Duration,
  milliseconds,
  oneOf,
  systemClock,
  telemetry,
  wholeNumber,
} from '../core/index.ts'
import { listOf, numberOf, textOf } from '../drivers/redis/redis.ts'
import { RETRY_DEFAULTS, type RetryOptions, Task } from '../flow/index.ts'
import { outboxScripts } from './scripts.ts'
import type { Shards } from './shards.ts'

/** How often, and how far, an outbox on Redis is checked for what does not fit together. */
export interface RepairOptions {
  /** Default every 5 minutes. */
  every?: Duration
  /** About how many entries one script looks at. Default 200. */
  batch?: number
  /** As the relays have it: after so many attempts an entry whose lease was given up is parked. */
  retry?: Pick<RetryOptions, 'attempts' | 'deadKey'>
  /** How long a lease must have ended before it is given up here. Relays do it by themselves; default 1 minute. */
  patience?: Duration
  clock?: Clock
}

/** What a round has put right. */
export interface Repaired {
  /** Entries that were in no place where a relay would have found them. */
  readonly restored: number
  /** Places and states whose entry is gone. */
  readonly dropped: number
  /** Leases that nobody renewed or took over. */
  readonly released: number
  /** Keys that waited for nothing. */
  readonly headed: number
}

/** In this order: first what points to nothing, so that what is put back finds its key free; heads before those held. */
const PARTS = ['states', 'leased', 'pending', 'retrying', 'held', 'dead', 'sent', 'heads', 'entries'] as const

/**
 * Finds what does not belong together, both ways, and puts it right: places without an entry, entries without a place,
 * leases that nobody holds, keys without a head. Page by page, so that nobody waits for it.
 */
export class OutboxRepair extends Task<Repaired> {
  constructor(name: string, shards: Shards, options: RepairOptions = {}) {
    checkOptions('repair', options, { every: true, batch: true, retry: true, patience: true, clock: true })
    checkOptions('repair: retry', options.retry, { attempts: true, deadKey: true })
    const { every = '5m', clock = systemClock } = options
    const { attempts = RETRY_DEFAULTS.attempts, deadKey = RETRY_DEFAULTS.deadKey } = options.retry ?? {}
    const settings = [
      wholeNumber('repair: batch', options.batch ?? 200, { max: 10_000 }),
      wholeNumber('repair: retry.attempts', attempts),
      oneOf('repair: retry.deadKey', deadKey, ['block', 'continue']) === 'continue' ? 1 : 0,
      milliseconds(options.patience ?? '1m', 'repair: patience'),
    ].map(String)
    super({ name: `repair ${name}`, every, clock, run: (signal) => repair(name, shards, settings, signal) })
  }
}

async function repair(
  name: string,
  shards: Shards,
  settings: readonly string[],
  signal: AbortSignal,
): Promise<Repaired> {
  const total = { restored: 0, dropped: 0, released: 0, headed: 0 }
  try {
    await shards.each(async (shard) => {
      for (const part of PARTS) {
        for (let cursor = '0', more = true; more && !signal.aborted; more = cursor !== '0') {
          const answer = listOf(await shard.run(outboxScripts.repair, [part, cursor, ...settings]))
          cursor = textOf(answer[0])
          total.restored += numberOf(answer[1])
          total.dropped += numberOf(answer[2])
          total.released += numberOf(answer[3])
          total.headed += numberOf(answer[4])
        }
      }
    })
  } finally {
    if (Object.values(total).some((count) => count > 0)) {
      telemetry['outbox.repaired'].publish({ table: name, ...total })
    }
  }
  return total
}
