import { listOf, numberOf, type RedisCommands, textOf } from '../../drivers/redis/redis.ts'
import type { GroupSettings } from './member.ts'
import { RETURNED, scripts } from './scripts.ts'

/** How a group stands in one stream. */
export interface StreamStats {
  readonly stream: string
  /** Entries in the stream, handled or not. */
  readonly length: number
  /** Entries the group has not been given yet. */
  readonly lag: number
  /** Counting was given up there: the lag is that or more. */
  readonly lagIsAtLeast: boolean
  /** Given and not settled: in somebody's hand … */
  readonly inHand: number
  /** … or given back, waiting for the next try. */
  readonly waiting: number
  readonly dead: number
  /** Milliseconds since the oldest entry that is not handled was published; 0 without one. */
  readonly oldest: number
}

/** Before 7.0 the server does not know the lag, and counting all of a long stream would hold it up. */
const COUNT_TO = 10_000

export async function statsOf(settings: GroupSettings, redis: RedisCommands): Promise<StreamStats[]> {
  const all: StreamStats[] = []
  for (const { key, letters } of settings.streams) {
    const args = [settings.group, RETURNED, String(COUNT_TO)]
    const reply = listOf(await redis.script(scripts.stats, [key, letters], args))
    const [length, lag, more, pending, waiting, oldest, dead, now] =
      reply.length > 0 ? reply : [0, 0, '0', 0, 0, '', 0, 0]
    const since = Number.parseInt(textOf(oldest), 10)
    all.push({
      stream: key,
      length: numberOf(length),
      lag: numberOf(lag),
      lagIsAtLeast: textOf(more) === '1',
      inHand: numberOf(pending) - numberOf(waiting),
      waiting: numberOf(waiting),
      dead: numberOf(dead),
      oldest: Number.isNaN(since) ? 0 : Math.max(0, numberOf(now) - since),
    })
  }
  return all
}
