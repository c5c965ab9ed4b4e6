import type { ConsumerEvents, ConsumerSettings, KafkaBatch, KafkaConsumer, KafkaOffset, KafkaPlace } from './kafka.ts'
import { refusal } from './kafka.ts'
import { subscriptionAssigner } from './kafka-js-assigner.ts'
import { translated } from './kafka-js-errors.ts'
import type { KafkaJs, KafkaJsBatch, KafkaJsConsumer, KafkaJsPayload } from './kafka-js-shapes.ts'

/**
 * kafkajs pushes: it fetches, calls `eachBatch`, and fetches on when that is done. It beats its heart between batches
 * only, and joins again by itself. Where it reads is its own affair until we seek; what it commits is ours alone.
 */
export async function kafkaJsConsumer(
  kafka: KafkaJs,
  settings: ConsumerSettings,
  events: ConsumerEvents,
  retry: object,
): Promise<KafkaConsumer> {
  const inner = kafka.consumer({
    groupId: settings.group,
    sessionTimeout: settings.session,
    heartbeatInterval: settings.heartbeat,
    maxWaitTimeInMs: settings.block,
    allowAutoTopicCreation: false,
    partitionAssigners: [subscriptionAssigner],
    // After a crash it is we who begin anew, with a pause that grows.
    retry: { ...retry, restartOnFailure: async () => false },
  })
  const consumer = new KafkaJsMember(inner, events)
  try {
    await inner.connect()
    await inner.subscribe({ topics: [...settings.topics], fromBeginning: true })
    await inner.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: consumer.eachBatch })
    consumer.checkAlive()
  } catch (error) {
    await inner.disconnect().catch(() => {})
    throw translated(`cannot join group ${settings.group}`, error)
  }
  return consumer
}

class KafkaJsMember implements KafkaConsumer {
  readonly #inner: KafkaJsConsumer
  readonly #events: ConsumerEvents
  #generation = 0
  /** Of the batch that is being handed over. */
  #payload: KafkaJsPayload | undefined
  /** Commits without retries, in the generation of the call: kafkajs would repeat an old commit in a new generation. */
  #commit: KafkaJsPayload['commitOffsetsIfNecessary'] | undefined
  #interrupt: (error: unknown) => void = () => {}
  #ended: { readonly error: unknown } | undefined

  constructor(inner: KafkaJsConsumer, events: ConsumerEvents) {
    this.#inner = inner
    this.#events = events
    const { GROUP_JOIN, REBALANCING, HEARTBEAT, CRASH, END_BATCH_PROCESS } = inner.events
    this.#on<{ memberAssignment: Record<string, number[]> }>(GROUP_JOIN!, ({ memberAssignment }) => {
      this.#begin()
      events.alive()
      const assigned = Object.entries(memberAssignment)
      // kafkajs keeps a pause across generations, and nobody of the next one knows of it.
      inner.resume(assigned.map(([topic, partitions]) => ({ topic, partitions })))
      events.joined(assigned.flatMap(([topic, partitions]) => partitions.map((partition) => ({ topic, partition }))))
    })
    this.#on(REBALANCING!, () => {
      this.#begin()
      events.revoked('the group is rebalancing')
    })
    this.#on(HEARTBEAT!, () => events.alive())
    this.#on<{ error: unknown }>(CRASH!, ({ error }) => this.#end(translated('the consumer gave up', error)))
    this.#on<{ topic: string; partition: number; batchSize: number; lastOffset: string }>(
      END_BATCH_PROCESS!,
      ({ topic, partition, batchSize, lastOffset }) => {
        if (batchSize === 0) events.skipped({ topic, partition }, Number(lastOffset) + 1)
      },
    )
  }

  /** `run` resolves even when it has failed. */
  checkAlive(): void {
    if (this.#ended !== undefined) throw this.#ended.error
  }

  readonly eachBatch = async (payload: KafkaJsPayload): Promise<void> => {
    const generation = this.#generation
    this.#payload = payload
    this.#commit = (offsets) => payload.commitOffsetsIfNecessary(offsets)
    const interrupted = new Promise<never>((_, reject) => {
      this.#interrupt = reject
    })
    interrupted.catch(() => {})
    const { batch } = payload
    // Not a deadline: a rebalance interrupts. Both promises are of this batch alone, so nothing stays in memory.
    const taken = await Promise.race([this.#events.records(batchOf(batch)), interrupted])
    this.#payload = undefined
    if (taken && generation === this.#generation) payload.resolveOffset(batch.lastOffset())
  }

  async commit(offsets: readonly KafkaOffset[]): Promise<void> {
    const generation = this.#generation
    const flat = offsets.map((offset) => ({ ...offset, offset: String(offset.offset) }))
    try {
      if (this.#ended !== undefined) throw refusal('STALE_GENERATION', 'the consumer has left its group')
      if (this.#commit === undefined) await this.#inner.commitOffsets(flat)
      else await this.#commit({ topics: byTopic(flat) })
    } catch (error) {
      throw translated('the offsets were not committed', error)
    }
    if (generation !== this.#generation) throw refusal('STALE_GENERATION', 'the group has been rebalanced meanwhile')
  }

  seek({ topic, partition }: KafkaPlace, offset: number): void {
    if (this.#ended === undefined) this.#inner.seek({ topic, partition, offset: String(offset) })
  }

  pause({ topic, partition }: KafkaPlace): void {
    if (this.#ended === undefined) this.#inner.pause([{ topic, partitions: [partition] }])
  }

  resume({ topic, partition }: KafkaPlace): void {
    if (this.#ended === undefined) this.#inner.resume([{ topic, partitions: [partition] }])
  }

  async heartbeat(): Promise<void> {
    try {
      await this.#payload?.heartbeat()
    } catch (error) {
      // It is for kafkajs to join again, and it does when its callback fails with its own error.
      this.#interrupt(error)
    }
  }

  async close(): Promise<void> {
    this.#ended ??= { error: refusal('STALE_GENERATION', 'the consumer has left its group') }
    await this.#inner.disconnect()
  }

  #begin(): void {
    this.#generation++
    this.#commit = undefined
  }

  #end(error: unknown): void {
    if (this.#ended !== undefined) return
    this.#ended = { error }
    this.#generation++
    this.#events.ended(error)
  }

  #on<Payload>(event: string, listener: (payload: Payload) => void): void {
    this.#inner.on(event, ({ payload }) => listener(payload))
  }
}

function byTopic<P extends KafkaPlace>(places: readonly P[]): { topic: string; partitions: P[] }[] {
  const topics = [...new Set(places.map(({ topic }) => topic))]
  return topics.map((topic) => ({ topic, partitions: places.filter((place) => place.topic === topic) }))
}

function batchOf(batch: KafkaJsBatch): KafkaBatch {
  return {
    topic: batch.topic,
    partition: batch.partition,
    from: Number(batch.fetchedOffset),
    next: Number(batch.lastOffset()) + 1,
    records: batch.messages.map(({ offset, key, value, headers = {} }) => ({
      offset: Number(offset),
      key,
      value,
      headers,
    })),
  }
}
