import { type Clock, telemetry, Wakeup, WaybillError } from '../../core/index.ts'
import type {
  ConsumerEvents,
  KafkaAdmin,
  KafkaBatch,
  KafkaClient,
  KafkaConsumer,
  KafkaPlace,
  KafkaRecord,
} from '../../drivers/kafka/kafka.ts'
import { Lease } from '../../flow/index.ts'
import type { Decoder } from './encoding.ts'
import { beginGeneration, type Generation } from './generation.ts'
import { type AssignedPartition, placeKey } from './partition.ts'
import type { Sender } from './sender.ts'

/** How a topic is made that is not there. */
export interface TopicShape {
  readonly partitions: number
  readonly replication: number
}

/** A source's options, checked, with their defaults. Times are milliseconds. */
export interface GroupSettings {
  readonly where: string
  readonly group: string
  readonly topics: readonly string[]
  /** The dead-letter topic of a topic. */
  readonly letters: (topic: string) => string
  /** Where a group begins that has nothing committed. */
  readonly start: 'earliest' | 'latest'
  readonly session: number
  readonly block: number
  readonly ahead: number
  /** How many records are kept ready before reading pauses. */
  readonly buffer: number
  readonly maxCrashes: number
  readonly order: 'key' | 'partition'
  readonly create: TopicShape | undefined
  readonly decode: Decoder
  /** A record that is no message, and nothing that went wrong either. */
  readonly passesOver: (record: KafkaRecord) => boolean
  readonly client: KafkaClient
  readonly sender: Sender
  readonly withAdmin: <T>(work: (admin: KafkaAdmin) => Promise<T>) => Promise<T>
  readonly clock: Clock
}

/** So many bytes are kept ready before reading pauses, and what one fetch brings beyond. */
const BUFFER_BYTES = 16 * 1024 * 1024

/** Notes beside committed offsets, for whoever has the partition next. */
export const CLOSED = 'waybill closed'
const OPEN = 'waybill open'

export interface CommitMark {
  /** Whoever had the partition has not said goodbye. */
  readonly open: boolean
  /** The record that was out alone then, and the attempts it had spent. */
  readonly alone: { readonly offset: number; readonly attempts: number } | undefined
}

export function openMark(alone?: { offset: number; attempts: number }): string {
  return alone === undefined ? OPEN : `${OPEN} alone=${alone.offset} attempts=${alone.attempts}`
}

export function markOf(metadata: string): CommitMark {
  const found = /^waybill open(?: alone=(\d+) attempts=(\d+))?$/.exec(metadata)
  const [, offset, attempts] = found ?? []
  const alone = offset === undefined ? undefined : { offset: Number(offset), attempts: Number(attempts) }
  return { open: found !== null, alone }
}

/** Whoever takes from a member. */
export interface MemberListener {
  /** Something changed: records, a generation. */
  wake(): void
  /** The generation is over. */
  revoked(reason: string): void
  began(generation: Generation): void
  ended(error: unknown): void
}

/**
 * One member of a consumer group, through all its generations: what the client pushes is kept here until it is pulled.
 * When there is enough, the client waits, and its heart is kept beating.
 */
export class GroupMember implements ConsumerEvents {
  generation: Generation | undefined
  /** Why it is over. */
  end: unknown
  listener: MemberListener | undefined
  readonly #settings: GroupSettings
  readonly #consumer: Promise<KafkaConsumer>
  #connected: (consumer: KafkaConsumer) => void = () => {}
  #joins = 0
  #wereOurs: ReadonlySet<string>
  /** How long the group counts on us without a heartbeat. */
  readonly #lease: Lease
  #closing = false
  readonly #wakeup: Wakeup

