import {
  type BackoffOptions,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  type OptionNames,
  oneOf,
  type Random,
  telemetry,
  Unavailable,
  untilAborted,
  WaybillError,
  wholeNumber,
  withDeadline,
} from '../core/index.ts'
import {
  checkOutcomes,
  checkRetry,
  type Delivery,
  Flow,
  Parent,
  type Phase,
  type Publisher,
  type PublisherLike,
  publisherOf,
  RETRY_DEFAULTS,
  type RetryOptions,
  type Source,
  type Tally,
  Task,
  type Worker,
} from '../flow/index.ts'
import { isOrdered } from '../flow/publisher.ts'
import { type OutboxReader, READERS, type Reader, type ReaderKind, type ReaderOptions } from './reader.ts'

/** What a relay reads from, publishes to, and how. */
export interface RelayOptions {
  /** The outbox; or any other source, such as a stream, which decides for itself who reads it. */
  from: OutboxReader | Source
  /** Where its events go: a publisher, or an async function that publishes one message. */
  to: PublisherLike
  name?: string
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
  /** How long the right to settle lasts without being renewed. Default 60 s. */
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

/** How long the checks at start may take before the relay goes on without them, and says so. */
const CHECK_WITHIN = 10_000

/** How long a look at the shares that is under way may go on at a stop, in milliseconds. */
const LOOK_ENDS_WITHIN = 1000

/** The largest batch there may be. */
const MOST_AT_ONCE = 10_000

/**
 * Publishes what transactions left in an outbox:
 *
 * 1. take part: say that this relay lives, and learn which share of the outbox is its own;
 * 2. for each share a flow: take events in order, publish them in batches, settle;
 * 3. when the shares change, because a relay came, left or died, start and stop flows.
 */
export class Relay extends Parent<Tally> {
  readonly name: string
  override readonly phase: Phase = 'relays'
  readonly #options: RelayOptions
  readonly #publisher: Publisher
  readonly #reader: Reader
  readonly #lease: number
  readonly #maxBatch: number
  readonly #flows = new Map<Source, Flow>()
  /** Shares that are another's now, until what is in flight of them has ended. */
  readonly #leaving = new Map<Source, Promise<void>>()
  readonly #sharing: Task<void>
  #prepared: Promise<void> | undefined

