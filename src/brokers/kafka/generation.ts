import { isAscii } from '../../core/data.ts'
import { errorSummary, type RawMessage, telemetry, warnOnce } from '../../core/index.ts'
import type { KafkaAdmin, KafkaConsumer, KafkaOffset, KafkaPlace, KafkaRecord } from '../../drivers/kafka/kafka.ts'
import { crashReason, decodedMessage } from '../../flow/index.ts'
import { ONLY_FOR, sizeOf, textOf } from './encoding.ts'
import { CLOSED, type GroupSettings, markOf, openMark } from './member.ts'
import { AssignedPartition, type BadRecord, type KafkaDelivery, placeKey } from './partition.ts'

/**
 * What one member has between two rebalances: its partitions, from where the group has committed. Nothing of it counts
 * in the next one.
 */
export class Generation {
  readonly partitions: ReadonlyMap<string, AssignedPartition>
  /** Somebody had one of these partitions, and fell silent with it. */
  readonly afterCrash: boolean
  /** Read, and nothing anybody could handle. */
  readonly bad: BadRecord[] = []
  readonly #settings: GroupSettings
  readonly #consumer: KafkaConsumer
  readonly #all: ReadonlySet<AssignedPartition>
  #turn = 0

  constructor(
    settings: GroupSettings,
    consumer: KafkaConsumer,
    partitions: readonly AssignedPartition[],
    afterCrash: boolean,
  ) {
    this.#settings = settings
    this.#all = new Set(partitions)
    this.#consumer = consumer
    this.partitions = new Map(partitions.map((partition) => [placeKey(partition), partition]))
    this.afterCrash = afterCrash
  }

  has(partition: AssignedPartition): boolean {
    return this.#all.has(partition)
  }

  get waiting(): number {
    let waiting = 0
    for (const partition of this.partitions.values()) waiting += partition.waiting
    return waiting
  }

  get waitingBytes(): number {
    let bytes = 0
    for (const partition of this.partitions.values()) bytes += partition.waitingBytes
    return bytes
  }