  /** `wereOurs`: partitions of a member before, in this process: it did not crash with them. */
  constructor(settings: GroupSettings, wereOurs: ReadonlySet<string>) {
    this.#settings = settings
    this.#wakeup = new Wakeup(settings.clock)
    this.#wereOurs = wereOurs
    this.#lease = new Lease(settings.clock, settings.session)
    this.alive()
    this.#consumer = new Promise((resolve) => {
      this.#connected = resolve
    })
  }

  get heartbeatEvery(): number {
    return Math.max(50, Math.floor(this.#settings.session / 10))
  }

  /** Whether the group still counts on us, as far as we can know. */
  get live(): boolean {
    return this.generation !== undefined && this.#lease.live
  }

  /** Those that it has, or left without a word. */
  get partitions(): ReadonlySet<string> {
    return this.generation === undefined ? this.#wereOurs : new Set(this.generation.partitions.keys())
  }

  async join(): Promise<void> {
    const { client, group, topics, session, block } = this.#settings
    const heartbeat = this.heartbeatEvery
    const settings = { group, topics, session, heartbeat, block: Math.min(block, heartbeat) }
    this.#connected(await client.consumer(settings, this))
  }

  /** Waits until there is a generation, or no hope for one. */
  async ready(signal: AbortSignal): Promise<void> {
    while (this.generation === undefined && this.end === undefined && !signal.aborted)
      await this.#wakeup.pause(60_000, signal)
    if (this.end !== undefined) throw this.end
  }

  joined(places: readonly KafkaPlace[]): void {
    if (this.generation !== undefined) this.revoked('the group has been rebalanced')
    this.#joins++
    void this.#begin(places, this.#joins)
  }

  async #begin(places: readonly KafkaPlace[], join: number): Promise<void> {
    try {
      const consumer = await this.#consumer
      const generation = await beginGeneration(this.#settings, consumer, places, this.#wereOurs)
      if (join !== this.#joins || this.end !== undefined) return
      this.generation = generation
      this.#wereOurs = new Set(generation.partitions.keys())
      this.listener?.began(generation)
      this.wake()
    } catch (error) {
      if (join !== this.#joins || this.end !== undefined) return
      this.ended(error)
      void this.#leave()
    }
  }

  revoked(reason: string): void {
    this.#joins++
    const had = this.generation !== undefined
    this.generation = undefined
    if (had) this.listener?.revoked(reason)
    this.wake()
  }

  alive(): void {
    this.#lease.renewed(this.#lease.renewing(), true)
  }

  ended(error: unknown): void {
    if (this.end !== undefined) return
    this.end = error
    this.generation = undefined
    this.listener?.ended(error)
    this.wake()
  }

  skipped(place: KafkaPlace, next: number): void {
    const partition = this.generation?.partitions.get(placeKey(place))
    if (partition !== undefined && next > partition.position) partition.position = next
  }

  async records(batch: KafkaBatch): Promise<boolean> {
    const join = this.#joins
    await this.#beat(() => this.generation === undefined && this.end === undefined && join === this.#joins)
    const generation = this.generation
    const partition = generation?.partitions.get(placeKey(batch))
    if (generation === undefined || partition === undefined) return false
    if (batch.from !== partition.position && !(await this.#follow(partition, batch))) return false
    for (const record of batch.records) partition.offer(record)
    partition.position = batch.next
    await this.balance(partition)
    this.wake()
    await this.#beat(() => this.generation === generation && this.#isFull(generation))
    return this.generation === generation
  }

  /**
   * The client reads elsewhere. Once: an old fetch was on its way, and it is asked to seek. Twice at the same place:
   * the offset it was asked to seek to is gone.
   */
  async #follow(partition: AssignedPartition, { from }: KafkaBatch): Promise<boolean> {
    if (partition.strayed !== from) {
      partition.strayed = from
      ;(await this.#consumer).seek(partition, partition.position)
      return false
    }
    const { topic, partition: number, position } = partition
    const message = `${topic}/${number}: reading went on at ${from} instead of ${position}: the records between were deleted (retention), or the topic was made anew`
    telemetry.warning.publish({ where: this.#settings.where, message })
    partition.position = from
    return true
  }

  #isFull(generation: Generation): boolean {
    return generation.waiting >= this.#settings.buffer || generation.waitingBytes >= BUFFER_BYTES
  }

  /** A partition whose oldest record is not done for long is not read for ever. */
  async balance(partition: AssignedPartition): Promise<void> {
    const { ahead } = this.#settings
    const consumer = await this.#consumer
    // One of a generation that is over says nothing: the next would stay paused by it.
    if (!this.generation?.has(partition)) return
    if (!partition.paused && partition.ahead >= ahead) {
      partition.paused = true
      consumer.pause(partition)
    } else if (partition.paused && partition.ahead <= ahead >> 1) {
      partition.paused = false
      consumer.resume(partition)
    }
  }

  /** There is room again. What is passed over, or nobody can read, is done without being settled. */
  async readOn(): Promise<void> {
    for (const partition of this.generation?.partitions.values() ?? [])
      if (partition.paused) await this.balance(partition)
    this.wake()
  }

  /** Leaves the group, with a word for whoever comes next. */
  async close(): Promise<void> {
    if (this.#closing) return
    this.#closing = true
    const generation = this.generation
    if (generation !== undefined && this.end === undefined) {
      const heard = await generation.commitClosed().then(
        () => true,
        () => false,
      )
      // Whatever is unsettled there from now on is another's.
      if (heard && this.generation === generation) this.#wereOurs = new Set()
    }
    this.ended(new WaybillError('CLOSED', 'the consumer has left its group'))
    await this.#leave()
  }

  async #leave(): Promise<void> {
    try {
      await (await this.#consumer).close()
    } catch {
      // Who cannot say goodbye is missed after the session timeout.
    }
  }

  wake(): void {
    this.#wakeup.wake()
    this.listener?.wake()
  }

  /** Waits while `condition` holds, and keeps the membership. */
  async #beat(condition: () => boolean): Promise<void> {
    while (condition()) {
      await this.#wakeup.pause(this.heartbeatEvery)
      if (condition()) await (await this.#consumer).heartbeat()
    }
  }
}
