import type { JetStreamApi } from './api.ts'
import type { GroupSettings } from './member.ts'

/** How a group stands. */
export interface NatsStats {
  readonly stream: string
  /** Messages in the stream, handled or not. */
  readonly length: number
  /** Messages the group has not been given yet. */
  readonly lag: number
  /** Given and not settled: in somebody's hand, or waiting for the next try. JetStream does not part them. */
  readonly pending: number
  readonly dead: number
}

export async function statsOf({ stream, group, dead }: GroupSettings, api: JetStreamApi): Promise<NatsStats> {
  const [info, consumer, letters] = await Promise.all([
    api.stream(stream),
    api.consumer(stream, group),
    api.stream(dead, `${dead}.letter.${group}.*`),
  ])
  return {
    stream,
    length: info?.state.messages ?? 0,
    lag: consumer?.num_pending ?? 0,
    pending: consumer?.num_ack_pending ?? 0,
    dead: Object.keys(letters?.state.subjects ?? {}).length,
  }
}
