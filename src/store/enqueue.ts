import {
  checkOptions,
  describe,
  encodeData,
  Message,
  type OptionNames,
  type RawMessage,
  telemetry,
  traced,
  WaybillError,
} from '../core/index.ts'
import { topicOf } from '../flow/index.ts'
import type { EnqueueOptions } from './store.ts'

/** Of every store, so that an event goes through any. An index of PostgreSQL must hold it, whose entries end at 2,700 bytes. */
export const MAX_KEY_BYTES = 1024

/** Of a payload. What is larger belongs into a file store, with a reference in the event. */
const MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

/** What can be enqueued: one event, or several. */
export type Enqueued = Message | readonly Message[]

/**
 * A receipt for one event, a list of them for a list. Two signatures with this in place of four: the compiler then says
 * what is wrong with a call, and not with each of four that it is not.
 */
// biome-ignore lint/suspicious/noExplicitAny: where the compiler compares a store with the port, it knows nothing of what is given
export type Receipts<Given, Receipt> = 0 extends 1 & Given ? any : Given extends Message ? Receipt : Receipt[]

/** What `enqueue` was given, in either of its forms. */
export interface EnqueueArguments<Tx, Options> {
  readonly tx: Tx
  readonly events: readonly Message[]
  /** One event was given, not a list: one receipt is returned. */
  readonly single: boolean
  readonly options: Options
}

/**
 * `enqueue(tx, events, options)`, or `enqueue(events, options)` in the transaction that `current` returns. `allowed` are
 * the options of this store.
 */
export function enqueueArguments<Tx, Options extends EnqueueOptions>(
  given: readonly unknown[],
  current: () => Tx | undefined,
  allowed: OptionNames<Options>,
  otherwise = '',
): EnqueueArguments<Tx, Options> {
  const ambient = isAmbient(given)
  const tx = ambient ? (current() ?? noTransaction(otherwise)) : (given[0] as Tx)
  const events = given[ambient ? 0 : 1]
  const options = (given[ambient ? 1 : 2] ?? {}) as Options
  checkEnqueueOptions(options, allowed)
  const single = !Array.isArray(events)
  return { tx, events: (single ? [events] : events) as readonly Message[], single, options }
}

function noTransaction(otherwise: string): never {
  const text = `enqueue(event) outside of withTransaction; give the transaction: enqueue(tx, event)${otherwise}`
  throw new WaybillError('NO_TRANSACTION', text)
}

/** How an outbox chooses the topic of an event for which none is given: the option `topic`, or the event's type. */
export function topicFunction(topic: string | ((event: Message) => string) | undefined): (event: Message) => string {
  return topic === undefined ? topicOf : typeof topic === 'function' ? topic : () => topic
}

/** An event as every store keeps it: encoded, with what the options say, and nothing that cannot be stored. */
export interface CheckedEvent {
  readonly raw: RawMessage
  readonly key: string | undefined
  /** Empty where there is none. */
  readonly tenant: string
  readonly topic: string
  /** Of the payload, in bytes. */
  readonly size: number
}

/** What can be wrong with an event is found here, before anything is sent: the caller's transaction goes on. */
export function checkedEvent(
  event: Message,
  options: EnqueueOptions,
  topicOf: (event: Message) => string,
): CheckedEvent {
  checkEvent(event)
  const key = options.key ?? event.key
  const topic = options.topic ?? topicOf(event)
  checkTexts(event, options, topic)
  checkKey(event, key)
  checkTime(event, options.availableAt)
  const raw = encodeData(traced(event))
  const size = typeof raw.data === 'string' ? Buffer.byteLength(raw.data) : raw.data.byteLength
  if (size > MAX_PAYLOAD_BYTES) {
    const advice = `at most ${MAX_PAYLOAD_BYTES} bytes; keep large data elsewhere and send a reference`
    throw new WaybillError('TOO_LARGE', `${describe(event.type)}: the payload has ${size} bytes; ${advice}`)
  }
  return { raw, key, tenant: options.tenant ?? event.tenant ?? '', topic, size }
}

function checkTime({ type }: Message, at: unknown): void {
  if (at === undefined || (at instanceof Date && !Number.isNaN(at.getTime()))) return
  const text = `${describe(type)}: availableAt is ${describe(at)}; give a Date, such as new Date(Date.now() + 60_000)`
  throw new WaybillError('INVALID_OPTION', text)
}

