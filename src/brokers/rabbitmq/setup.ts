import { WaybillError, warnOnce } from '../../core/index.ts'
import type { AmqpChannel, OpenAmqp, ReconnectingAmqp } from '../../drivers/amqp.ts'
import { REPLY, replyCode, serverSaid } from '../../drivers/amqp-errors.ts'
import { dangersOfDeadQueue, dangersOfQueue, dangersOfRetryQueue, type QueueShape, shapeOf } from './inspection.ts'

/** A queue that is read, and what stands around it. */
export interface QueuePlan {
  readonly name: string
  readonly exchange: string
  readonly topics: readonly string[]
  readonly deadExchange: string
  readonly deadQueue: string
  /** Shortest first. */
  readonly retryQueues: readonly RetryQueue[]
  /** How many deliveries the server itself allows: a guard against messages that kill whoever handles them. */
  readonly deliveryLimit: number
  readonly maxLength: number | undefined
  readonly singleActive: boolean
}

/** Messages wait here for their retry, each for its own time and none longer than `bound` milliseconds. */
export interface RetryQueue {
  readonly name: string
  readonly bound: number
}

/** RabbitMQ 4 gives quorum queues this limit where none is said, and drops what reaches it where no exchange takes it. */
const DEFAULT_LIMIT = 20
const WITHOUT_LIMIT = 1_000_000_000

const AT_LEAST_ONCE = { 'x-dead-letter-strategy': 'at-least-once', 'x-overflow': 'reject-publish' }

export function queueArguments(plan: QueuePlan): Record<string, unknown> {
  return {
    'x-queue-type': 'quorum',
    'x-delivery-limit': plan.deliveryLimit,
    'x-dead-letter-exchange': plan.deadExchange,
    'x-dead-letter-routing-key': plan.name,
    ...AT_LEAST_ONCE,
    ...(plan.maxLength === undefined ? {} : { 'x-max-length': plan.maxLength }),
    ...(plan.singleActive ? { 'x-single-active-consumer': true } : {}),
  }
}

const DEAD_ARGUMENTS = { 'x-queue-type': 'quorum', 'x-delivery-limit': WITHOUT_LIMIT }

function retryArguments(plan: QueuePlan): Record<string, unknown> {
  return {
    'x-queue-type': 'quorum',
    'x-dead-letter-exchange': '',
    'x-dead-letter-routing-key': plan.name,
    ...AT_LEAST_ONCE,
  }
}

/** One question to the server, within the time a question may take. */
type Ask = (question: (channel: AmqpChannel) => Promise<unknown>) => Promise<unknown>

/** Says which things are to be there, or sees whether they are. */
export class Topology {
  readonly #amqp: ReconnectingAmqp
  readonly #where: string
  readonly #declare: boolean
  #inspected = false
  #rejectedIsKept: boolean
  #foundLimit = Number.POSITIVE_INFINITY

  constructor(amqp: ReconnectingAmqp, where: string, declare: boolean) {
    this.#amqp = amqp
    this.#where = where
    this.#declare = declare
    this.#rejectedIsKept = declare
  }

  /** Whether things are declared here, and so can be again. */
  get declares(): boolean {
    return this.#declare
  }

  /** Whether the queue is known to have a dead-letter exchange: only then may a message be rejected. */
  get rejectedIsKept(): boolean {
    return this.#rejectedIsKept
  }

  /** How many deliveries the server allows at most, as far as it is known: somebody else may have declared fewer. */
  deliveryLimit(plan: QueuePlan): number {
    return Math.min(plan.deliveryLimit, this.#foundLimit)
  }

  async exchange(open: OpenAmqp, name: string): Promise<void> {
    // The default exchange is always there, and may not be named in a declaration.
    if (name !== '') await this.#on(open, (ask) => this.#exchange(ask, name))
  }

  async queue(open: OpenAmqp, plan: QueuePlan): Promise<void> {
    await this.#standing(open, plan)
    if (this.#declare || this.#inspected) return
    await this.#inspect(open, plan)
    this.#inspected = true
  }

  async #standing(open: OpenAmqp, plan: QueuePlan): Promise<void> {
    await this.#on(open, async (ask) => {
      if (plan.exchange !== '') await this.#exchange(ask, plan.exchange)
      // What a message may be sent to comes before what sends it there.
      await this.#exchange(ask, plan.deadExchange, 'direct')
      await this.#queue(ask, plan.deadQueue, DEAD_ARGUMENTS)
      await this.#queue(ask, plan.name, queueArguments(plan))
      for (const { name } of plan.retryQueues) await this.#queue(ask, name, retryArguments(plan))
      if (!this.#declare) return
      await this.#bind(ask, plan.deadQueue, plan.deadExchange, plan.name)
      if (plan.exchange === '') return
      for (const topic of plan.topics) await this.#bind(ask, plan.name, plan.exchange, topic)
    })
  }

