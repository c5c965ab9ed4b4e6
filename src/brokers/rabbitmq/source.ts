import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import type { Clock } from '../../core/index.ts'
import type { AmqpChannel, OpenAmqp, ReconnectingAmqp } from '../../drivers/amqp.ts'
import type { Source, SourceDefaults } from '../../flow/index.ts'
import { type DeadLetterOptions, DeadLetters, type RabbitmqDeadLetter, type WhichRabbitmqDead } from './dead-letters.ts'
import type { RabbitmqDecode } from './encoding.ts'
import type { Sender } from './sender.ts'
import { type RabbitmqDelivery, RabbitmqSession } from './session.ts'
import type { QueuePlan, Topology } from './setup.ts'

/** A source's options, checked, with their defaults. */
export interface SourceSettings {
  readonly where: string
  readonly plan: QueuePlan
  readonly prefetch: number
  readonly decode: RabbitmqDecode
  readonly clock: Clock
}

/** How much there is, by queue. What a consumer has not settled is in none of them. */
export interface RabbitmqStats {
  readonly waiting: number
  readonly retrying: number
  readonly dead: number
  readonly consumers: number
}

/** A queue, as a source. Every session is a consumer on a channel of its own. */
export class RabbitmqSource implements Source<RabbitmqDelivery> {
  readonly name: string
  readonly system = 'rabbitmq'
  readonly features = { redelivers: true } as const
  readonly defaults: SourceDefaults
  readonly #settings: SourceSettings
  readonly #amqp: ReconnectingAmqp
  readonly #sender: Sender
  readonly #topology: Topology
  readonly #letters: DeadLetters
  readonly #sessions: Set<RabbitmqSession>

  constructor(
    name: string,
    settings: SourceSettings,
    defaults: SourceDefaults,
    amqp: ReconnectingAmqp,
    sender: Sender,
    topology: Topology,
    sessions: Set<RabbitmqSession>,
  ) {
    this.name = name
    this.#settings = settings
    this.defaults = defaults
    this.#amqp = amqp
    this.#sender = sender
    this.#topology = topology
    this.#sessions = sessions
    this.#letters = new DeadLetters(settings, sender)
  }

  /** A user or a virtual host that the server refuses is an error of `start`; whatever may pass is waited for. */
  async check(signal: AbortSignal): Promise<void> {
    await this.#amqp.check(signal)
  }

  async open(signal?: AbortSignal): Promise<RabbitmqSession> {
    const { plan } = this.#settings
    const open = await this.#amqp.open(signal)
    await this.#topology.queue(open, plan)
    const channel = await this.#channel(open)
    const consumerTag = `waybill-${hostname()}-${process.pid}-${randomBytes(6).toString('hex')}`
    const session: RabbitmqSession = new RabbitmqSession(this.#settings, {
      amqp: this.#amqp,
      open,
      channel,
      consumerTag,
      sender: this.#sender,
      declare: async () => {
        if (this.#topology.declares) await this.#topology.queue(open, plan)
      },
      declares: this.#topology.declares,
      rejectedIsKept: this.#topology.rejectedIsKept,
      deliveryLimit: this.#topology.deliveryLimit(plan),
      onEnd: () => this.#sessions.delete(session),
    })
    try {
      await session.begin()
      this.#sessions.add(session)
      return session
    } catch (error) {
      await session.close().catch(() => {})
      throw error
    }
  }

  async stats(): Promise<RabbitmqStats> {
    const { plan } = this.#settings
    return await this.#aside(async (channel) => {
      const { messageCount: waiting, consumerCount: consumers } = await channel.checkQueue(plan.name)
      const { messageCount: dead } = await channel.checkQueue(plan.deadQueue)
      let retrying = 0
      for (const { name } of plan.retryQueues) retrying += (await channel.checkQueue(name)).messageCount
      return { waiting, retrying, dead, consumers }
    })
  }

  /** What was given up, oldest first; of all queues that share the dead letters. They are looked at one by one and put back: nobody else should at the same time. */
  async deadLetters(options?: DeadLetterOptions): Promise<readonly RabbitmqDeadLetter[]> {
    return await this.#aside((channel) => this.#letters.list(channel, options))
  }

  /** Sends dead letters back into the queue, with all their attempts. Returns how many. */
  async rearm(which?: WhichRabbitmqDead): Promise<number> {
    return await this.#aside((channel) => this.#letters.resolve(channel, which, true))
  }

  /** Drops dead letters for good. Returns how many. */
  async discard(which: WhichRabbitmqDead): Promise<number> {
    return await this.#aside((channel) => this.#letters.resolve(channel, which, false))
  }

  async #channel(open: OpenAmqp): Promise<AmqpChannel> {
    return await this.#amqp.ask(open, 'to open a channel', open.connection.createChannel())
  }

  /** On a channel of its own, whose end gives back whatever was looked at. */
  async #aside<T>(work: (channel: AmqpChannel) => Promise<T>): Promise<T> {
    const open = await this.#amqp.open()
    const channel = await this.#channel(open)
    let ended = false
    channel.on('error', () => {})
    channel.on('close', () => {
      ended = true
    })
    try {
      return await work(channel)
    } finally {
      if (!ended) await this.#amqp.ask(open, 'to close a channel', channel.close()).catch(() => {})
    }
  }
}
