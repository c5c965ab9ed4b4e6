import { checkOptions, type RawMessage, wholeNumber } from '../../core/index.ts'
import { listOf, type RedisCommands, type RedisReply, textOf } from '../../drivers/redis/redis.ts'
import { recordOf } from './encoding.ts'
import type { GroupSettings } from './member.ts'

/** An entry that was given up: its fields as they were, and why. */
export interface StreamDeadLetter {
  /** The letter's own id, for `rearm` and `discard`. */
  readonly id: string
  readonly stream: string
  readonly group: string
  /** The id the entry had in its stream. */
  readonly entry: string
  readonly reason: string
  readonly attempts: number
  readonly fields: Readonly<Record<string, Buffer>>
  /** Absent when it cannot be decoded: that is why some are here. */
  readonly message: RawMessage | undefined
}

export interface DeadLetterOptions {
  /** How many at most. Default 100. */
  readonly count?: number
  /** Letters after this one. */
  readonly after?: string
}

export async function deadLettersOf(
  settings: GroupSettings,
  redis: RedisCommands,
  options: DeadLetterOptions = {},
): Promise<StreamDeadLetter[]> {
  checkOptions('dead letters', options, { count: true, after: true })
  const count = wholeNumber('dead letters: count', options.count ?? 100)
  const { after } = options
  const letters: StreamDeadLetter[] = []
  for (const key of new Set(settings.streams.map((stream) => stream.letters))) {
    // An exclusive start came with 6.2: one more is asked for, and that one left out.
    const command = ['xrange', key, after ?? '-', '+', 'COUNT', String(count + 1)]
    const entries = listOf(await redis.command(command)).filter((entry) => textOf(listOf(entry)[0]) !== after)
    letters.push(...entries.map((entry) => letterOf(settings, entry)))
  }
  return letters.sort((a, b) => compareIds(a.id, b.id)).slice(0, count)
}

function letterOf({ decode }: GroupSettings, entry: RedisReply): StreamDeadLetter {
  const [id, raw] = listOf(entry)
  const all = recordOf(raw!)
  const fields = Object.fromEntries(Object.entries(all).filter(([name]) => !name.startsWith('waybill-')))
  const said = (name: string) => textOf(all[`waybill-${name}`])
  let message: RawMessage | undefined
  try {
    message = decode(Object.entries(fields).flat(1) as RedisReply, said('id'))
  } catch {
    // It stays here with its reason.
  }
  return {
    id: textOf(id),
    stream: said('stream'),
    group: said('group'),
    entry: said('id'),
    reason: said('reason'),
    attempts: Number(said('attempts')),
    fields,
    message,
  }
}

export function compareIds(a: string, b: string): number {
  const [am, as] = a.split('-').map(BigInt) as [bigint, bigint]
  const [bm, bs] = b.split('-').map(BigInt) as [bigint, bigint]
  const order = am === bm ? as - bs : am - bm
  return order < 0n ? -1 : order > 0n ? 1 : 0
}