  /** Somebody else has declared the queues: warns once of what can lose or stall messages. */
  async #inspect(open: OpenAmqp, plan: QueuePlan): Promise<void> {
    const own = await this.#shape(open, plan.name, queueArguments(plan))
    if (own === undefined) {
      const text = `the server does not report the arguments of queue ${JSON.stringify(plan.name)} and its retry queues; check that they have a dead-letter exchange, and the queue a delivery limit`
      warnOnce(this.#where, text)
      return
    }
    const { 'x-dead-letter-exchange': deadTo, 'x-delivery-limit': limit = DEFAULT_LIMIT } = own.arguments
    this.#rejectedIsKept = typeof deadTo === 'string'
    this.#foundLimit = Number(limit)
    const dangers = dangersOfQueue(plan, own)
    for (const { name } of plan.retryQueues) {
      const shape = await this.#shape(open, name, retryArguments(plan))
      if (shape !== undefined) dangers.push(...dangersOfRetryQueue(plan, name, shape))
    }
    const dead = await this.#shape(open, plan.deadQueue, DEAD_ARGUMENTS)
    if (dead !== undefined) dangers.push(...dangersOfDeadQueue(plan.deadQueue, dead))
    for (const danger of dangers) warnOnce(this.#where, danger)
  }

  /** On a channel for each try: the server closes it with every difference. */
  async #shape(open: OpenAmqp, name: string, wanted: Record<string, unknown>): Promise<QueueShape | undefined> {
    return await shapeOf(
      ({ durable, arguments: args }) =>
        this.#on(open, async (ask) => {
          await ask((channel) => channel.checkQueue(name))
          await ask((channel) => channel.assertQueue(name, { durable, arguments: { ...args } }))
        }),
      wanted,
    )
  }

  async #exchange(ask: Ask, name: string, type = 'topic'): Promise<void> {
    await this.#explained(`exchange ${JSON.stringify(name)}`, ask, (channel) =>
      this.#declare ? channel.assertExchange(name, type, { durable: true }) : channel.checkExchange(name),
    )
  }

  async #queue(ask: Ask, name: string, args: Record<string, unknown>): Promise<void> {
    await this.#explained(`queue ${JSON.stringify(name)}`, ask, (channel) =>
      this.#declare ? channel.assertQueue(name, { durable: true, arguments: args }) : channel.checkQueue(name),
    )
  }

  async #bind(ask: Ask, queue: string, exchange: string, topic: string): Promise<void> {
    const what = `binding of queue ${JSON.stringify(queue)} to exchange ${JSON.stringify(exchange)}`
    await this.#explained(what, ask, (channel) => channel.bindQueue(queue, exchange, topic))
  }

  /** On a channel of its own: the server closes the channel when something is not as it should be. */
  async #on(open: OpenAmqp, work: (ask: Ask) => Promise<void>): Promise<void> {
    const about = `topology of ${this.#where}`
    const channel = await this.#amqp.ask(open, about, open.connection.createChannel())
    let ended = false
    channel.on('error', () => {})
    channel.on('close', () => {
      ended = true
    })
    try {
      await work((question) => this.#amqp.ask(open, about, question(channel)))
    } finally {
      if (!ended) await this.#amqp.ask(open, about, channel.close()).catch(() => {})
    }
  }

  async #explained(what: string, ask: Ask, question: (channel: AmqpChannel) => Promise<unknown>): Promise<void> {
    try {
      await ask(question)
    } catch (error) {
      const code = replyCode(error)
      const said = serverSaid(error)
      if (code === REPLY.notFound) {
        const advice = 'create it, or let it be declared with declare: true'
        throw new WaybillError('NOT_DECLARED', `${this.#where}: there is no ${what}; ${advice}`, { cause: error })
      }
      if (code === REPLY.preconditionFailed) {
        const advice = what.startsWith('exchange')
          ? 'an exchange keeps the type it was made with: use another name, or delete it and let it be declared again'
          : 'a queue keeps the arguments it was made with: use another name, or delete it when it is empty'
        const text = `${this.#where}: ${what} exists with other settings: ${said}; ${advice}`
        throw new WaybillError('DECLARED_OTHERWISE', text, { cause: error })
      }
      if (code === REPLY.accessRefused) {
        const text = `${this.#where}: this user may not use ${what}: ${said}; grant it, or use declare: false`
        throw new WaybillError('ACCESS_REFUSED', text, { cause: error })
      }
      throw error
    }
  }
}
