import type { BackoffOptions, Clock, Duration, OptionNames, Random } from '../core/index.ts'
import type { PublisherLike, RetryOptions, Source } from '../flow/index.ts'
import type { OutboxReader, ReaderKind } from './reader.ts'

/** What a relay reads from, publishes to, and how. */
export interface RelayOptions {
  /** The outbox; or any other source, such as a stream, which decides for itself who reads it. */
  from: OutboxReader | Source
  /** Where its events go: a publisher, or an async function that publishes one message. */
  to: PublisherLike
  name?: string
  /** `false`: it starts, publishes nothing, and says so; all of it goes out when it is on again. Default true. */
  enabled?: boolean
  /** `owner`: one relay reads at a time, in order per key (default). `lease`: many compete, without order. */
  reader?: ReaderKind
  /** Owners share the table by key: this many shards move between the relays that live. Default 1. */
  shards?: number
  /** How many events are taken at first, and at most while they come full. Default 100, growing to 1000 or to `batch`. */
  batch?: number
  maxBatch?: number
  /** How many batches are published at once. Default 2. */
  concurrency?: number
  /** How often an idle relay looks, doubling to `maxPoll`. Default 1 s and 5 s. */
  poll?: Duration
  maxPoll?: Duration
  /** How long the right to settle lasts without being renewed. Default 60 s, at least 100 ms and at most 24 days. */
  lease?: Duration
  /**
   * How an event is tried again, before it is dead, and what becomes of its key then. `classify` says what an error of a
   * plain function given as `to` means; a publisher says so itself.
   */
  retry?: RetryOptions
  /** Between probes while the destination is down. Default 200 ms doubling to 30 s. */
  outage?: BackoffOptions
  /** Removes events once they are published, instead of keeping them for the cleaner. */
  deleteOnPublish?: boolean
  /** Be woken by writers, beside polling. Default true. */
  wake?: boolean
  /** How long publishing a batch may take; then nobody is charged, and it is tried again. Default 60 s; `false`: for ever. */
  timeout?: Duration | false
  /** How long what is being published may take when the relay is stopped. Default 10 s. */
  grace?: Duration
  clock?: Clock
  random?: Random
}

export const RELAY_OPTIONS: OptionNames<RelayOptions> = {
  from: true,
  to: true,
  name: true,
  enabled: true,
  reader: true,
  shards: true,
  batch: true,
  maxBatch: true,
  concurrency: true,
  poll: true,
  maxPoll: true,
  lease: true,
  retry: true,
  outage: true,
  deleteOnPublish: true,
  wake: true,
  timeout: true,
  grace: true,
  clock: true,
  random: true,
}

/** What is meant where an option is not given. Those of `retry` and `outage` are in RETRY_DEFAULTS. */
export const RELAY_DEFAULTS = {
  reader: 'auto',
  shards: 1,
  batch: 100,
  /** While batches come full; `batch` itself where that is larger. */
  maxBatch: 1000,
  concurrency: 2,
  poll: '1s',
  maxPoll: '5s',
  lease: '60s',
  deleteOnPublish: false,
  wake: true,
  grace: '10s',
} as const

/** 24 days: servers and timers count milliseconds in 32 bits, and an answer that is waited for no time at all never comes. */
export const LONGEST_LEASE = 24 * 86_400_000
