/**
 * Kafka as we need it: a few promises that any client library can keep. `kafka-js.ts` keeps them with kafkajs; a client
 * of your own is an object of this shape.
 */
import { Unavailable, WaybillError } from '../../core/index.ts'

export type KafkaBytes = Uint8Array

/** Header values as they come: a name that stands there several times has a list. */
export type KafkaHeaders = Readonly<Record<string, KafkaHeader | readonly KafkaHeader[] | undefined>>
export type KafkaHeader = string | KafkaBytes

/** A record on its way to the server. */
export interface OutgoingRecord {
  readonly topic: string
  readonly key: KafkaBytes | null
  /** `null`: to a compacted topic, the deletion of what has the same key. */
  readonly value: KafkaBytes | null
  readonly headers: KafkaHeaders
  /** Chosen by `partitionOf` when it is first sent, and kept: a retry that goes elsewhere is no repetition. */
  partition?: number
}

/** A record as the server has it. */
export interface KafkaRecord {
  readonly offset: number
  readonly key: KafkaBytes | null
  readonly value: KafkaBytes | null
  readonly headers: KafkaHeaders
}

/** Records of one partition, in order, and from where to where they are all there is. */
export interface KafkaBatch {
  readonly topic: string
  readonly partition: number
  /** The offset that was asked for. */
  readonly from: number
  /** The offset after the last: compacted and control records at the end are passed over. */
  readonly next: number
  readonly records: readonly KafkaRecord[]
}

/** A topic and a partition. */
export interface KafkaPlace {
  readonly topic: string
  readonly partition: number
}

/** How far a group is in a partition: the offset of the next record it needs, and a note of whoever said so. */
export interface KafkaOffset extends KafkaPlace {
  readonly offset: number
  readonly metadata: string
}

/** What a Kafka producer is made with. */
export interface ProducerSettings {
  /** The partition of a record, of so many. */
  partitionOf(record: OutgoingRecord, partitions: number): number
  /** Milliseconds the server may wait for its replicas. */
  readonly timeout: number
  /** Where its first records go. What is wrong with other topics is no concern of it. */
  readonly topics: readonly string[]
}

/** Idempotent, acknowledged by every replica in sync, one request at a time. */
export interface KafkaProducer {
  /**
   * Resolves when the server has all of them. A rejection says nothing about any of them, and the producer must not be
   * used again: its sequence numbers may be those of records that arrived.
   */
  send(records: readonly OutgoingRecord[]): Promise<void>
  close(): Promise<void>
}

/** What a Kafka consumer is made with. */
export interface ConsumerSettings {
  readonly group: string
  readonly topics: readonly string[]
  /** Milliseconds without a heartbeat after which the group goes on without us. */
  readonly session: number
  readonly heartbeat: number
  /** Milliseconds the server may wait for records. */
  readonly block: number
}

/**
 * What a consumer sees. A generation lasts from `joined` to `revoked`; after `ended` nothing more comes. Each begins
 * where the group has committed, or at the beginning of a partition where it has not, unless `seek` says otherwise; and
 * with no partition paused.
 */
export interface ConsumerEvents {
  joined(partitions: readonly KafkaPlace[]): void
  revoked(reason: string): void
  /** The coordinator has heard of us in time. */
  alive(): void
  /**
   * No more come before this resolves: that is the backpressure. `false`: they are not what was expected and do not
   * count as read; the consumer has been moved by `seek`.
   */
  records(batch: KafkaBatch): Promise<boolean>
  /** Nothing but control or aborted records up to here. */
  skipped(place: KafkaPlace, next: number): void
  ended(error: unknown): void
}

/** The few methods of a Kafka consumer that are called. */
export interface KafkaConsumer {
  /** In the present generation only: STALE_GENERATION otherwise. Resolves when the group has it. */
  commit(offsets: readonly KafkaOffset[]): Promise<void>
  seek(place: KafkaPlace, offset: number): void
  pause(place: KafkaPlace): void
  resume(place: KafkaPlace): void
  /** Keeps the membership while `records` waits. */
  heartbeat(): Promise<void>
  /** Leaves the group. */
  close(): Promise<void>
}

/** A topic that is to be made. */
export interface NewTopic {
  readonly topic: string
  readonly partitions: number
  readonly replication: number
  readonly settings?: Readonly<Record<string, string>>
}

/** How a topic is kept. What is absent is not known. */
export interface KeptTopic {
  readonly topic: string
  /** The fewest copies that a partition of it has. */
  readonly replication: number
  /** The server's own settings by name, such as `cleanup.policy`. */
  readonly settings: Readonly<Record<string, string>>
}

/** The few methods of a Kafka admin client that are called. */
export interface KafkaAdmin {
  /** How many partitions each has. One that does not exist is left out. */
  partitions(topics: readonly string[]): Promise<ReadonlyMap<string, number>>
  /** Those that exist already are left as they are. */
  create(topics: readonly NewTopic[]): Promise<void>
  /** The first and the next offset of every partition. */
  bounds(topic: string): Promise<readonly { partition: number; low: number; high: number }[]>
  /** What the group has committed; partitions where it has not are left out. */
  committed(group: string, topics: readonly string[]): Promise<readonly KafkaOffset[]>
  deleteGroup(group: string): Promise<void>
  /** How these are kept, as far as this user may know. Absent: nobody is warned of settings that lose records. */
  kept?(topics: readonly string[]): Promise<readonly KeptTopic[]>
  close(): Promise<void>
}

/** The few methods of a Kafka client that are called. */
export interface KafkaClient {
  readonly driver: string
  /** Connected, with a producer id of its own. */
  producer(settings: ProducerSettings): Promise<KafkaProducer>
  /** Resolves when it has joined the group. */
  consumer(settings: ConsumerSettings, events: ConsumerEvents): Promise<KafkaConsumer>
  admin(): Promise<KafkaAdmin>
}

/** Codes a driver gives to what the server refused. Anything else is `Unavailable`. */
export type KafkaRefusal = 'MESSAGE_TOO_LARGE' | 'INVALID_RECORD' | 'UNKNOWN_TOPIC' | 'NOT_ALLOWED' | 'STALE_GENERATION'

export function refusal(code: KafkaRefusal, message: string, cause?: unknown): WaybillError {
  return new WaybillError(code, message, cause === undefined ? undefined : { cause })
}

export function isRefusal(error: unknown, code: KafkaRefusal): boolean {
  return error instanceof WaybillError && error.code === code
}

/** The server refuses a record for what it is: nobody need wait for anything. */
export function isOwnFault(error: unknown): error is WaybillError {
  return isRefusal(error, 'MESSAGE_TOO_LARGE') || isRefusal(error, 'INVALID_RECORD')
}

export function unavailable(what: string, cause: unknown): Unavailable {
  const text = cause instanceof Error ? cause.message : String(cause)
  return new Unavailable(`${what}: ${text}`, { cause })
}

/** A partition has no leader at present: its topic is away, and the server is there. */
export function leaderless(what: string, cause: Error): Unavailable {
  return new Unavailable(`${what}: ${cause.message}`, { cause, code: 'NO_LEADER' })
}

export function isLeaderless(error: unknown): boolean {
  return error instanceof Unavailable && error.code === 'NO_LEADER'
}
