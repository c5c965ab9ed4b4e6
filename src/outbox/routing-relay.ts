import {
  type Clock,
  checkOptions,
  type EventKey,
  errorSummary,
  type OptionNames,
  oneOf,
  type RawMessage,
  telemetry,
  Unavailable,
  WaybillError,
  warnOnce,
  withDeadline,
} from '../core/index.ts'
import {
  mergedRetry,
  OK,
  type Outcome,
  Parent,
  type Phase,
  type Publisher,
  type PublisherLike,
  publisherOf,
  type Tally,
  topicOf,
} from '../flow/index.ts'
import type { State } from './admin.ts'
import { type BranchingOutbox, isBranching } from './branches.ts'
import { Relay } from './relay.ts'
import { RELAY_OPTIONS, type RelayOptions } from './relay-options.ts'
import { Routes, type RouteTable } from './routes.ts'

/** Settings of one destination, where they are not those of all. */
export interface Destination extends Omit<RelayOptions, 'from' | 'clock' | 'random'> {}

/** What a routing relay reads from, its destinations, and which topics go where. */
export interface RoutingRelayOptions extends Omit<RelayOptions, 'from' | 'to' | 'deleteOnPublish'> {
  /** An outbox with a branch for each destination. */
  from: BranchingOutbox
  /** The destinations, by name: publishers, or `{ to: publisher, retry: { attempts: 10 } }` for settings of their own. */
  to: Readonly<Record<string, PublisherLike | Destination>>
  routes: RouteTable
  /**
   * What becomes of an event whose topic no route fits: it is dead, and is re-armed once there is a route (default), or
   * it is dropped.
   */
  unmatched?: 'dead' | 'drop'
  /** Topics, or events that go by their types, for which there must be a route when this starts. */
  topics?: readonly (string | EventKey)[]
}

const { deleteOnPublish: _own, ...SHARED } = RELAY_OPTIONS
const OPTIONS: OptionNames<RoutingRelayOptions> = { ...SHARED, routes: true, unmatched: true, topics: true }
const { from: _from, clock: _clock, random: _random, ...DESTINATION_OPTIONS } = RELAY_OPTIONS

/** How a round went: what was moved out of the outbox, and what was sent from each branch. */
export interface RoutingTally {
  readonly moved: Tally
  readonly sent: Readonly<Record<string, Tally>>
}

/**
 * Publishes an outbox to many destinations, by topic:
 *
 * 1. one relay moves events out of the outbox, each into the branches of its destinations, in one transaction;
 * 2. for each destination a relay of its own publishes what its branch holds.
 *
 * So each destination has its own order per key, attempts, outages and dead events, and none waits for another. The
 * order of a key is that of the outbox in every branch, since events are moved in it.
 */
export class RoutingRelay extends Parent<RoutingTally> {
  readonly name: string
  override readonly phase: Phase = 'relays'
  readonly #from: BranchingOutbox
  readonly #routes: Routes
  readonly #drops: boolean
  readonly #mover: Relay
  readonly #senders: ReadonlyMap<string, Relay>