  /** By turns from every partition, in order from each. At least one, if there is one that anybody could handle. */
  give(count: number, bytes: number): KafkaDelivery[] {
    const given: KafkaDelivery[] = []
    const all = [...this.#all]
    let size = 0
    for (let idle = 0; idle < all.length && given.length < count; ) {
      const partition = all[this.#turn++ % all.length]!
      const record = partition.take()
      if (record === undefined) {
        idle++
        continue
      }
      idle = 0
      if (isForOthers(record, this.#settings.group)) {
        partition.done(record.offset)
        continue
      }
      if (this.#settings.passesOver(record)) {
        const text = `topic ${partition.topic} has records without a value (tombstones), which are passed over; give decode to handle them`
        warnOnce(this.#settings.where, text)
        partition.done(record.offset)
        continue
      }
      const delivery = partition.returned(record) ?? deliveryOf(this.#settings, partition, record)
      if ('reason' in delivery) {
        this.bad.push(delivery)
        continue
      }
      size += delivery.size
      if (size > bytes && given.length > 0) {
        partition.giveBack(delivery)
        break
      }
      delivery.out = true
      given.push(delivery)
    }
    return given
  }

  /** Commits whatever is finished and not committed, with the mark of one who is at work. */
  async commit(): Promise<void> {
    const moved = [...this.partitions.values()].filter((one) => one.dirty || one.finished !== one.committed)
    if (moved.length === 0) return
    const offsets = moved.map((one) => ({ ...place(one), offset: one.finished, metadata: openMark(one.alone) }))
    await this.#consumer.commit(offsets)
    moved.forEach((partition, i) => {
      partition.committed = offsets[i]!.offset
      partition.dirty = false
    })
  }

  /** The last word: whoever comes next finds no crash. */
  async commitClosed(): Promise<void> {
    const all = [...this.partitions.values()]
    if (all.length === 0) return
    await this.#consumer.commit(all.map((one) => ({ ...place(one), offset: one.finished, metadata: CLOSED })))
  }
}

function place({ topic, partition }: KafkaPlace): KafkaPlace {
  return { topic, partition }
}

/** Looks up where the group is in these partitions, and says in its name that we are there now. */
export async function beginGeneration(
  settings: GroupSettings,
  consumer: KafkaConsumer,
  places: readonly KafkaPlace[],
  wereOurs: ReadonlySet<string>,
): Promise<Generation> {
  const { group, topics } = settings
  const { offsets, others } = await settings.withAdmin(async (admin) => {
    const committed = await admin.committed(group, topics)
    const own = await Promise.all(places.map((one) => startOf(settings, admin, committed, one)))
    return { offsets: own, others: await startOfOthers(settings, admin, committed, places) }
  })
  let afterCrash = false
  const partitions = offsets.map(({ offset, metadata, elsewhere, ...one }) => {
    const partition = new AssignedPartition(one, offset)
    const mark = markOf(metadata)
    // What we left ourselves we left alive.
    if (mark.open && !wereOurs.has(placeKey(one))) {
      afterCrash = true
      partition.alone = mark.alone
      partition.spent = mark.alone
    }
    partition.dirty = true
    // Only then: what the client has fetched already would be thrown away.
    if (elsewhere) consumer.seek(one, offset)
    return partition
  })
  const generation = new Generation(settings, consumer, partitions, afterCrash)
  if (others.length > 0) await consumer.commit(others)
  await generation.commit()
  return generation
}

interface Start extends KafkaOffset {
  /** Neither where the group has committed nor at the beginning, so the client must seek there. */
  readonly elsewhere: boolean
}

/**
 * Where the group goes on. A group that is new to a topic begins where `start` says, and that is committed at once:
 * what is published from now on is its own, whatever happens. A partition that was added later is read from its
 * beginning.
 */
async function startOf(
  { start, where }: GroupSettings,
  admin: KafkaAdmin,
  committed: readonly KafkaOffset[],
  { topic, partition }: KafkaPlace,
): Promise<Start> {
  const ofTopic = committed.filter((one) => one.topic === topic)
  const found = ofTopic.find((one) => one.partition === partition)
  const bounds = (await admin.bounds(topic)).find((one) => one.partition === partition) ?? { low: 0, high: 0 }
  if (found === undefined) {
    const offset = start === 'latest' && ofTopic.length === 0 ? bounds.high : bounds.low
    return { topic, partition, offset, metadata: '', elsewhere: offset !== bounds.low }
  }
  if (found.offset >= bounds.low && found.offset <= bounds.high) return { ...found, elsewhere: false }
  const gap = found.offset < bounds.low
  const message = gap
    ? `${topic}/${partition}: records ${found.offset} to ${bounds.low - 1} were deleted before this group had handled them (retention)`
    : `${topic}/${partition}: the group had come to ${found.offset}, but the topic ends at ${bounds.high}: it was made anew, or has lost records. Reading from its beginning`
  telemetry.warning.publish({ where, message })
  return { topic, partition, offset: bounds.low, metadata: found.metadata, elsewhere: true }
}

/**
 * A group that begins with what comes begins so in all partitions of a topic at once: another member, which looks a moment
 * later, would take its own for partitions that were added since, and read them from their beginning.
 */
async function startOfOthers(
  { start, topics }: GroupSettings,
  admin: KafkaAdmin,
  committed: readonly KafkaOffset[],
  places: readonly KafkaPlace[],
): Promise<KafkaOffset[]> {
  const mine = new Set(places.map(placeKey))
  const isNew = (topic: string) => start === 'latest' && committed.every((one) => one.topic !== topic)
  const others: KafkaOffset[] = []
  for (const topic of topics.filter(isNew)) {
    for (const { partition, high } of await admin.bounds(topic)) {
      if (!mine.has(placeKey({ topic, partition }))) others.push({ topic, partition, offset: high, metadata: '' })
    }
  }
  return others
}

/** What is kept beside an unsettled record, in bytes. */
const BESIDE = 96

/**
 * A record as it is handed out, or why nobody can handle it. Made when it is its turn and not when it was read: of the
 * thousands that wait, most would outlive the young generation of the heap, message and all.
 */
export function deliveryOf(
  settings: GroupSettings,
  from: AssignedPartition,
  record: KafkaRecord,
): KafkaDelivery | BadRecord {
  const { decode, order, maxCrashes } = settings
  const { spent } = from
  const attempts = spent?.offset === record.offset ? spent.attempts + 1 : 0
  let message: RawMessage
  try {
    message = decodedMessage(decode(record, from.topic))
  } catch (error) {
    return { from, record, reason: errorSummary(error), attempts, message: undefined }
  }
  if (attempts >= maxCrashes) {
    return { from, record, reason: crashReason(attempts), attempts, message }
  }
  const key = order === 'partition' ? from.name : keyOf(record, message)
  const { topic } = from
  return { message, key, attempts, size: sizeOf(record) + BESIDE, topic, from, record, deadLettered: false, out: false }
}

/** Sent back for one group, which is not this one. */
export function isForOthers({ headers }: KafkaRecord, group: string): boolean {
  const only = headers[ONLY_FOR]
  return only !== undefined && textOf(only) !== group
}

/** The key of the record, whoever wrote it; else that of the message. */
function keyOf({ key }: KafkaRecord, message: RawMessage): string | undefined {
  const ours = message.key
  if (key === null || key.length === 0 || (ours !== undefined && isAscii(key, ours))) return ours
  const bytes = Buffer.isBuffer(key) ? key : Buffer.from(key.buffer, key.byteOffset, key.byteLength)
  const text = bytes.toString()
  return text.includes('\ufffd') ? bytes.toString('base64') : text
}
