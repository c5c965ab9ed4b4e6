import { describe, type Local, local, type Message, type RawMessage, WaybillError } from '../core/index.ts'
import { isMessage } from '../core/message.ts'
import type { RetryOptions } from './retry-policy.ts'

/**
 * What becomes of a delivery. The words are the same for every source.
 * - `done`: handled; it never comes again.
 * - `retry`: it comes again after `after` milliseconds; `charged` says whether an attempt is spent.
 * - `dead`: kept aside with the reason, until a person re-arms or discards it.
 * - `release`: given back untouched, as if it had never been taken.
 */
export type Settlement =
  | { readonly kind: 'done' }
  | { readonly kind: 'retry'; readonly after: number; readonly error: unknown; readonly charged: boolean }
  | { readonly kind: 'dead'; readonly reason: string; readonly error: unknown }
  | { readonly kind: 'release' }

/** It was handled. */
export const DONE: Settlement = Object.freeze({ kind: 'done' })
/** It is given back as it was: no attempt is spent. */
export const RELEASE: Settlement = Object.freeze({ kind: 'release' })

/**
 * A message that was taken, and what the source must remember to settle it. Sources extend it with fields of their own;
 * nobody else reads those.
 */
export interface Delivery<M extends Message = RawMessage> {
  readonly message: M
  /** Deliveries of one key are in flight one at a time. `undefined`: no order, full parallelism. */
  readonly key: string | undefined
  /** Attempts spent before this one: 0 at first. */
  attempts: number
  /** What it counts against the byte limits. */
  readonly size: number
  /** Where it was sent: a routing key, a Kafka topic, a subject. Absent: what the message itself says. */
  readonly topic?: string
  /** When it was created, in milliseconds since 1970, by the clock that the session's `now` shows. */
  readonly created?: number
}

/** A delivery, and what is to be written about it. */
export type Settled<D> = readonly [delivery: D, settlement: Settlement]

/** How much to take at most. At least one delivery is given even when it alone is larger than `bytes`. */
export interface Demand {
  readonly count: number
  readonly bytes: number
  /** If this one comes full, a take of up to so many follows as soon as there is room: a source may begin with it. */
  readonly prefetch?: number
  /**
   * Keys of which enough is here already, for sources that `leavesOut`: others are to come in, and theirs can wait. Only
   * for this take; order per key is kept, so whatever of them is left out comes first when they are asked for again.
   */
  readonly without?: ReadonlySet<string>
}

/**
 * The scope in which a settlement counts: an owner's epoch, a lease, an AMQP channel, a Kafka generation.
 * When it is lost, nothing taken in it can be settled any more and everything unsettled comes again elsewhere.
 */
export interface Session<D extends Delivery<Message> = Delivery> {
  /** Aborted when the scope is gone. The reason says why. */
  readonly lost: AbortSignal

  /**
   * Whether dispatching is still safe at this very moment. Asked before every dispatch, since a process that was
   * suspended wakes up past its deadline before any timer fires. Absent: safe until `lost`.
   */
  live?(): boolean

  /**
   * Up to `demand` deliveries that are due now. It may wait a little for them (until `signal`), or return an empty
   * list at once. One that is not settled is not given a second time. A rejection means the source is in trouble: the
   * flow backs off and asks again.
   */
  take(demand: Demand, signal: AbortSignal): Promise<readonly D[]>

  /** Resolves when there may be something to take, or after `ms`, or on `signal`. Absent: the flow sleeps. */
  wait?(ms: number, signal: AbortSignal): Promise<void>

  /**
   * Writes the settlements, in this order, as one step as far as the store can, and returns how many were stale:
   * they changed nothing because the right to settle had passed on. A rejection means the outcome is unknown; the
   * flow calls again with the same batch, so settling twice must be harmless. When it keeps being rejected, or the error
   * is permanent, the batch comes again in parts, and the one that is refused alone as `dead` (decision 0030). Never
   * given a signal: a cancelled receive does not stop the ack of finished work. `dead` is kept where a person can find
   * and re-arm it.
   */
  settle(batch: readonly Settled<D>[]): Promise<number>

