import {
  type BackoffOptions,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  type Message,
  milliseconds,
  type OptionNames,
  type Random,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import type { Outcome } from './publisher.ts'
import { mergedRetry, type RetryOptions, type RetryPolicy, retryPolicy } from './retry-policy.ts'
import type { Delivery, Source } from './source.ts'
import type { Phase } from './worker.ts'

/** Handles one message: done when it returns (or what it returns resolves), failed when it throws. */
export type HandleOne<D> = (delivery: D, signal: AbortSignal) => unknown

/** Handles a batch: one outcome each, in order. A throw is a failure of all of them together: `down`. */
export type HandleMany<D> = (
  deliveries: readonly D[],
  signal: AbortSignal,
) => readonly Outcome[] | Promise<readonly Outcome[]>

/** What the flow does with what it took: each on its own, or in batches of `size`. */
export type Step<D> = EachStep<D> | BatchStep<D>

/** A step that gets one message at a time, as a consumer does. */
export interface EachStep<D> {
  readonly each: HandleOne<D>
  /**
   * Gets what `each` returned, unless that is undefined; the message is done when this is. It saves a promise per
   * message against doing the same inside `each`.
   */
  readonly after?: (result: unknown) => unknown
}

/** A step that gets what is ready together, as a relay does. */
export interface BatchStep<D> {
  readonly batch: HandleMany<D>
  readonly size: number
  /** Takes runs of one key in one call; otherwise it is given at most one message of a key at a time. */
  readonly ordered: boolean
}

/** How a round went. */
export interface Tally {
  taken: number
  done: number
  retry: number
  dead: number
  release: number
}

/** What users may set of every flow: concurrency, buffer, retries, polling, time-outs. */
export interface FlowSettings {
  /** How many handlers, or batches, may run at once. Default 10, or 2 batches. */
  concurrency?: number
  /** How much may be taken and not yet settled. */
  buffer?: { count?: number; bytes?: number }
  /** How many to ask for at first, growing to the step's size while they come full. Default 100. */
  take?: number
  /** How a message that failed is tried again. */
  retry?: RetryOptions
  /** The pause between probes while what the handlers need is down. Default 200 ms doubling to 30 s. */
  outage?: BackoffOptions
  /**
   * How long a handler may take; then its signal aborts, and its message has failed (TIMEOUT). Default: the source's, or
   * 30 s; 60 s for a batch, which is `down` then. `false`: as long as it takes, even for ever.
   */
  timeout?: Duration | false
  /** How long to wait when there was nothing, doubling to `maxPoll` while there is nothing. Default 1 s and 5 s. */
  poll?: Duration
  maxPoll?: Duration
  /** How long what is in flight may go on after a stop. Default 10 s. */
  grace?: Duration
  clock?: Clock
  random?: Random
}

/** The outbox a flow reads, as metrics name it. */
export interface FromOutbox {
  readonly table: string
  /** Whether its step publishes. What one does that only moves events to another table is not counted. */
  readonly publishes: boolean
  /** Where to: `system` of the publisher. */
  readonly system?: string | undefined
}

/** A flow: where messages come from, what is done with each, and how. */
export interface FlowOptions<D extends Delivery<Message>> extends FlowSettings {
  name: string
  from: Source<D>
  step: Step<D>
  phase?: Phase
  /** What a relay says of where its messages come from. */
  outbox?: FromOutbox
}

export const FLOW_SETTINGS: OptionNames<FlowSettings> = {
  concurrency: true,
  buffer: true,
  take: true,
  retry: true,
  outage: true,
  timeout: true,
  poll: true,
  maxPoll: true,
  grace: true,
  clock: true,
  random: true,
}

/** The options, checked, with their defaults. */
export interface FlowLimits {
  readonly concurrency: number
  readonly window: number
  readonly count: number
  readonly bytes: number
  /** How many to ask for at first, and at most. */
  readonly take: number
  readonly most: number
  /** How many of one key are worth buffering. A step that takes runs of a key can use all of them. */
  readonly enough: number
  readonly poll: { readonly base: number; readonly max: number }
  readonly grace: number
  readonly retry: RetryPolicy
  /** `undefined`: as long as it takes. */
  readonly timeout: number | undefined
}

export function flowLimits<D extends Delivery<Message>>(options: FlowOptions<D>): FlowLimits {
  const where = `flow ${options?.name}`
  checkOptions(where, options, { name: true, from: true, step: true, phase: true, outbox: true, ...FLOW_SETTINGS })
  checkOptions(`${where}: buffer`, options.buffer, { count: true, bytes: true })
  checkSource(where, options.from)
  const size = batchSize(where, options.step)
  const defaults = options.from.defaults ?? {}
  const usual = size === 1 ? (defaults.concurrency ?? 10) : 2
  const concurrency = wholeNumber(`${where}: concurrency`, options.concurrency ?? usual)
  const window = size * concurrency
  const count = options.buffer?.count ?? window + Math.max(size, concurrency)
  const take = wholeNumber(`${where}: take`, options.take ?? 100)
  const base = milliseconds(options.poll ?? '1s', `${where}: poll`)
  const max = milliseconds(options.maxPoll ?? '5s', `${where}: maxPoll`)
  return {
    concurrency,
    window,
    count: wholeNumber(`${where}: buffer.count`, count),
    bytes: wholeNumber(`${where}: buffer.bytes`, options.buffer?.bytes ?? 64 * 1024 * 1024),
    take,
    // Batches come one by one: the next is read while this one is worked on.
    most: size === 1 ? count : Math.min(count, Math.max(take, size)),
    enough: 'batch' in options.step && options.step.ordered ? Number.POSITIVE_INFINITY : Math.max(8, count >> 4),
    poll: { base, max: Math.max(base, max) },
    grace: milliseconds(options.grace ?? '10s', `${where}: grace`),
    retry: retryPolicy(where, mergedRetry(defaults.retry, options.retry), options.outage, options.random),
    timeout: timeLimit(where, options.timeout, 'each' in options.step ? (defaults.timeout ?? EACH) : BATCH),
  }
}

/** `undefined`: none. A handler that never returns would otherwise keep its place for ever, without a word. */
function timeLimit(where: string, given: Duration | false | undefined, usual: number): number | undefined {
  if (given === false) return undefined
  const ms = given === undefined ? usual : milliseconds(given, `${where}: timeout`)
  if (ms > 0) return ms
  // Whoever means `false` would find every message dead.
  throw new WaybillError(
    'INVALID_OPTION',
    `${where}: timeout: ${describe(given)} leaves no time; for no limit give false`,
  )
}

/** How long one message may take, and a batch, which is longer than publishers give themselves. In milliseconds. */
const EACH = 30_000
const BATCH = 60_000

function checkSource(where: string, from: unknown): void {
  if (typeof (from as Partial<Source> | undefined)?.open === 'function') return
  const makes = typeof (from as { source?: unknown } | undefined)?.source === 'function'
  const mend = makes ? '. It makes sources: give one, such as broker.source(…)' : ''
  throw new WaybillError('INVALID_OPTION', `${where}: from: ${describe(from)} is not a source; it needs open()${mend}`)
}

function batchSize(where: string, step: Step<never>): number {
  const { each, batch, size } = (step ?? {}) as { each?: unknown; batch?: unknown; size?: number }
  if (typeof each === 'function') return 1
  if (typeof batch === 'function') return wholeNumber(`${where}: step.size`, size ?? Number.NaN)
  throw new WaybillError('INVALID_OPTION', `${where}: step: give { each } or { batch, size, ordered }`)
}
