import { type Clock, checkOptions, type Message, oneOf, patternOf, WaybillError } from '../core/index.ts'
import { FLOW_SETTINGS } from '../flow/flow-options.ts'
import {
  type Delivery,
  Flow,
  type FlowSettings,
  Parent,
  type Phase,
  type PublisherLike,
  type Source,
} from '../flow/index.ts'
import { ACK_STRATEGIES, type AckStrategy, stepOf } from './consumer.ts'
import type { Outputs } from './middleware.ts'
import { Batcher, rawOutputs } from './outputs.ts'
import { Router } from './router.ts'

export interface InputOptions extends FlowSettings {
  /** Only these; others are refused as if no handler knew them. */
  match?: Matcher
  /** Goes to the first matching output as it is, without being decoded or handled. */
  passThrough?: boolean
  ack?: AckStrategy
}

export interface OutputOptions {
  match?: Matcher
}

interface Output {
  readonly name: string
  readonly matches: (message: Message) => boolean
  readonly batcher: Batcher
}

export interface EngineOptions {
  /** Handles what inputs bring. Default: an empty router that nacks what it does not know. */
  router?: Router
  clock?: Clock
}

/**
 * Named inputs and outputs around one router. An input's message goes to its handler, or, passed through, straight on;
 * what results goes to the first output that matches. Inputs and outputs may be added while it runs.
 */
export class Engine extends Parent<number> {
  readonly name: string
  override readonly phase: Phase = 'consumers'
  readonly router: Router
  readonly #inputs = new Map<string, Flow<Delivery<Message>>>()
  readonly #outputs: Output[] = []

  constructor(name: string, options: EngineOptions = {}) {
    checkOptions(`engine ${name}`, options, { router: true, clock: true })
    super(options.clock)
    this.name = name
    this.router = options.router ?? new Router(name, { unknown: 'nack' })
  }

  /** Adds an input. On a running engine it starts at once; the promise says when. */
  async input<D extends Delivery<Message>>(name: string, from: Source<D>, options: InputOptions = {}): Promise<this> {
    const { match, passThrough = false, ack = 'success', ...settings } = options
    const where = `engine ${this.name}: input ${name}`
    checkOptions(where, options, { match: true, passThrough: true, ack: true, ...FLOW_SETTINGS })
    if (this.#inputs.has(name)) throw new WaybillError('DUPLICATE_NAME', `${where} exists already`)
    const matches = matcherOf(where, match)
    const handle = passThrough ? passOn : this.router.handle.bind(this.router)
    const gated = (message: Message, context: Parameters<Router['handle']>[1]): Outputs | Promise<Outputs> => {
      if (!matches(message)) throw new WaybillError('NO_HANDLER', `${where} does not take "${message.type}"`)
      return handle(message, context)
    }
    const strategy = oneOf(`${where}: ack`, ack, ACK_STRATEGIES)
    const step = stepOf({ name: this.name, handle: gated }, strategy, (outputs) => this.#send(outputs), from.system)
    const flow = new Flow<D>({ name: `${this.name}.${name}`, from, step, ...settings })
    const adopted = this.adopt(flow as unknown as Flow, 'restart')
    this.#inputs.set(name, flow as unknown as Flow<Delivery<Message>>)
    try {
      await adopted
    } catch (error) {
      this.#inputs.delete(name)
      throw error
    }
    return this
  }

  /** Adds an output after those there are; the first that matches takes a message. */
  output(name: string, to: PublisherLike, options: OutputOptions = {}): this {
    const where = `engine ${this.name}: output ${name}`
    checkOptions(where, options, { match: true })
    if (this.#outputs.some((output) => output.name === name))
      throw new WaybillError('DUPLICATE_NAME', `${where} exists already`)
    this.#outputs.push({ name, matches: matcherOf(where, options.match), batcher: new Batcher(where, to) })
    return this
  }

  /** One round of every input; returns how many messages were taken. */
  async runOnce(): Promise<number> {
    this.router.freeze()
    const tallies = await Promise.all([...this.#inputs.values()].map((flow) => flow.runOnce()))
    return tallies.reduce((sum, tally) => sum + tally.taken, 0)
  }

  protected override prepare(): void {
    this.router.freeze()
  }

  async #send(outputs: readonly Message[]): Promise<void> {
    const byOutput = new Map<Output, Message[]>()
    // All of them encoded first: what cannot be must not find the others sent.
    const encoded = rawOutputs(outputs)
    for (const [i, message] of outputs.entries()) {
      const output = this.#outputs.find(({ matches }) => matches(message))
      if (output === undefined) {
        throw new WaybillError(
          'NO_OUTPUT',
          `engine ${this.name}: no output takes "${message.type}"; add one whose match covers it`,
        )
      }
      const group = byOutput.get(output)
      if (group === undefined) byOutput.set(output, [encoded[i]!])
      else group.push(encoded[i]!)
    }
    await Promise.all([...byOutput].map(([output, messages]) => output.batcher.send(messages)))
  }
}

function passOn(message: Message): Message {
  return message
}

/** A type (`order.placed`), a pattern over its dotted parts (`order.*`, `order.#`, `*`), or a function. */
export type Matcher = string | ((message: Message) => boolean)

export function matcherOf(where: string, given: Matcher | undefined): (message: Message) => boolean {
  if (given === undefined) return () => true
  if (typeof given === 'function') return given
  if (typeof given !== 'string') {
    const text = `${where}: a matcher is an event type, a pattern such as "order.*", or a function`
    throw new WaybillError('INVALID_OPTION', text)
  }
  const fits = patternOf(where, given)
  return (message) => fits(message.type)
}
