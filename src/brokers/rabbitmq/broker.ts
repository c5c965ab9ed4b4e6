import {
  type BackoffOptions,
  backoff,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  oneOf,
  type Random,
  type RawMessage,
  reportOnStderr,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import { type AmqpClient, type OpenAmqp, ReconnectingAmqp } from '../../drivers/amqp.ts'
import {
  checkRetry,
  mergedRetry,
  type Outcome,
  type Phase,
  type Publisher,
  RETRY_DEFAULTS,
  type RetryOptions,
  type Stoppable,
  topicOf,
} from '../../flow/index.ts'
import { decode, encode, type RabbitmqDecode, type RabbitmqEncode } from './encoding.ts'
import { checkedName, checkedUrls, retryQueuesOf, urlWith } from './names.ts'
import { RabbitmqPublisher, UNROUTABLE, type Unroutable } from './publisher.ts'
import { Sender, type SenderSettings } from './sender.ts'
import type { RabbitmqSession } from './session.ts'
import { Topology } from './setup.ts'
import { RabbitmqSource } from './source.ts'

/** A RabbitMQ server, and the exchange that is published to. */
export interface RabbitmqOptions {
  /** amqplib, as imported; or anything with its `connect(url, socketOptions)`. */
  client: AmqpClient
  /** `amqp://user:password@host/vhost`, or `amqps:`; several are nodes of one cluster, tried in turn. */
  url: string | readonly string[]
  /** Where messages are published, and where queues are bound. A topic exchange, where it is declared by us. */
  exchange: string
  name?: string
  /**
   * Declare exchanges, queues and bindings, with every new connection. Default false: they are looked for, and what is
   * missing is an error.
   */
  declare?: boolean
  /** What a message is that no queue takes, unless a publisher says otherwise. Default `down`. */
  unroutable?: Unroutable | ((message: RawMessage) => Unroutable)
  /** How long connecting, or an answer of the server, may take. Default 10 s. */
  timeout?: Duration
  /** The pause before the next attempt to connect. Default 1 s doubling to 30 s, with up to 1 s of jitter. */
  reconnect?: BackoffOptions
  /** Default: CloudEvents in binary mode. */
  encode?: RabbitmqEncode
  decode?: RabbitmqDecode
  clock?: Clock
  random?: Random
}

/** Where messages go: exchange, routing key. */
export interface RabbitmqPublisherOptions {
  /** Another exchange; `''` is the default exchange, where topics are names of queues. */
  exchange?: string
  /** The routing key: one for all, or by message. Default: what an outbox said, or else the message's type. */
  topic?: string | ((message: RawMessage) => string)
  /**
   * What a message is that no queue takes, for all or by message: `down` (default: a queue may be bound by the next deploy,
   * and while nothing arrives nobody is charged), `failed`, `rejected`, or `ok`: nobody is interested, and that is fine.
   */
  unroutable?: Unroutable | ((message: RawMessage) => Unroutable)
  /** How long a confirm may take. Default 30 s. */
  confirm?: Duration
}

/** Which queue is read, how it is declared, and how often messages are tried. */
export interface RabbitmqSourceOptions {
  queue: string
  /** What the queue gets of the exchange: topics, or patterns over their dotted parts. Default: all of it. */
  topics?: readonly string[]
  exchange?: string
  /** How many unacked messages the server gives at most. Default 20. */
  prefetch?: number
  /** How many are handled at once, unless the consumer says otherwise. Default 5. */
  concurrency?: number
  /** How long one may take, unless the consumer says otherwise. Default 30 s. */
  timeout?: Duration
  /** How one is tried again, unless the consumer says otherwise. Default 5 attempts: after 1 s, 8 s, 1 min and 9 min. */
  retry?: RetryOptions
  /** How many deliveries the server allows a message whose consumers die with it. Default 20. */
  deliveryLimit?: number
  /** Queues in which retries wait, by the longest time each is for. Default 1 s, 10 s, 1 min, 10 min. */
  retryDelays?: readonly Duration[]
  /** The exchange and the queue for what was given up. Default `<exchange>.dead` and `<queue>.dead`. */
  deadLetter?: { exchange?: string; queue?: string }
  /** How many messages the queue takes; a publish beyond that is refused. Default: no limit. */
  maxLength?: number
  /** One consumer at a time, the others stand by: for order across consumers. */
  singleActive?: boolean
}

const SOURCE_OPTIONS: OptionNames<RabbitmqSourceOptions> = {
  queue: true,
  topics: true,
  exchange: true,
  prefetch: true,
  concurrency: true,
  timeout: true,
  retry: true,
  deliveryLimit: true,
  retryDelays: true,
  deadLetter: true,
  maxLength: true,
  singleActive: true,
}

/** RabbitMQ as a broker: publishers, sources, and itself a publisher. Nothing is connected before it is needed. */
export class RabbitmqBroker implements Publisher, Stoppable {
  readonly name: string
  readonly system = 'rabbitmq'
  readonly features = {} as const
  /** As a member of `run`: after consumers and relays. */
  readonly phase: Phase = 'connections'
  readonly #options: RabbitmqOptions
  readonly #exchange: string
  readonly #clock: Clock
  readonly #timeout: number
  /** Apart, since a server that is short of memory stops listening to connections that publish. */
  readonly #publishing: ReconnectingAmqp
  readonly #consuming: ReconnectingAmqp
  readonly #publisher: RabbitmqPublisher
  /** Those that are open. */
  readonly #sessions = new Set<RabbitmqSession>()

  constructor(options: RabbitmqOptions) {
    const where = 'rabbitmq'
    const names: OptionNames<Omit<RabbitmqOptions, 'clock' | 'random'>> = {
      client: true,
      url: true,
      exchange: true,
      name: true,
      declare: true,
      unroutable: true,
      timeout: true,
      reconnect: true,
      encode: true,
      decode: true,
    }
    checkOptions(where, options, { ...names, clock: true, random: true })
    if (typeof options.client?.connect !== 'function') {
      const text = `${where}: client: ${describe(options.client)} has no connect(); give amqplib, as imported`
      throw new WaybillError('INVALID_OPTION', text)
    }
    const urls = checkedUrls(where, options.url)
    this.#options = options
    this.name = options.name ?? 'rabbitmq'
    this.#exchange = checkedName(`${where}: exchange`, options.exchange, { empty: true })
    this.#clock = options.clock ?? systemClock
    this.#timeout = milliseconds(options.timeout ?? '10s', `${where}: timeout`)
    const random = options.random === undefined ? {} : { random: options.random }
    const usual = { min: '1s', max: '30s', jitter: '1s', ...random } as const
    const pause = backoff(options.reconnect, `${where}: reconnect`, usual)
    const connection = (role: string) =>
      new ReconnectingAmqp({
        client: options.client,
        urls: urls.map(urlWith),
        name: `waybill-${this.name}-${role}`,
        timeout: this.#timeout,
        backoff: pause,
        clock: this.#clock,
      })
    this.#publishing = connection('publishing')
    this.#consuming = connection('consuming')
    this.#publisher = this.publisher()
    reportOnStderr()
  }

  publisher(options: RabbitmqPublisherOptions = {}): RabbitmqPublisher {
    const where = `publisher ${this.name}`
    checkOptions(where, options, { exchange: true, topic: true, unroutable: true, confirm: true })
    const exchange = checkedName(`${where}: exchange`, options.exchange ?? this.#exchange, { empty: true })
    const { topic = topicOf } = options
    const chosen = typeof topic === 'function' ? topic : () => topic
    if (typeof topic !== 'function') checkedName(`${where}: topic`, topic)
    const topology = this.#topology(this.#publishing, where)
    return new RabbitmqPublisher({
      name: this.name,
      exchange,
      topicOf: (message) => checkedName(`${where}: topic`, chosen(message)),
      encode: this.#options.encode ?? encode,
      unroutable: unroutableOf(where, options.unroutable ?? this.#options.unroutable ?? 'down'),
      sender: this.#sender(where, (open) => this.#standing(topology, open, exchange), options.confirm),
    })
  }

  /** An exchange that was made anew has no bindings: those who read here bind their queues again before anything is sent. */
  async #standing(topology: Topology, open: OpenAmqp, exchange: string): Promise<void> {
    await topology.exchange(open, exchange)
    // The session itself reports what fails here.
    await Promise.all([...this.#sessions].map((session) => session.declare().catch(() => {})))
  }

  source(options: RabbitmqSourceOptions): RabbitmqSource {
    checkOptions('rabbitmq source', options, SOURCE_OPTIONS)
    const queue = checkedName('rabbitmq source: queue', options.queue)
    const where = `source ${queue}`
    checkOptions(`${where}: deadLetter`, options.deadLetter, { exchange: true, queue: true })
    const exchange = checkedName(`${where}: exchange`, options.exchange ?? this.#exchange, { empty: true })
    const dead = options.deadLetter ?? {}
    const { topics = ['#'], maxLength } = options
    if (!Array.isArray(topics)) {
      throw new WaybillError('INVALID_OPTION', `${where}: topics must be a list of names or patterns`)
    }
    const plan = {
      name: queue,
      exchange,
      topics: topics.map((topic) => checkedName(`${where}: topics`, topic)),
      deadExchange: checkedName(`${where}: deadLetter.exchange`, dead.exchange ?? `${exchange || queue}.dead`),
      deadQueue: checkedName(`${where}: deadLetter.queue`, dead.queue ?? `${queue}.dead`),
      retryQueues: retryQueuesOf(where, queue, options.retryDelays ?? ['1s', '10s', '1m', '10m']),
      deliveryLimit: wholeNumber(`${where}: deliveryLimit`, options.deliveryLimit ?? 20),
      maxLength: maxLength === undefined ? undefined : wholeNumber(`${where}: maxLength`, maxLength),
      singleActive: options.singleActive ?? false,
    }
    if (plan.deadQueue === queue) {
      throw new WaybillError('INVALID_OPTION', `${where}: deadLetter.queue must not be the queue that is read`)
    }
    const settings = {
      where,
      plan,
      // AMQP has 16 bits for it.
      prefetch: wholeNumber(`${where}: prefetch`, options.prefetch ?? 20, { max: 65_535 }),
      decode: this.#options.decode ?? decode,
      clock: this.#clock,
    }
    checkRetry(`${where}: retry`, options.retry)
    wholeNumber(`${where}: retry.attempts`, options.retry?.attempts ?? RETRY_DEFAULTS.queueAttempts)
    const defaults = {
      concurrency: wholeNumber(`${where}: concurrency`, options.concurrency ?? 5),
      retry: mergedRetry(
        { attempts: RETRY_DEFAULTS.queueAttempts, backoff: RETRY_DEFAULTS.queueBackoff },
        options.retry,
      ),
      timeout: milliseconds(options.timeout ?? '30s', `${where}: timeout`),
    }
    const sender = this.#sender(where, async () => {})
    const topology = this.#topology(this.#consuming, where)
    const name = `${this.name}:${queue}`
    return new RabbitmqSource(name, settings, defaults, this.#consuming, sender, topology, this.#sessions)
  }

  /** Connects, so that wrong settings show at start. */
  async start(): Promise<void> {
    await this.#publisher.start()
  }

  publish(messages: readonly RawMessage[], signal?: AbortSignal): Promise<readonly Outcome[]> {
    return this.#publisher.publish(messages, signal)
  }

  /** Ends the connections that its publishers and sources share. Stop those first. */
  async close(): Promise<void> {
    await Promise.all([this.#consuming.close(), this.#publishing.close()])
  }

  /** For `run`. */
  async stop(): Promise<void> {
    await this.close()
  }

  #sender(where: string, prepare: SenderSettings['prepare'], confirm?: Duration): Sender {
    return new Sender({
      amqp: this.#publishing,
      where,
      prepare,
      timeout: milliseconds(confirm ?? '30s', `${where}: confirm`),
      clock: this.#clock,
    })
  }

  #topology(amqp: ReconnectingAmqp, where: string): Topology {
    return new Topology(amqp, where, this.#options.declare ?? false)
  }
}

function unroutableOf(
  where: string,
  given: Unroutable | ((message: RawMessage) => Unroutable),
): (message: RawMessage) => Unroutable {
  if (typeof given === 'function') return (message) => oneOf(`${where}: unroutable`, given(message), UNROUTABLE)
  const chosen = oneOf(`${where}: unroutable`, given, UNROUTABLE)
  return () => chosen
}

/** RabbitMQ as a broker. */
export function rabbitmq(options: RabbitmqOptions): RabbitmqBroker {
  return new RabbitmqBroker(options)
}
