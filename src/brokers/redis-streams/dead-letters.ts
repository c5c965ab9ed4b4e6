import { checkOptions, type RawMessage, wholeNumber } from '../../core/index.ts'
import { listOf, type RedisCommands, type RedisReply, textOf } from '../../drivers/redis/redis.ts'
import { recordOf } from './encoding.ts'
import type { GroupSettings, Stream } from './member.ts'

/** An entry that was given up: its fields as they were, and why. */
export interface StreamDeadLetter {
  /** The dead letter's own id, for `rearm` and `discard`. */
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
  /** Dead letters after this one. */
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
    const here: StreamDeadLetter[] = []
    let from = after
    for (let more = true; more && here.length < count; ) {
      // An exclusive start came with 6.2: one more is asked for, and that one left out.
      const found = listOf(await redis.command(['xrange', key, from ?? '-', '+', 'COUNT', String(count + 1)]))
      const entries = found.filter((entry) => textOf(listOf(entry)[0]) !== from)
      here.push(...entries.map((entry) => letterOf(settings, entry)).filter((letter) => isOwn(settings, letter)))
      more = found.length > count
      from = textOf(listOf(found.at(-1))[0])
    }
    letters.push(...here)
  }
  return letters.sort((a, b) => compareIds(a.id, b.id)).slice(0, count)
}

/** Several groups, and several streams, may share a stream for dead letters. */
function isOwn({ group, streams }: GroupSettings, letter: StreamDeadLetter): boolean {
  return letter.group === group && streams.some(({ key }) => key === letter.stream)
}

/** Appends the entry of a dead letter to its stream anew, where it has more fields than a script can append. */
export async function appendLetter(
  settings: GroupSettings,
  redis: RedisCommands,
  { key, letters }: Stream,
  id: string,
): Promise<void> {
  const [entry] = listOf(await redis.command(['xrange', letters, id, id]))
  if (entry === undefined) return
  const words = Object.entries(letterOf(settings, entry).fields).flat(1)
  await redis.command(['xadd', key, '*', ...words])
}

function letterOf({ decode }: GroupSettings, entry: RedisReply): StreamDeadLetter {
  const [id, raw] = listOf(entry)
  const all = recordOf(raw!)
  const packed = all['waybill-fields']
  const fields =
    packed !== undefined
      ? recordOf(unpacked(packed))
      : Object.fromEntries(Object.entries(all).filter(([name]) => !name.startsWith('waybill-')))
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

/** Each word is its length, a colon and its bytes: see settle.lua. */
function unpacked(text: Buffer): Buffer[] {
  const words: Buffer[] = []
  for (let at = 0; at < text.length; ) {
    const colon = text.indexOf(':', at)
    const end = colon + 1 + Number(text.toString('latin1', at, colon))
    words.push(text.subarray(colon + 1, end))
    at = end
  }
  return words
}

export function compareIds(a: string, b: string): number {
  const [am, as] = a.split('-').map(BigInt) as [bigint, bigint]
  const [bm, bs] = b.split('-').map(BigInt) as [bigint, bigint]
  const order = am === bm ? as - bs : am - bm
  return order < 0n ? -1 : order > 0n ? 1 : 0
}
