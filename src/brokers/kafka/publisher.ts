import { encodeData, type RawMessage, startError, Unavailable, WaybillError } from '../../core/index.ts'
import {
  isLeaderless,
  isOwnFault,
  isRefusal,
  type KafkaAdmin,
  type OutgoingRecord,
  refusal,
} from '../../drivers/kafka/kafka.ts'
import { OK, type Outcome, outcomeOf, type Publisher } from '../../flow/index.ts'
import { type Encoder, sizeOf } from './encoding.ts'
import type { Sender } from './sender.ts'
import { REFUSED_LOGIN, warnOfTopics } from './setup.ts'

/** One request holds at most so many: kafkajs sorts them in quadratic time. */
const AT_ONCE = 1000

/** `socket.request.max.bytes`: the server hangs up on what is larger, and it would look like an outage. */
const LARGEST_REQUEST = 100 * 1024 * 1024

export interface PublisherSettings {
  readonly name: string
  readonly sender: Sender
  /** Throws for a name that no topic can have. */
  readonly topicOf: (message: RawMessage) => string
  /** The one topic for all, where there is one: what is wrong with it is no message's fault. */
  readonly fixed: string | undefined
  readonly keyOf: (message: RawMessage) => string | undefined
  readonly encode: Encoder
  /** How many bytes one request may hold; a larger message goes alone. */
  readonly batchBytes: number
  /** Runs once, with a connection: makes topics, or looks whether they are there. */
  readonly prepare: () => Promise<void>
  readonly withAdmin: <T>(work: (admin: KafkaAdmin) => Promise<T>) => Promise<T>
}

/** One call of publish, and the outcomes known so far. */
interface PublishCall {
  readonly outcomes: (Outcome | undefined)[]
  /** Keys of which one did not arrive: nothing after it may. */
  stopped: Set<string> | undefined
  left: number
  resolve(): void
}

/** A message on its way: its place in its call, and its record. */
interface Item {
  readonly call: PublishCall
  readonly at: number
  readonly message: RawMessage
  readonly key: string | undefined
  readonly record: OutgoingRecord
  readonly size: number
}

/**
 * Batches to an idempotent producer, acknowledged by every replica in sync. Requests go one after the other, so that
 * runs of one key arrive in order; what is published meanwhile gathers for the next.
 */
export class KafkaPublisher implements Publisher {
  readonly name: string
  readonly system = 'kafka'
  readonly features = { ordered: true } as const
  readonly #settings: PublisherSettings
  /** Topics that have been seen. */
  readonly #known = new Set<string>()
  #queue: Item[] = []
  #sending = false
  #prepared: Promise<void> | undefined

  constructor(settings: PublisherSettings) {
    this.name = settings.name
    this.#settings = settings
  }

  async start(): Promise<void> {
    try {
      await this.#prepare()
      const { sender, fixed } = this.#settings
      await sender.start(fixed === undefined ? [] : [fixed])
    } catch (error) {
      throw startError(error, REFUSED_LOGIN)
    }
  }

  async publish(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    if (messages.length === 0) return []
    await this.#prepare()
    const { promise, resolve } = withResolver()
    const call: PublishCall = {
      outcomes: new Array(messages.length),
      stopped: undefined,
      left: messages.length,
      resolve,
    }
    for (const [at, message] of messages.entries()) this.#add(call, message, at)
    void this.#drain()
    await promise
    return call.outcomes as Outcome[]
  }

  async close(): Promise<void> {
    await this.#settings.sender.close()
  }

