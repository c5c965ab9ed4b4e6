import {
  checkOptions,
  describe,
  errorSummary,
  type GaugeSource,
  milliseconds,
  oneOf,
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
  publisherOf,
  RETRY_DEFAULTS,
  type Source,
  type Tally,
  Task,
  type Worker,
} from '../flow/index.ts'
import { isOrdered } from '../flow/publisher.ts'
import { outboxGauges } from './outbox-gauges.ts'
import { type OutboxReader, READERS, type Reader, type ReaderOptions } from './reader.ts'
import { LONGEST_LEASE, RELAY_DEFAULTS, RELAY_OPTIONS, type RelayOptions } from './relay-options.ts'

/** How long the checks at start may take before the relay goes on without them, and says so. */
const CHECK_WITHIN = 10_000

/** How long a look at its parts that is under way may go on at a stop, in milliseconds. */
const LOOK_ENDS_WITHIN = 1000

/** How soon a relay without a part of the outbox looks again, in milliseconds: it says soon that it waits, and takes over soon. */
const LOOK_AGAIN = 2000

/** The largest batch there may be. */
const MOST_AT_ONCE = 10_000

/**
 * Publishes what transactions left in an outbox:
 *
 * 1. take part: say that this relay lives, and learn which part of the outbox is its own;
 * 2. for each part a flow: take events in order, publish them in batches, settle;
 * 3. when its parts change, because a relay came, left or died, start and stop flows.
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
  /** Parts that are another's now, until what is in flight of them has ended. */
  readonly #leaving = new Map<Source, Promise<void>>()
  readonly #sharing: Task<boolean>
  readonly #publishes: boolean
  override readonly gauges: GaugeSource | undefined
  #prepared: Promise<void> | undefined

  /** `publishes: false`: it only moves events to other tables, and is not counted as a dispatch. */
  constructor(options: RelayOptions, { publishes = true }: { publishes?: boolean } = {}) {
    super(options?.clock, undefined, checkedSwitch('Relay', options?.enabled))
    this.#publishes = publishes
    checkOptions('Relay', options, RELAY_OPTIONS)
    checkRetry('Relay: retry', options?.retry)
    const { from, to, batch = RELAY_DEFAULTS.batch } = options ?? {}
    if (!isOutbox(from) && typeof from?.open !== 'function') {
      const text =
        'forwarding' in Object(from)
          ? `this outbox is a stream: give streams.source(db.outbox.forwarding), or keep events with redis({ …, outbox: { kind: 'stored' } })`
          : 'it must be an outbox, such as postgres({ pool }).outbox, or a source'
      throw new WaybillError('INVALID_OPTION', `Relay: from: ${describe(from)} is not allowed; ${text}`)
    }
    this.name = options.name ?? `relay ${options.from.name}`
    this.#options = options
    this.#publisher = publisherOf(to, undefined, 'Relay: to', options.retry?.classify)
    this.#lease = milliseconds(options.lease ?? RELAY_DEFAULTS.lease, 'Relay: lease')
    if (this.#lease < 100)
      throw new WaybillError('INVALID_OPTION', `Relay: lease: ${this.#lease} ms is too short; give at least 100 ms`)
    if (this.#lease > LONGEST_LEASE)
      throw new WaybillError('INVALID_OPTION', `Relay: lease: ${this.#lease} ms is too long; give at most 24 days`)
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
    this.gauges = isOutbox(from) ? outboxGauges(from, this, this.#reader, () => this.#leads()) : undefined
    // Settings that are wrong show here, before anything moves.
    this.#flow({ name: options.from.name, features: {}, open: async () => undefined })
    this.#sharing = new Task({
      name: `${this.name}: shares`,
      every: this.#lease / 3,
      run: (signal) => this.#rebalance(signal),
      again: (hasPart) => (hasPart ? false : Math.min(LOOK_AGAIN, this.#lease / 3)),
      // Others take a relay that does not say that it lives for dead: it tries again soon.
      backoff: { min: Math.min(200, this.#lease / 3), max: this.#lease / 3 },
      // Stopped before the flows: it would start others.
      phase: 'requests',
      clock: this.clock,
    })
    this.register(this.#sharing, 'restart')
  }

  /**
   * One round: takes part, takes once from each of its parts, publishes and settles. Of an outbox it then keeps no
   * connection and no right to read: a script may end after it.
   */
  async runOnce(): Promise<Tally> {
    const total: Tally = { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
    if (!this.enabled) return total
    await this.#prepareOnce()
    const failures: unknown[] = []
    try {
      for (const source of await this.#reader.assignment()) {
        const flow = this.#flows.get(source) ?? this.#flow(source)
        this.#flows.set(source, flow)
        try {
          const tally = await flow.runOnce()
          for (const kind of Object.keys(total) as (keyof Tally)[]) total[kind] += tally[kind]
        } catch (error) {
          // Of one part: the others have their turn all the same.
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

  /** What no retry can mend shows at start. A database or a destination that is away is waited for, like any other time. */
  protected override async prepare(signal?: AbortSignal): Promise<void> {
    try {
      await this.#checked()
    } catch (error) {
      if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error
      telemetry.warning.publish({ where: this.name, message: `the outbox cannot be reached: ${errorSummary(error)}` })
    }
    if (signal?.aborted) return
    try {
      await this.#publisher.start?.()
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error
      const message = `${this.#publisher.name} cannot be reached yet: ${errorSummary(error)}`
      telemetry.warning.publish({ where: this.name, message })
    }
  }

  /** A pool that others have used up, or a server that is silent, must not keep it from starting without a word. */
  async #checked(): Promise<void> {
    const { from } = this.#options
    const check = async () => {
      if (isOutbox(from)) await from.check?.()
      await this.#reader.check?.()
    }
    await withDeadline(check(), CHECK_WITHIN, this.clock, () => {
      throw new Unavailable(`no response within ${CHECK_WITHIN} ms; others may use all connections of its pool`)
    })
  }

  /** Whether it has the part of the outbox whose holder reports for all of it; `undefined`: it has none. */
  #leads(): boolean | undefined {
    const held = [...this.#flows].filter(([, flow]) => flow.holds)
    return held.length === 0 ? undefined : held.some(([source]) => source.leads === true)
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

  /** Starts what it was assigned, and stops what it was not. Returns whether it has a part of the outbox. */
  async #rebalance(signal: AbortSignal): Promise<boolean> {
    const looking = this.#reader.assignment()
    const assigned = new Set(await untilAborted(looking, signal, () => []))
    if (signal.aborted) {
      // What it returns is of no use any more, and a store that is silent keeps no flow from ending.
      await withDeadline<unknown>(looking, LOOK_ENDS_WITHIN, this.clock, () => {})
      return true
    }
    for (const source of this.#flows.keys()) if (!assigned.has(source)) this.#leave(source)
    for (const source of assigned) {
      if (this.#leaving.has(source)) continue
      // One that `runOnce` has made is there, and not started.
      const flow = this.#flows.get(source) ?? this.#flow(source)
      if (this.members.includes(flow)) continue
      this.#flows.set(source, flow)
      await this.adopt(flow, 'restart')
    }
    if (assigned.size > 0) {
      this.condition.clear('assignment')
      return true
    }
    const reason = this.#reader.waiting?.()?.reason ?? 'other relays read all of it'
    this.condition.hinder('assignment', 'waiting', reason, Math.min(LOOK_AGAIN, this.#lease / 3))
    return false
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
    const { from, retry, outage, timeout, clock, random } = this.#options
    const publisher = this.#publisher
    return new Flow({
      name: source.name,
      from: source,
      phase: 'relays',
      ...(isOutbox(from) ? { outbox: { table: from.name, publishes: this.#publishes, system: publisher.system } } : {}),
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

function checkedSwitch(where: string, enabled: unknown): boolean {
  if (enabled === undefined || typeof enabled === 'boolean') return enabled ?? true
  const text = `${where}: enabled: ${describe(enabled)} is not allowed; give true or false`
  throw new WaybillError('INVALID_OPTION', text)
}

function isOutbox(from: OutboxReader | Source | undefined): from is OutboxReader {
  return typeof (from as Partial<OutboxReader> | undefined)?.reader === 'function'
}

/** Options that a relay passes to an outbox. A source was given its own when it was made. */
const FOR_OUTBOXES = ['reader', 'shards', 'deleteOnPublish', 'wake'] as const

function readerOf(source: Source, options: RelayOptions): Reader {
  const given = FOR_OUTBOXES.find((name) => options[name] !== undefined)
  if (given !== undefined) {
    throw new WaybillError(
      'INVALID_OPTION',
      `Relay: ${given} is for outboxes; ${source.name} is a source and decides by itself`,
    )
  }
  return { assignment: async () => [source], close: async () => {} }
}