  constructor(options: RelayOptions) {
    super(options?.clock)
    checkOptions('Relay', options, RELAY_OPTIONS)
    checkRetry('Relay: retry', options?.retry)
    const { from, to, batch = RELAY_DEFAULTS.batch } = options ?? {}
    if (!isOutbox(from) && typeof from?.open !== 'function') {
      const text = 'it must be an outbox, such as postgres({ pool }).outbox, or a source'
      throw new WaybillError('INVALID_OPTION', `Relay: from: ${describe(from)} is not allowed; ${text}`)
    }
    this.name = options.name ?? `relay ${options.from.name}`
    this.#options = options
    this.#publisher = publisherOf(to, undefined, 'Relay: to', options.retry?.classify)
    this.#lease = milliseconds(options.lease ?? RELAY_DEFAULTS.lease, 'Relay: lease')
    if (this.#lease < 100)
      throw new WaybillError('INVALID_OPTION', `Relay: lease: ${this.#lease} ms is too short; give at least 100 ms`)
    wholeNumber('Relay: batch', batch, { max: MOST_AT_ONCE })
    const most = options.maxBatch ?? Math.max(RELAY_DEFAULTS.maxBatch, batch)
    this.#maxBatch = wholeNumber('Relay: maxBatch', most, { max: MOST_AT_ONCE })
    const settings: ReaderOptions = {
      reader: oneOf('Relay: reader', options.reader ?? RELAY_DEFAULTS.reader, READERS),
      shards: wholeNumber('Relay: shards', options.shards ?? RELAY_DEFAULTS.shards, { max: 64 }),
      lease: this.#lease,
      deadKey: oneOf('Relay: retry.deadKey', options.retry?.deadKey ?? RETRY_DEFAULTS.deadKey, ['block', 'continue']),
      deletes: options.deleteOnPublish ?? RELAY_DEFAULTS.deleteOnPublish,
      wake: options.wake ?? RELAY_DEFAULTS.wake,
      attempts: wholeNumber('Relay: retry.attempts', options.retry?.attempts ?? RETRY_DEFAULTS.attempts),
      clock: this.clock,
    }
    this.#reader = isOutbox(from) ? from.reader(settings) : readerOf(from, options)
    // Settings that are wrong show here, before anything moves.
    this.#flow({ name: options.from.name, features: {}, open: async () => undefined })
    this.#sharing = new Task({
      name: `${this.name}: shares`,
      every: this.#lease / 3,
      run: (signal) => this.#rebalance(signal),
      // Others take a relay that does not say that it lives for dead: it tries again soon.
      backoff: { min: Math.min(200, this.#lease / 3), max: this.#lease / 3 },
      // Stopped before the flows: it would start others.
      phase: 'requests',
      clock: this.clock,
    })
    this.register(this.#sharing, 'restart')
  }

  /**
   * One round: takes part, takes once from each of its shares, publishes and settles. Of an outbox it then keeps no
   * connection and no right to read: a script may end after it.
   */
  async runOnce(): Promise<Tally> {
    await this.#prepareOnce()
    const total: Tally = { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
    const failures: unknown[] = []
    try {
      for (const source of await this.#reader.share()) {
        const flow = this.#flows.get(source) ?? this.#flow(source)
        this.#flows.set(source, flow)
        try {
          const tally = await flow.runOnce()
          for (const kind of Object.keys(total) as (keyof Tally)[]) total[kind] += tally[kind]
        } catch (error) {
          // Of one share: the others have their turn all the same.
          failures.push(error)
        } finally {
          if (isOutbox(this.#options.from)) await flow.rest()
        }
      }
    } finally {
      this.#reader.rest?.()
    }
    if (failures.length > 0) throw failures[0]
    return total
  }

  /** What could not be reached in one round may be there in the next. */
  async #prepareOnce(): Promise<void> {
    this.#prepared ??= this.prepare()
    try {
      await this.#prepared
    } catch (error) {
      this.#prepared = undefined
      throw error
    }
  }

  /** What no retry can mend shows at start. A database that is away is waited for, like any other time. */
  protected override async prepare(signal?: AbortSignal): Promise<void> {
    try {
      await this.#checked()
    } catch (error) {
      if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error
      telemetry.warning.publish({ where: this.name, message: `the outbox cannot be reached: ${errorSummary(error)}` })
    }
    if (!signal?.aborted) await this.#publisher.start?.()
  }

  /** A pool that others have used up, or a server that is silent, must not keep it from starting without a word. */
  async #checked(): Promise<void> {
    const { from } = this.#options
    const check = async () => {
      if (isOutbox(from)) await from.check?.()
      await this.#reader.check?.()
    }
    await withDeadline(check(), CHECK_WITHIN, this.clock, () => {
      throw new Unavailable(`no answer within ${CHECK_WITHIN} ms; others may use all connections of its pool`)
    })
  }

  /** That it may read is no success: only what it has published. */
  protected override counts(child: Worker): boolean {
    return child !== this.#sharing
  }

  protected override async ended(): Promise<void> {
    const loose = [...this.#flows.values()].filter((flow) => !this.members.includes(flow))
    try {
      await Promise.all([super.ended(), ...loose.map((flow) => flow.stop()), ...this.#leaving.values()])
    } finally {
      for (const flow of this.#flows.values()) this.forget(flow)
      this.#flows.clear()
      this.#prepared = undefined
      await this.#reader.close()
    }
  }

  async #rebalance(signal: AbortSignal): Promise<void> {
    const looking = this.#reader.share()
    const share = new Set(await untilAborted(looking, signal, () => []))
    if (signal.aborted) {
      // What it answers is of no use any more, and a store that is silent keeps no flow from ending.
      await withDeadline<unknown>(looking, LOOK_ENDS_WITHIN, this.clock, () => {})
      return
    }
    for (const source of this.#flows.keys()) if (!share.has(source)) this.#leave(source)
    for (const source of share) {
      if (this.#leaving.has(source)) continue
      // One that `runOnce` has made is there, and not started.
      const flow = this.#flows.get(source) ?? this.#flow(source)
      if (this.members.includes(flow)) continue
      this.#flows.set(source, flow)
      await this.adopt(flow, 'restart')
    }
    if (share.size > 0) {
      this.condition.clear('shares')
      return
    }
    const reason = this.#reader.waiting?.()?.reason ?? 'other relays read all of it'
    this.condition.hinder('shares', 'waiting', reason, this.#lease / 3)
  }

  /** Nobody waits for it here: meanwhile this relay must go on to say that it lives. */
  #leave(source: Source): void {
    const flow = this.#flows.get(source)!
    this.#flows.delete(source)
    const stopped = this.members.includes(flow) ? this.dismiss(flow) : flow.stop()
    const gone = stopped.catch(() => {}).finally(() => this.#leaving.delete(source))
    this.#leaving.set(source, gone)
  }

  /** Options that are undefined are as good as not given. */
  #given(): Partial<RelayOptions> {
    return Object.fromEntries(Object.entries(this.#options).filter(([, value]) => value !== undefined))
  }

  #flow(source: Source): Flow {
    const { batch, concurrency, poll, maxPoll, grace } = { ...RELAY_DEFAULTS, ...this.#given() }
    const { retry, outage, timeout, clock, random } = this.#options
    const publisher = this.#publisher
    return new Flow({
      name: source.name,
      from: source,
      phase: 'relays',
      step: {
        size: this.#maxBatch,
        ordered: isOrdered(publisher),
        batch: async (deliveries: readonly Delivery[], signal) => {
          const outcomes = await publisher.publish(
            deliveries.map((delivery) => delivery.message),
            signal,
          )
          return checkOutcomes(publisher.name, outcomes, deliveries.length)
        },
      },
      take: Math.min(batch, this.#maxBatch),
      concurrency,
      poll,
      maxPoll,
      grace,
      ...(timeout === undefined ? {} : { timeout }),
      ...(retry === undefined ? {} : { retry }),
      ...(outage === undefined ? {} : { outage }),
      ...(clock === undefined ? {} : { clock }),
      ...(random === undefined ? {} : { random }),
    })
  }
}

function isOutbox(from: OutboxReader | Source | undefined): from is OutboxReader {
  return typeof (from as Partial<OutboxReader> | undefined)?.reader === 'function'
}

/** What an outbox is told by the relay, a source was told when it was made. */
const FOR_OUTBOXES = ['reader', 'shards', 'deleteOnPublish', 'wake'] as const

function readerOf(source: Source, options: RelayOptions): Reader {
  const given = FOR_OUTBOXES.find((name) => options[name] !== undefined)
  if (given !== undefined) {
    throw new WaybillError(
      'INVALID_OPTION',
      `Relay: ${given} is for outboxes; ${source.name} is a source and decides by itself`,
    )
  }
  return { share: async () => [source], close: async () => {} }
}