  async #prepare(): Promise<void> {
    this.#prepared ??= this.#settings.prepare()
    try {
      await this.#prepared
    } catch (error) {
      this.#prepared = undefined
      throw error
    }
  }

  #add(call: PublishCall, message: RawMessage, at: number): void {
    const { keyOf, topicOf, encode } = this.#settings
    let item: Item | undefined
    try {
      const key = keyOf(message)
      const record = encode(encodeData(message), topicOf(message), key)
      item = { call, at, message, key, record, size: sizeOf(record) }
    } catch (error) {
      answer(call, at, message.key, outcomeOf(error))
      return
    }
    if (item.size < LARGEST_REQUEST) this.#queue.push(item)
    else refuse(item, 'rejected', tooLarge(item))
  }

  async #drain(): Promise<void> {
    if (this.#sending) return
    this.#sending = true
    while (this.#queue.length > 0) await this.#send(this.#chunk())
    this.#sending = false
  }

  /** What may go out in one request, from the front. */
  #chunk(): readonly Item[] {
    // In one request records to different partitions share no fate: a key stays in one topic.
    const topics = new Map<string, string>()
    let bytes = 0
    let count = 0
    for (const { key, record, size } of this.#queue) {
      if (count > 0 && (count >= AT_ONCE || bytes + size > this.#settings.batchBytes)) break
      if (key !== undefined) {
        if ((topics.get(key) ?? record.topic) !== record.topic) break
        topics.set(key, record.topic)
      }
      bytes += size
      count++
    }
    return this.#queue.splice(0, count)
  }

  async #send(chunk: readonly Item[]): Promise<void> {
    const items = chunk.filter(isNotBehind)
    try {
      const known = await this.#withKnownTopics(items)
      if (known.length > 0) await this.#settings.sender.send(known.map(({ record }) => record))
      for (const { call, at, key } of known) answer(call, at, key, OK)
    } catch (error) {
      const open = items.filter(({ call, at }) => call.outcomes[at] === undefined)
      const parts = partsOf(open, error)
      if (parts.length < 2) return this.#failed(open, error)
      // Whatever of the others has arrived comes twice.
      for (const part of parts) await this.#send(part)
    }
  }

  #failed(items: readonly Item[], error: unknown): void {
    const ofTopic = isOfTopic(error) && this.#settings.fixed === undefined
    if (isRefusal(error, 'UNKNOWN_TOPIC')) for (const { record } of items) this.#known.delete(record.topic)
    for (const item of items) {
      if (isRefusal(error, 'MESSAGE_TOO_LARGE')) refuse(item, 'rejected', tooLarge(item, error))
      else if (isOwnFault(error)) refuse(item, 'rejected', error)
      else refuse(item, ofTopic && !isLeaderless(error) ? 'failed' : 'down', error)
    }
    // The trouble of the server is that of all who wait for it; that of one topic is not.
    if (!(error instanceof Unavailable) || ofTopic) return
    for (const { call, at, key } of this.#queue.splice(0)) answer(call, at, key, { kind: 'down', error, untried: true })
  }

  async #withKnownTopics(chunk: readonly Item[]): Promise<readonly Item[]> {
    const unseen = [...new Set(chunk.map(({ record }) => record.topic))].filter((topic) => !this.#known.has(topic))
    if (unseen.length === 0) return chunk
    const { name, withAdmin, fixed } = this.#settings
    const found = await withAdmin(async (admin) => {
      const there = await admin.partitions(unseen)
      await warnOfTopics(`publisher ${name}`, admin, [...there.keys()], false)
      return there
    })
    for (const topic of found.keys()) this.#known.add(topic)
    if (found.size === unseen.length) return chunk
    const here = chunk.filter(({ record }) => this.#known.has(record.topic))
    for (const item of chunk) {
      if (this.#known.has(item.record.topic)) continue
      const { topic } = item.record
      const message = `${item.message}: there is no topic ${JSON.stringify(topic)}; create it, or publish to another`
      refuse(item, fixed === undefined ? 'failed' : 'down', refusal('UNKNOWN_TOPIC', message))
    }
    return here
  }
}

/** An error of one topic, or of one record, is not that of the others: they are sent without it. Halves find the record. */
function partsOf(items: readonly Item[], error: unknown): readonly (readonly Item[])[] {
  if (isOfTopic(error)) {
    const topics = new Set(items.map(({ record }) => record.topic))
    return [...topics].map((topic) => items.filter(({ record }) => record.topic === topic))
  }
  if (items.length < 2 || !isOwnFault(error)) return [items]
  const half = items.length >> 1
  return [items.slice(0, half), items.slice(half)]
}

/** There is no such topic, this user may not use it, or one of its partitions has no leader. */
function isOfTopic(error: unknown): boolean {
  return isRefusal(error, 'UNKNOWN_TOPIC') || isRefusal(error, 'NOT_ALLOWED') || isLeaderless(error)
}

function withResolver(): { promise: Promise<void>; resolve: () => void } {
  let resolve = () => {}
  const promise = new Promise<void>((done) => {
    resolve = done
  })
  return { promise, resolve }
}

function refuse({ call, at, key }: Item, kind: 'failed' | 'rejected' | 'down', error: unknown): void {
  answer(call, at, key, { kind, error })
}

function answer(call: PublishCall, at: number, key: string | undefined, outcome: Outcome): void {
  if (call.outcomes[at] !== undefined) return
  call.outcomes[at] = outcome
  if (outcome.kind !== 'ok' && key !== undefined) {
    call.stopped ??= new Set()
    call.stopped.add(key)
  }
  call.left--
  if (call.left === 0) call.resolve()
}

function tooLarge({ message, size, record: { topic } }: Item, cause?: unknown): WaybillError {
  const text = `${message}: with about ${size} bytes it is larger than topic ${topic} allows (max.message.bytes)`
  return refusal('MESSAGE_TOO_LARGE', text, cause)
}

/** One of its key in its call did not arrive, so this one must not: its outcome is made here. */
function isNotBehind(item: Item): boolean {
  const { key, call, message } = item
  if (key === undefined || !call.stopped?.has(key)) return true
  refuse(item, 'failed', new WaybillError('OUT_OF_ORDER', `${message}: one before it did not arrive`))
  return false
}
