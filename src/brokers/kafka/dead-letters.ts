import { randomBytes } from 'node:crypto'
import { checkOptions, type RawMessage, systemClock, telemetry, Unavailable, wholeNumber } from '../../core/index.ts'
import type { KafkaHeaders, KafkaPlace, KafkaRecord } from '../../drivers/kafka/kafka.ts'
import { NOTHING, NULL, OWN, PARTIAL, withoutReason } from './dead-letter-writer.ts'
import { ONLY_FOR, sizeOf, textOf } from './encoding.ts'
import type { GroupSettings } from './member.ts'

/** A record that was given up: as it was, and why. */
export interface KafkaDeadLetter {
  /** The dead letter's own place, for `rearm` and `discard`. */
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
  /**
   * Whether it holds the whole record. If not, the dead-letter topic refused it (`max.message.bytes`), and its value is
   * only in the original topic, for as long as that retains it.
   */
  readonly whole: boolean
  /** Absent when it cannot be decoded: that is why some are here. */
  readonly message: RawMessage | undefined
}

export interface DeadLetterOptions {
  /** How many at most. Default 100. */
  readonly count?: number
}

/** Of a dead letter that was dealt with: nothing can be removed from a topic, so this is appended. */
const SETTLED = 'waybill-settled'
/** One request holds so many bytes, which the default of `max.message.bytes` allows, and records. */
const AT_ONCE = { bytes: 900_000, records: 500 }

/** What the group gave up and nobody has dealt with, oldest first. */
export async function deadLettersOf(
  settings: GroupSettings,
  options: DeadLetterOptions = {},
): Promise<KafkaDeadLetter[]> {
  checkOptions('dead letters', options, { count: true })
  const count = wholeNumber('dead letters: count', options.count ?? 100)
  // By id: after a rebalance the topic is read from its beginning once more.
  const letters = new Map<string, KafkaDeadLetter>()
  const settled = new Set<string>()
  for (const topic of new Set(settings.topics.map((one) => settings.letters(one)))) {
    await readAll(settings, topic, (place, record) => {
      const about = record.headers[SETTLED]
      if (about !== undefined) return void settled.add(textOf(about))
      const letter = deadLetter(settings, place, record)
      letters.set(letter.id, letter)
    })
  }
  const all = [...letters.values()]
  return all.filter(({ id, group }) => group === settings.group && !settled.has(id)).slice(0, count)
}

function deadLetter({ decode }: GroupSettings, place: KafkaPlace, record: KafkaRecord): KafkaDeadLetter {
  const said = (name: string) => textOf(record.headers[OWN + name])
  const headers = withoutReason(record.headers)
  const value = record.headers[NULL] === undefined ? record.value : null
  const whole = record.headers[PARTIAL] === undefined
  let message: RawMessage | undefined
  try {
    if (whole) message = decode({ ...record, value, headers }, said('topic'))
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
    value,
    headers,
    whole,
    message,
  }
}

/**
 * Re-arms dead letters (to their topics, for this group only, as far as groups are ours) or discards them. That is
 * recorded afterwards: after a crash between the two it happens twice.
 */
export async function settleLetters(
  settings: GroupSettings,
  ids: readonly string[],
  how: 'rearmed' | 'discarded',
): Promise<number> {
  const { sender, group } = settings
  const all = await deadLettersOf(settings, { count: Number.MAX_SAFE_INTEGER })
  const wanted = all.filter(({ id }) => ids.includes(id))
  const letters = how === 'rearmed' ? await complete(settings, wanted) : wanted
  for (const some of chunks(letters)) {
    if (how === 'rearmed') {
      const again = some.map(({ topic, key, value, headers }) => {
        return { topic, key, value, headers: { ...headers, [ONLY_FOR]: group } }
      })
      await sender.send(again)
    }
    await sender.send(
      some.map(({ id, topic, key }) => ({
        topic: settings.letters(topic),
        // A compacted topic takes none without a key.
        key: key ?? Buffer.from(id),
        value: NOTHING,
        headers: { [SETTLED]: id, [`${OWN}how`]: how, [`${OWN}group`]: group },
      })),
    )
  }
  return letters.length
}

/** What fits into one request. */
function* chunks(letters: readonly KafkaDeadLetter[]): Generator<readonly KafkaDeadLetter[]> {
  let chunk: KafkaDeadLetter[] = []
  let bytes = 0
  for (const letter of letters) {
    const size = sizeOf(letter)
    if (chunk.length > 0 && (bytes + size > AT_ONCE.bytes || chunk.length >= AT_ONCE.records)) {
      yield chunk
      chunk = []
      bytes = 0
    }
    chunk.push(letter)
    bytes += size
  }
  if (chunk.length > 0) yield chunk
}

/** Adds what dead letters could not hold, from their records. One whose record is gone is left out, with a warning. */
async function complete(settings: GroupSettings, letters: readonly KafkaDeadLetter[]): Promise<KafkaDeadLetter[]> {
  const found = new Map<string, KafkaRecord>()
  const partial = letters.filter(({ whole }) => !whole)
  for (const topic of new Set(partial.map((letter) => letter.topic))) {
    const from = new Map<number, number>()
    const needed = new Set<string>()
    for (const { partition, offset } of partial.filter((letter) => letter.topic === topic)) {
      from.set(partition, Math.min(offset, from.get(partition) ?? offset))
      needed.add(`${topic}/${partition}/${offset}`)
    }
    const keep = ({ partition }: KafkaPlace, record: KafkaRecord) => {
      const place = `${topic}/${partition}/${record.offset}`
      if (needed.has(place)) found.set(place, record)
    }
    await readAll(settings, topic, keep, from)
  }
  return letters.flatMap((letter) => {
    if (letter.whole) return [letter]
    const place = `${letter.topic}/${letter.partition}/${letter.offset}`
    const record = found.get(place)
    if (record !== undefined) {
      const { key, value, headers } = record
      return [{ ...letter, key, value, headers: withoutReason(headers) }]
    }
    const message = `dead letter ${letter.id} cannot be re-armed: it holds no value, and the record ${place} is gone (retention)`
    telemetry.warning.publish({ where: settings.where, message })
    return []
  })
}

/**
 * Reads a topic from its beginning to where it ends now, in a group that is gone afterwards. With `from`, only these
 * partitions, from these offsets.
 */
async function readAll(
  settings: GroupSettings,
  topic: string,
  onRecord: (place: KafkaPlace, record: KafkaRecord) => void,
  from?: ReadonlyMap<number, number>,
): Promise<void> {
  const { client, session, block, withAdmin } = settings
  const bounds = await withAdmin(async (admin) => {
    const there = await admin.partitions([topic])
    return there.size === 0 ? [] : await admin.bounds(topic)
  })
  const asked = bounds.filter(({ partition, low, high }) => high > low && (from === undefined || from.has(partition)))
  const ends = new Map(asked.map(({ partition, high }) => [partition, high]))
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
  // What it has fetched before that is read in vain.
  for (const { partition, low } of asked) {
    const offset = from?.get(partition)
    if (offset !== undefined && offset > low) consumer.seek({ topic, partition }, offset)
  }
  await systemClock.sleep(Math.max(30_000, session * 2), over.signal)
  await consumer.close().catch(() => {})
  await withAdmin((admin) => admin.deleteGroup(group)).catch(() => {})
  if (failure !== undefined) throw failure
  if (ends.size > 0) throw new Unavailable(`topic ${topic} could not be read to its end`)
}