  /** Renews the right to what is not settled; called every `extendEvery` milliseconds. */
  extend?(deliveries: readonly D[]): Promise<void>
  readonly extendEvery?: number

  /**
   * True when the session before this one ended without being closed: something may have killed it. The flow then
   * starts with one message at a time, and calls `recordProbe` before it dispatches one alone, so that the next session
   * knows whom to charge if this one dies too.
   */
  readonly afterCrash?: boolean
  recordProbe?(delivery: D): Promise<void>

  /** The store's own clock, in milliseconds since 1970. Absent: nobody knows how long messages have waited. */
  now?(): number

  /** Gives back the scope. Whatever was not settled is as if it had never been taken. */
  close(): Promise<void>
}

/** What a source can do beyond taking and settling. What is absent is false. */
export interface SourceFeatures {
  /** After a `retry` it gives the message again itself, after the delay. Otherwise the flow keeps it and waits. */
  readonly redelivers?: boolean
  /**
   * While a message of a key waits for its retry, later ones of that key are held back. Those that were taken behind it
   * are given back with it, in one call of `settle`; those that come too late, before the next take begins.
   */
  readonly holdsKeys?: boolean
  /** It heeds `without` of a demand: one hot key then does not fill the flow's buffer. */
  readonly leavesOut?: boolean
}

/** What is usual for a kind of source. A flow does so unless its own options say otherwise. */
export interface SourceDefaults {
  readonly concurrency?: number
  readonly retry?: RetryOptions
  /** How long one message may take, in milliseconds. */
  readonly timeout?: number
}

/** For whom somebody waits, in a sentence, and until when at most unless the other renews its right. */
export interface Waits {
  readonly reason: string
  readonly until: Date
}

/**
 * Where messages come from. Opening may fail; the flow backs off and tries again. `undefined` is no failure: another
 * has the right to read at present, and the flow asks again after its poll interval.
 */
export interface Source<D extends Delivery<Message> = Delivery> {
  readonly name: string
  /** The broker, as `messaging.system` of OpenTelemetry names it. Only traces say it. */
  readonly system?: string
  readonly features: SourceFeatures
  readonly defaults?: SourceDefaults
  /**
   * Called by `start`, before the first `open`: rejects with what no waiting can mend, such as wrong credentials, and that
   * is the error of `start`. A server that is only away is for `open`, which is tried again.
   */
  check?(signal: AbortSignal): Promise<void>
  open(signal: AbortSignal): Promise<Session<D> | undefined>
  /** Why `open` gave `undefined` the last time: who may read, and until when. */
  waiting?(): Waits | undefined
  /** Whoever has a session of it reports for the whole table, of which it may be a part. */
  readonly leads?: boolean
}

/** What a decoder has made, if it is a message: a flow could neither handle nor settle anything else. */
export function decodedMessage(made: RawMessage): RawMessage {
  if (isMessage(made)) return made
  throw new WaybillError(
    'MALFORMED_MESSAGE',
    `decode returned ${describe(made)}; it must return a message with an id and a type`,
  )
}

const TOPIC: Local<string> = local('topic')

/** Where a message is to go, as whoever sent it said. It travels beside the message, never within it. */
export function topicOf(message: Message): string {
  return message.local(TOPIC) ?? message.type
}

/** The topic, routing key or subject of a delivery, for logs and traces. */
export function topicOfDelivery({ topic, message }: { topic?: string; message: Message }): string {
  return topic ?? topicOf(message)
}

/** Says where a message goes, within this process. */
export function setTopic(message: Message, topic: string): void {
  if (topic !== message.type) message.setLocal(TOPIC, topic)
}

/** Takes from the front of `buffer` what a demand has room for, and at least one if there is any. */
export function takeFrom<D extends Delivery>(buffer: D[], { count, bytes }: Demand): D[] {
  const most = Math.min(Math.max(1, count), buffer.length)
  let given = Math.min(1, most)
  for (let size = buffer[0]?.size ?? 0; given < most; given++) {
    size += buffer[given]!.size
    if (size > bytes) break
  }
  return buffer.splice(0, given)
}
