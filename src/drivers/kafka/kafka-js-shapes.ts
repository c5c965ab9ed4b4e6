/** The few methods of kafkajs 2 that we call. */
import type { KafkaHeaders } from './kafka.ts'

export interface KafkaJs {
  producer(options: object): KafkaJsProducer
  consumer(options: object): KafkaJsConsumer
  admin(options: object): KafkaJsAdmin
}

export interface KafkaJsMessage {
  key: Uint8Array | null
  value: Uint8Array | null
  headers: KafkaHeaders
  partition?: number | undefined
}

export interface KafkaJsProducer {
  connect(): Promise<void>
  disconnect(): Promise<void>
  sendBatch(batch: {
    acks: number
    timeout: number
    topicMessages: { topic: string; messages: KafkaJsMessage[] }[]
  }): Promise<{ topicName: string; partition: number; errorCode: number }[]>
}

export interface KafkaJsBatch {
  topic: string
  partition: number
  fetchedOffset: string
  messages: { offset: string; key: Uint8Array | null; value: Uint8Array | null; headers?: KafkaHeaders }[]
  lastOffset(): string
}

export interface KafkaJsPayload {
  batch: KafkaJsBatch
  resolveOffset(offset: string): void
  heartbeat(): Promise<void>
  commitOffsetsIfNecessary(offsets: {
    topics: { topic: string; partitions: { partition: number; offset: string; metadata: string }[] }[]
  }): Promise<void>
}

export interface KafkaJsConsumer {
  readonly events: Readonly<Record<string, string>>
  on(event: string, listener: (event: { payload: never }) => void): void
  connect(): Promise<void>
  disconnect(): Promise<void>
  subscribe(options: { topics: string[]; fromBeginning: boolean }): Promise<void>
  run(options: {
    autoCommit: boolean
    eachBatchAutoResolve: boolean
    eachBatch: (payload: KafkaJsPayload) => Promise<void>
  }): Promise<void>
  commitOffsets(offsets: { topic: string; partition: number; offset: string; metadata: string }[]): Promise<void>
  seek(place: { topic: string; partition: number; offset: string }): void
  pause(topics: { topic: string; partitions: number[] }[]): void
  resume(topics: { topic: string; partitions: number[] }[]): void
}

export interface KafkaJsAdmin {
  connect(): Promise<void>
  disconnect(): Promise<void>
  fetchTopicMetadata(options: {
    topics: string[]
  }): Promise<{ topics: { name: string; partitions: { replicas: unknown[] }[] }[] }>
  describeConfigs(options: {
    includeSynonyms: boolean
    resources: { type: number; name: string; configNames: string[] }[]
  }): Promise<{ resources: { resourceName: string; configEntries: { configName: string; configValue: string }[] }[] }>
  createTopics(options: {
    waitForLeaders: boolean
    topics: {
      topic: string
      numPartitions: number
      replicationFactor: number
      configEntries: { name: string; value: string }[]
    }[]
  }): Promise<boolean>
  fetchTopicOffsets(topic: string): Promise<{ partition: number; high: string; low: string }[]>
  fetchOffsets(options: {
    groupId: string
    topics: string[]
  }): Promise<{ topic: string; partitions: { partition: number; offset: string; metadata: string | null }[] }[]>
  deleteGroups(groups: string[]): Promise<unknown>
}
