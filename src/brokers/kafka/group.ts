import type { Clock } from '../../core/index.ts'
import type { KafkaAdmin, KafkaClient } from '../../drivers/kafka/kafka.ts'
import type { Decoder } from './encoding.ts'
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
  readonly stock: number
  readonly attempts: number
  readonly order: 'key' | 'partition'
  readonly create: TopicShape | undefined
  readonly decode: Decoder
  readonly client: KafkaClient
  readonly sender: Sender
  readonly withAdmin: <T>(work: (admin: KafkaAdmin) => Promise<T>) => Promise<T>
  readonly clock: Clock
}

/** Notes beside committed offsets, for whoever has the partition next. */
export const CLOSED = 'waybill closed'
const OPEN = 'waybill open'

export interface Mark {
  /** Whoever had the partition has not said goodbye. */
  readonly open: boolean
  /** The record that was in hand alone then, and the attempts it had spent. */
  readonly alone: { readonly offset: number; readonly attempts: number } | undefined
}

export function openMark(alone?: { offset: number; attempts: number }): string {
  return alone === undefined ? OPEN : `${OPEN} alone=${alone.offset} attempts=${alone.attempts}`
}

export function markOf(metadata: string): Mark {
  const found = /^waybill open(?: alone=(\d+) attempts=(\d+))?$/.exec(metadata)
  const [, offset, attempts] = found ?? []
  const alone = offset === undefined ? undefined : { offset: Number(offset), attempts: Number(attempts) }
  return { open: found !== null, alone }
}
