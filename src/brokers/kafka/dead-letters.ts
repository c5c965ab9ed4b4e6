import { randomBytes } from 'node:crypto'
import { checkOptions, type RawMessage, systemClock, Unavailable, wholeNumber } from '../../core/index.ts'
import type { KafkaHeaders, KafkaPlace, KafkaRecord, OutgoingRecord } from '../../drivers/kafka/kafka.ts'
import { ONLY_FOR, textOf } from './encoding.ts'
import type { GroupSettings } from './member.ts'
import type { BadRecord } from './partition.ts'

/** A record that was given up: as it was, and why. */
export interface KafkaDeadLetter {
  /** The letter's own place, for `rearm` and `discard`. */
  readonly id: string
  readonly topic: string
  readonly partition: number
  readonly offset: number
  readonly group: string
  readonly reason: string
  readonly attempts: number
  readonly key: Uint8Array | null
  readonly value: Uint8Array | null
  readonly headers: KafkaHeaders
  /** Absent when it cannot be decoded: that is why some are here. */
  readonly message: RawMessage | undefined
}

export interface DeadLetterOptions {
  /** How many at most. Default 100. */
  readonly count?: number
}

const OWN = 'waybill-'
/** Of a letter that was dealt with: a topic cannot be struck out from, so it is written behind it. */
const SETTLED = 'waybill-settled'
const NOTHING = Buffer.alloc(0)

/** The record as it was, with the story of it in headers. */
export function letterOf(bad: BadRecord, group: string, topic: string): OutgoingRecord {
  const { from, record, reason, attempts } = bad
  const story = {
    [`${OWN}reason`]: reason,
    [`${OWN}attempts`]: String(attempts),
    [`${OWN}topic`]: from.topic,
    [`${OWN}partition`]: String(from.partition),
    [`${OWN}offset`]: String(record.offset),
    [`${OWN}group`]: group,
  }
  return {
    topic,
    key: record.key,
    value: record.value ?? NOTHING,
    headers: { ...withoutStory(record.headers), ...story },
  }
}

/** Headers as others wrote them. Nulls become empty: some clients cannot write them. */
function withoutStory(headers: KafkaHeaders): KafkaHeaders {
  const entries = Object.entries(headers).filter(([name]) => !name.startsWith(OWN))
  return Object.fromEntries(
    entries.map(([name, value]) => [name, Array.isArray(value) ? value.map((one) => one ?? '') : (value ?? '')]),
  )
}

/** What the group gave up and nobody has dealt with, oldest first. */
export async function deadLettersOf(
  settings: GroupSettings,
  options: DeadLetterOptions = {},
): Promise<KafkaDeadLetter[]> {
  checkOptions('dead letters', options, { count: true })
  const count = wholeNumber('dead letters: count', options.count ?? 100)
  const letters: KafkaDeadLetter[] = []
  const settled = new Set<string>()
  for (const topic of new Set(settings.topics.map((one) => settings.letters(one)))) {
    await readAll(settings, topic, (place, record) => {
      const about = record.headers[SETTLED]
      if (about !== undefined) settled.add(textOf(about))
      else letters.push(deadLetter(settings, place, record))
    })
  }
  return letters.filter(({ id, group }) => group === settings.group && !settled.has(id)).slice(0, count)
}

function deadLetter({ decode }: GroupSettings, place: KafkaPlace, record: KafkaRecord): KafkaDeadLetter {
  const said = (name: string) => textOf(record.headers[OWN + name])
  const headers = withoutStory(record.headers)
  let message: RawMessage | undefined
  try {
    message = decode({ ...record, headers }, said('topic'))
  } catch {
    // It stays here with its reason.
  }
  return {
    id: `${place.topic}/${place.partition}/${record.offset}`,
    topic: said('topic'),
    partition: Number(said('partition')),
    offset: Number(said('offset')),
    group: said('group'),
    reason: said('reason'),
    attempts: Number(said('attempts')),
    key: record.key,
    value: record.value,
    headers,
    message,
  }
}

/**
 * Deals with letters: to their topics again (for this group only, as far as groups are ours), or away with them. First
 * the deed, then the note of it: whoever dies between the two does it twice.
 */
export async function settleLetters(
  settings: GroupSettings,
  ids: readonly string[],
  how: 'rearmed' | 'discarded',
): Promise<number> {
  const all = await deadLettersOf(settings, { count: Number.MAX_SAFE_INTEGER })
  const letters = all.filter(({ id }) => ids.includes(id))
  if (letters.length === 0) return 0
  const { sender, group } = settings
  if (how === 'rearmed') {
    await sender.send(
      letters.map(({ topic, key, value, headers }) => ({
        topic,
        key,
        value: value ?? NOTHING,
        headers: { ...headers, [ONLY_FOR]: group },
      })),
    )
  }
  await sender.send(
    letters.map(({ id, topic, key }) => ({
      topic: settings.letters(topic),
      key,
      value: NOTHING,
      headers: { [SETTLED]: id, [`${OWN}how`]: how, [`${OWN}group`]: group },
    })),
  )
  return letters.length
}

/** Reads a topic from its beginning to where it ends now, in a group that is gone afterwards. */
async function readAll(
  settings: GroupSettings,
  topic: string,
  onRecord: (place: KafkaPlace, record: KafkaRecord) => void,
): Promise<void> {
  const { client, session, block, withAdmin } = settings
  const bounds = await withAdmin(async (admin) => {
    const there = await admin.partitions([topic])
    return there.size === 0 ? [] : await admin.bounds(topic)
  })
  const ends = new Map(bounds.filter(({ low, high }) => high > low).map(({ partition, high }) => [partition, high]))
  if (ends.size === 0) return
  const group = `waybill-look-${randomBytes(6).toString('hex')}`
  const over = new AbortController()
  let failure: unknown
  const finish = (error?: unknown) => {
    failure ??= error
    over.abort()
  }
  const passed = (partition: number, next: number) => {
    if (next >= (ends.get(partition) ?? Number.POSITIVE_INFINITY)) ends.delete(partition)
    if (ends.size === 0) finish()
  }
  const consumer = await client.consumer(
    { group, topics: [topic], session, heartbeat: Math.floor(session / 10), block: Math.min(block, 500) },
    {
      joined() {},
      revoked() {},
      alive() {},
      skipped: ({ partition }, next) => passed(partition, next),
      ended: (error) => finish(error),
      async records({ partition, next, records }) {
        const end = ends.get(partition)
        if (end !== undefined)
          for (const record of records) if (record.offset < end) onRecord({ topic, partition }, record)
        passed(partition, next)
        return true
      },
    },
  )
  await systemClock.sleep(Math.max(30_000, session * 2), over.signal)
  await consumer.close().catch(() => {})
  await withAdmin((admin) => admin.deleteGroup(group)).catch(() => {})
  if (failure !== undefined) throw failure
  if (ends.size > 0) throw new Unavailable(`topic ${topic} could not be read to its end`)
}
