import { Fifo } from '../../core/fifo.ts'
import {
  asError,
  type Clock,
  checkOptions,
  encodeData,
  type Message,
  oneOf,
  patternOf,
  type RawMessage,
  systemClock,
  Unavailable,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../../core/index.ts'
import { OK, type Outcome, outcomeOf, type Publisher, type Source, topicOf } from '../../flow/index.ts'
import { sizeOf } from '../../flow/pipe-buffer.ts'
import type { InProcessDeadLetter, InProcessDelivery, InProcessStats } from './queue.ts'
import { Subscription } from './subscription.ts'

/** A broker inside this process. */
export interface InProcessBrokerOptions {
  name?: string
  /** How many of the last messages a new subscription still gets. Default 0: only what is published after it. */
  retain?: number
  clock?: Clock
}

/** Which topics a subscription gets, and how much it holds. */
export interface SubscriptionOptions {
  /** Topics, or patterns over their dotted parts: `order.*`, `order.#`. Default: all of them. */
  topics?: readonly string[]
  /** How many unsettled messages it holds at most; a publish beyond that has the outcome `failed`. Default: no limit. */
  limit?: number
  /** What becomes of a key whose message is dead: wait until it is re-armed or discarded (`block`, default), or go on. */
  deadKey?: 'block' | 'continue'
}

/** How messages find their topic. */
export interface InProcessPublisherOptions {
  /** Where messages go: one topic for all, or by message. Default: what an outbox said, or else the message's type. */
  topic?: string | ((message: Message) => string)
}

/** Which dead letters: by message id, or by a function. */
export type WhichInProcessDead = string | ((letter: InProcessDeadLetter) => boolean)

/**
 * A broker inside this process, for tests and for services of one process: topics, named subscriptions with competing
 * consumers, redelivery after a delay, dead letters, order per key. It is itself a publisher.
 *
 * **Not durable**: everything is in memory and gone with the process; whoever needs an event to survive puts an outbox
 * in front.
 *
 * - A subscription exists from the moment `source` names it, whether or not anybody takes. It gets what is published
 *   from then on, and before that the last `retain` messages. A topic without a subscription is reported
 *   once, as a warning, and its messages are dropped.
 * - While one session has unsettled messages of a key no other gets any of that key; while one waits for its retry
 *   the later ones wait too.
 * - A message with an empty place in every subscription arrives in all of them, otherwise in none.
 */
export class InProcessBroker implements Publisher {
  readonly name: string
  readonly system = 'in_process'
  readonly features = { ordered: true } as const
  readonly #clock: Clock
  readonly #retain: number
  readonly #retained = new Fifo<{ topic: string; message: RawMessage; size: number }>()
  readonly #subscriptions = new Map<string, Subscription>()
  /** Which subscriptions a topic goes to. */
  readonly #routes = new Map<string, readonly Subscription[]>()
  #closed: Unavailable | undefined

  constructor(options: InProcessBrokerOptions = {}) {
    checkOptions('in-process broker', options, { name: true, retain: true, clock: true })
    this.name = options.name ?? 'in-process'
    this.#clock = options.clock ?? systemClock
    this.#retain = wholeNumber('in-process broker: retain', options.retain ?? 0, { min: 0 })
  }

  /** Publishes under the topic an outbox gave the message, or else its type. Typed messages are encoded first. */
  publish(messages: readonly Message[]): Promise<readonly Outcome[]> {
    return this.#publish(messages, topicOf)
  }

  publisher(options: InProcessPublisherOptions = {}): Publisher {
    checkOptions('in-process publisher', options, { topic: true })
    const topic = options.topic ?? topicOf
    if (typeof topic === 'string' ? topic === '' : typeof topic !== 'function') {
      throw new WaybillError(
        'INVALID_OPTION',
        'in-process publisher: topic must be a name or a function of the message',
      )
    }
    const choose = typeof topic === 'function' ? topic : () => topic
    const { name, system, features } = this
    return { name, system, features, publish: (messages) => this.#publish(messages, choose) }
  }

  /**
   * The subscription of that name: made now if there is none, otherwise joined, and everybody who takes from it
   * competes for its messages. Options may be given again if they are the same, or left out.
   */
  source(name: string, options?: SubscriptionOptions): Source<InProcessDelivery> {
    if (typeof name !== 'string' || name === '') {
      throw new WaybillError('INVALID_OPTION', 'in-process broker: a subscription needs a name')
    }
    const known = this.#subscriptions.get(name)
    if (known !== undefined && options === undefined) return known
    const where = `subscription ${name}`
    checkOptions(where, options, { topics: true, limit: true, deadKey: true })
    const { topics = ['#'], limit, deadKey = 'block' } = options ?? {}
    if (!Array.isArray(topics) || topics.length === 0) {
      throw new WaybillError('INVALID_OPTION', `${where}: topics must be a list of names or patterns`)
    }
    const settings = {
      topics: [...topics],
      limit: limit === undefined ? Number.POSITIVE_INFINITY : wholeNumber(`${where}: limit`, limit),
      deadKey: oneOf(`${where}: deadKey`, deadKey, ['block', 'continue']),
    }
    if (known !== undefined) {
      if (JSON.stringify(known.settings) === JSON.stringify(settings)) return known
      throw new WaybillError(
        'INVALID_OPTION',
        `${where} exists already, with other options; give the same ones, or another name`,
      )
    }
    const matches = topics.map((topic) => patternOf(`${where}: topics`, topic))
    const subscription = new Subscription(name, settings, matches, this.#clock)
    if (this.#closed !== undefined) subscription.close(this.#closed)
    this.#subscriptions.set(name, subscription)
    this.#routes.clear()
    for (const { topic, message, size } of this.#retained) {
      if (subscription.matches(topic) && !subscription.full) subscription.add(message, size)
    }
    return subscription
  }

  /** The subscription and all it holds are gone. Returns whether there was one. */
  unsubscribe(name: string): boolean {
    const subscription = this.#subscriptions.get(name)
    subscription?.close(new WaybillError('LOST', `subscription ${name} was removed`))
    this.#routes.clear()
    return this.#subscriptions.delete(name)
  }

  stats(name: string): InProcessStats {
    return this.#known(name).queue.stats
  }

  /** What was given up in this subscription, oldest first. */
  dead(name: string): InProcessDeadLetter[] {
    return this.#known(name).queue.dead
  }

  /** Puts dead letters back into their place, with all their attempts. Returns how many. */
  rearm(name: string, which?: WhichInProcessDead): number {
    return this.#known(name).queue.resolveDead(fitsDead(which), true)
  }

  /** Drops dead letters for good. Returns how many. */
  discard(name: string, which: WhichInProcessDead): number {
    return this.#known(name).queue.resolveDead(fitsDead(which), false)
  }

  /** Every session (of one subscription, or of all) is lost, as by a cut connection: for tests of what happens then. */
  disconnect(name?: string): void {
    const reason = new WaybillError('LOST', 'the in-process broker was disconnected')
    const subscriptions = name === undefined ? this.#subscriptions.values() : [this.#known(name)]
    for (const subscription of subscriptions) subscription.disconnect(reason)
  }

  /** Publishing is `down` from now on, sessions are lost, and none can be opened. */
  async close(): Promise<void> {
    this.#closed ??= new Unavailable(`the in-process broker ${this.name} is closed`)
    for (const subscription of this.#subscriptions.values()) subscription.close(this.#closed)
  }

  async #publish(messages: readonly Message[], choose: (message: Message) => string): Promise<readonly Outcome[]> {
    if (this.#closed !== undefined) return messages.map(() => ({ kind: 'down', error: this.#closed }))
    // When one of a key did not arrive, none after it may: their order would be lost.
    const stopped = new Set<string>()
    return messages.map((message) => {
      const { key } = message
      if (key !== undefined && stopped.has(key)) {
        return { kind: 'failed', error: new WaybillError('OUT_OF_ORDER', `${message}: one before it did not arrive`) }
      }
      const outcome = this.#one(message, choose)
      if (outcome !== OK && key !== undefined) stopped.add(key)
      return outcome
    })
  }

  #one(message: Message, choose: (message: Message) => string): Outcome {
    let raw: RawMessage
    let topic: string
    try {
      topic = choose(message)
      raw = encodeData(message)
    } catch (thrown) {
      const error = asError(thrown)
      const unserialisable = error instanceof WaybillError && error.code === 'NOT_SERIALISABLE'
      return unserialisable ? { kind: 'rejected', error } : outcomeOf(error)
    }
    const route = this.#route(topic)
    const full = route.find((subscription) => subscription.full)
    if (full !== undefined) {
      const text = `${message}: subscription ${full.name} holds ${full.settings.limit} messages already`
      return { kind: 'failed', error: new WaybillError('FULL', text) }
    }
    const size = sizeOf(raw)
    if (this.#retain > 0) {
      this.#retained.push({ topic, message: raw, size })
      if (this.#retained.size > this.#retain) this.#retained.shift()
    } else if (route.length === 0) {
      warnOnce(`in-process broker ${this.name}`, `nobody subscribes to ${topic}: its messages are dropped`)
    }
    for (const subscription of route) subscription.add(raw, size)
    return OK
  }

  #route(topic: string): readonly Subscription[] {
    const known = this.#routes.get(topic)
    if (known !== undefined) return known
    const route = [...this.#subscriptions.values()].filter((subscription) => subscription.matches(topic))
    // Topics are few, unless somebody makes them of ids.
    if (this.#routes.size >= 10_000) this.#routes.clear()
    this.#routes.set(topic, route)
    return route
  }

  #known(name: string): Subscription {
    const subscription = this.#subscriptions.get(name)
    if (subscription !== undefined) return subscription
    const known = [...this.#subscriptions.keys()].join(', ') || 'none'
    throw new WaybillError('NO_SUBSCRIPTION', `there is no subscription "${name}". Known: ${known}`)
  }
}

function fitsDead(which: WhichInProcessDead | undefined): (letter: InProcessDeadLetter) => boolean {
  if (which === undefined) return () => true
  return typeof which === 'function' ? which : ({ message }) => message.id === which
}