  constructor(options: RoutingRelayOptions) {
    super(options?.clock)
    checkOptions('RoutingRelay', options, OPTIONS)
    const { from, to, routes, unmatched = 'dead', topics = [], name, ...settings } = options ?? {}
    if (!isBranching(from)) {
      throw new WaybillError('INVALID_OPTION', 'RoutingRelay: `from` must be an outbox that has branches')
    }
    checkDestinations(to)
    this.name = name ?? `routing relay ${from.name}`
    this.#from = from
    this.#routes = new Routes('RoutingRelay', routes, Object.keys(to))
    this.#routes.check('RoutingRelay', topics)
    this.#drops = oneOf('RoutingRelay: unmatched', unmatched, ['dead', 'drop']) === 'drop'
    const mover = { name: `${this.name}: moves`, features: { ordered: true }, publish: this.#move }
    // What was moved is in its branches, and is gone here: an event has one place. In a log it stays.
    this.#mover = new Relay(
      { ...settings, from, to: mover, name: mover.name, deleteOnPublish: from.keeps !== true },
      { publishes: false },
    )
    const senders = Object.entries(to).map(([destination, given]) => {
      const own: Destination = isPublisher(given) ? { to: given } : given
      checkOptions(`RoutingRelay: to.${destination}`, own, DESTINATION_OPTIONS)
      const retry = mergedRetry(settings.retry, own.retry)
      const publisher = publisherOf(own.to, destination, `RoutingRelay: to.${destination}`, retry.classify)
      const relay = new Relay({
        ...settings,
        ...own,
        retry,
        from: from.branch(destination),
        to: startedLazily(publisher, destination, this.clock),
      })
      return [destination, relay] as const
    })
    this.#senders = new Map(senders)
    for (const relay of [this.#mover, ...this.#senders.values()]) this.register(relay, 'restart')
  }

  /** One round of all: moves once, then sends once from each branch. */
  async runOnce(): Promise<RoutingTally> {
    const [moved] = await Promise.allSettled([this.#mover.runOnce()])
    const rounds = [...this.#senders].map(async ([name, sender]) => [name, await sender.runOnce()] as const)
    // One that fails costs the others no round, and nothing goes on behind the caller's back.
    const sent = await Promise.allSettled(rounds)
    return { moved: settledValue(moved), sent: Object.fromEntries(sent.map(settledValue)) }
  }

  /** What an event is at each destination that has it. */
  async states(eventId: string): Promise<Readonly<Record<string, State>>> {
    const states: Record<string, State> = {}
    for (const name of this.#senders.keys()) {
      const shown = await this.#from.branch(name).admin.show(eventId)
      if (shown !== undefined) states[name] = shown.entry.state
    }
    return states
  }

  /** All of them start, or none does. */
  protected override async launch(signal: AbortSignal): Promise<void> {
    await this.#lookForOrphans()
    await super.launch(signal)
  }

  /** Events wait in the branch of a destination that is no more: nobody would ever hear of them. */
  async #lookForOrphans(): Promise<void> {
    try {
      for (const { name, unpublished } of await this.#from.branches()) {
        if (this.#senders.has(name) || unpublished === 0) continue
        const message = `the branch ${name} of ${this.#from.name} holds ${unpublished} events, and there is no destination of that name`
        telemetry.warning.publish({ where: this.name, message })
      }
    } catch (error) {
      // A database that is away is waited for; a relay says so.
      if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error
    }
  }

  /** A rejection is `down` for all of them: the store could not be written. */
  readonly #move = async (messages: readonly RawMessage[]): Promise<readonly Outcome[]> => {
    const parts = new Map<string, RawMessage[]>()
    const stopped = new Set<string>()
    const outcomes = messages.map((message): Outcome => {
      const { key } = message
      if (key !== undefined && stopped.has(key)) {
        return { kind: 'failed', error: new WaybillError('OUT_OF_ORDER', `${message}: one before it has no route`) }
      }
      const destinations = this.#routes.of(topicOf(message))
      if (destinations.length === 0) {
        const outcome = this.#unmatched(topicOf(message))
        if (key !== undefined && outcome.kind !== 'ok') stopped.add(key)
        return outcome
      }
      for (const name of destinations) {
        const part = parts.get(name)
        if (part === undefined) parts.set(name, [message])
        else part.push(message)
      }
      return OK
    })
    if (parts.size > 0) await this.#from.distribute(parts)
    return outcomes
  }

  #unmatched(topic: string): Outcome {
    if (!this.#drops) {
      return {
        kind: 'rejected',
        error: new WaybillError(
          'NO_ROUTE',
          `no route fits the topic ${JSON.stringify(topic)}; add one for it, or set unmatched`,
        ),
      }
    }
    warnOnce(this.name, `no route fits the topic ${JSON.stringify(topic)}: its events are dropped (unmatched: 'drop')`)
    return OK
  }
}

function settledValue<T>(result: PromiseSettledResult<T>): T {
  if (result.status === 'rejected') throw result.reason
  return result.value
}

function checkDestinations(to: unknown): void {
  const named =
    typeof to === 'object' && to !== null && !Array.isArray(to) && typeof (to as Publisher).publish !== 'function'
  if (named && Object.keys(to).length > 0) return
  throw new WaybillError('INVALID_OPTION', 'RoutingRelay: `to` must name its destinations: { warehouse: publisher }')
}

function isPublisher(given: PublisherLike | Destination): given is PublisherLike {
  return typeof given === 'function' || typeof (given as Partial<Publisher> | undefined)?.publish === 'function'
}

/** How long is waited for a destination to start before the others go on without it, in milliseconds. */
const STARTS_WITHIN = 10_000

/**
 * A destination that is away, or silent, when all start must not keep the others from starting: it is started with its first
 * event.
 */
function startedLazily(publisher: Publisher, destination: string, clock: Clock): Publisher {
  if (publisher.start === undefined) return publisher
  let starting: Promise<void> | undefined
  let started = false
  const start = async () => {
    starting ??= (async () => publisher.start!())().then(
      () => {
        started = true
      },
      (error) => {
        starting = undefined
        throw error
      },
    )
    await withDeadline<unknown>(starting, STARTS_WITHIN, clock, () => {})
    if (!started) throw new Unavailable(`${publisher.name} has not started within ${STARTS_WITHIN} ms`)
  }
  return {
    name: publisher.name,
    features: publisher.features,
    async start() {
      try {
        await start()
      } catch (error) {
        if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error
        const message = `destination ${destination} cannot be reached yet: ${errorSummary(error)}`
        telemetry.warning.publish({ where: 'RoutingRelay', message })
      }
    },
    async publish(messages, signal) {
      if (!started) await start()
      return publisher.publish(messages, signal)
    },
  }
}
