import type { ConsumeOptions, Publisher, Source } from 'waybill'

/** An event as a loop without Waybill has it: read from the outbox, or made in memory. */
export interface BareEvent {
  readonly id: string
  readonly topic: string
  readonly key: string
  readonly source: string
  readonly type: string
  readonly version: string
  readonly time: string
  /** JSON. */
  readonly data: string
}

export interface BarePublisher {
  /** Resolves when the broker has said of each that it has it; rejects when it has not. */
  publish(events: readonly BareEvent[]): Promise<unknown>
  close(): Promise<unknown>
}

/** Our side of consuming: a source, and what it is told beyond its defaults. */
export interface OurSource {
  readonly source: Source
  readonly consume: ConsumeOptions
  close(): Promise<unknown>
}

/** Looks from outside: sets the stage for a round, and sees whether all was done. */
export interface Stage {
  /** Nothing is there that an earlier round published. */
  empty(): Promise<unknown>
  /** How many messages were published since. */
  count(): Promise<number>
  /** Before a round of consuming: so many messages wait for `group`. */
  fill(group: string, events: number): Promise<unknown>
  /** Where messages do not wait but are sent: sends them, while the round goes on. */
  load?(): Promise<unknown>
  /** Afterwards: how many of them are not acknowledged. */
  left(group: string): Promise<number>
  close(): Promise<unknown>
}

export type Role = 'publish' | 'consume'

/** What the benchmark needs of one broker. Names of groups are new in every round. */
export interface BrokerBench {
  readonly name: string
  /** In the catalog of servers. */
  readonly server: string | undefined
  /** How each side is set up, for people. */
  readonly how: Readonly<Record<'ours publish' | 'bare publish' | 'ours consume' | 'bare consume', string>>
  stage(url: string, role: Role): Promise<Stage>
  publisher(url: string, tuned: boolean): Publisher
  barePublisher(url: string): Promise<BarePublisher>
  source(url: string, group: string, tuned: boolean): OurSource
  /** Calls `onEvent` for each message handled; returns how to stop, which acknowledges what is not yet. */
  bareConsume(url: string, group: string, onEvent: () => void): Promise<() => Promise<unknown>>
}

/** How many unsettled messages a consumer may have, for all: enough that nobody waits for acks. */
export const ROOM = { concurrency: 1000, take: 1000, buffer: { count: 4000 } } as const

/** Attributes as headers of CloudEvents in binary mode, the same that Waybill sends. */
export function headersOf(event: BareEvent, prefix: string): Record<string, string> {
  return {
    'content-type': 'application/json',
    [`${prefix}specversion`]: '1.0',
    [`${prefix}id`]: event.id,
    [`${prefix}source`]: event.source,
    [`${prefix}type`]: event.type,
    [`${prefix}time`]: event.time,
    [`${prefix}eventversion`]: event.version,
    [`${prefix}partitionkey`]: event.key,
  }
}

/** The handler of a loop without Waybill: the data is looked at, as a handler's is. */
export function bareHandler(data: string): void {
  if (typeof JSON.parse(data).orderId !== 'string') throw new Error('not an order')
}