/** What callers without types may give in place of an event. */
export function checkEvent(event: unknown): asserts event is Message {
  if (event instanceof Message) return
  if (typeof event === 'object' && isTransaction(event)) throw swapped()
  const given = typeof event === 'object' && event !== null ? (event as Record<string, unknown>) : undefined
  const missing = ['id', 'source', 'type'].filter((name) => given !== undefined && typeof given[name] !== 'string')
  const lacks = missing.length === 0 ? '' : `, it has no ${missing.join(', no ')}`
  const text = `enqueue: ${describe(event)} is not an event${lacks}; make one with a definition, such as OrderPlaced({ … })`
  throw new WaybillError('INVALID_OPTION', text)
}

/** `enqueue(event, options)` in the transaction we are in, as against `enqueue(tx, event, options)`. */
function isAmbient([first, second]: readonly unknown[]): boolean {
  if (!(first instanceof Message) && !Array.isArray(first)) return false
  if (isTransaction(second)) throw swapped()
  return true
}

/** Whether any store would take it for one. Options have no methods. */
function isTransaction(given: unknown): boolean {
  if (typeof given === 'function') return true
  const { query, command, onRollback } = (given ?? {}) as Record<string, unknown>
  return typeof query === 'function' || typeof command === 'function' || typeof onRollback === 'function'
}

function swapped(): WaybillError {
  return new WaybillError('INVALID_OPTION', 'enqueue: the transaction comes first; give enqueue(tx, event, options)')
}

/** What every store allows beside the event; `allowed` are the names of all that this one does. */
export function checkEnqueueOptions<Options extends EnqueueOptions>(
  options: Options | undefined,
  allowed: OptionNames<Options>,
): void {
  checkOptions('enqueue', options, allowed)
  if (options === undefined) return
  checkText('key', options.key, 'text that is not empty, or leave it out')
  checkText('topic', options.topic, 'text that is not empty, or leave it out')
  // An empty tenant is how stores write that there is none.
  if (options.tenant !== '') checkText('tenant', options.tenant, 'text')
}

function checkText(name: string, value: unknown, allowed: string): void {
  if (value === undefined || value === null || (typeof value === 'string' && value !== '')) return
  throw new WaybillError('INVALID_OPTION', `enqueue: ${name}: ${describe(value)} is not allowed; give ${allowed}`)
}

function checkKey({ type }: Message, key: string | null | undefined): void {
  const bytes = Buffer.byteLength(key ?? '')
  if (bytes <= MAX_KEY_BYTES) return
  const text = `${describe(type)}: the key has ${bytes} bytes; at most ${MAX_KEY_BYTES} bytes; use a hash of it`
  throw new WaybillError('TOO_LARGE', text)
}

/**
 * Refuses what PostgreSQL cannot hold as text, and CloudEvents does not allow: a NUL, or half of a character (a surrogate
 * without its other half). Data may hold both.
 */
function checkTexts(message: Message, options: EnqueueOptions, topic: string): void {
  const { type, extensions } = message
  checkStorable(type, 'id', message.id)
  checkStorable(type, 'source', message.source)
  checkStorable(type, 'type', type)
  checkStorable(type, 'subject', message.subject)
  checkStorable(type, 'datacontenttype', message.datacontenttype)
  checkStorable(type, 'dataschema', message.dataschema)
  checkStorable(type, 'topic', topic)
  checkStorable(type, 'key', options.key)
  checkStorable(type, 'tenant', options.tenant)
  checkStorable(type, 'aggregate.type', options.aggregate?.type)
  checkStorable(type, 'aggregate.id', options.aggregate?.id)
  for (const name in extensions) checkStorable(type, name, extensions[name])
}

function checkStorable(type: string, name: string, value: unknown): void {
  if (typeof value !== 'string' || (!value.includes('\0') && isWellFormed(value))) return
  const what = value.includes('\0') ? 'a NUL character' : 'half of a character (a lone surrogate)'
  throw new WaybillError('INVALID_OPTION', `${describe(type)}: ${name} contains ${what}, which cannot be stored`)
}

/** Of every Node we run on, and not yet in the types that we compile with. */
function isWellFormed(text: string): boolean {
  return (text as unknown as { isWellFormed(): boolean }).isWellFormed()
}

/**
 * Reports that an outbox accepted events, by topic; one that was there already, or twice in one call, is a duplicate.
 */
export function publishEnqueued(
  table: string,
  events: Iterable<{ readonly topic: string; readonly isNew: boolean }>,
): void {
  if (!telemetry['outbox.enqueued'].active) return
  const topics = new Map<string, { count: number; duplicates: number }>()
  for (const { topic, isNew } of events) {
    const counts = topics.get(topic) ?? { count: 0, duplicates: 0 }
    topics.set(topic, counts)
    counts[isNew ? 'count' : 'duplicates']++
  }
  for (const [topic, counts] of topics) telemetry['outbox.enqueued'].publish({ table, topic, ...counts })
}
