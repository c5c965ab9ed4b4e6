import {
  checkOptions,
  describe,
  type EventKey,
  type Message,
  oneOf,
  Reject,
  telemetry,
  traces,
  WaybillError,
} from '../core/index.ts'
import type { Delivery, Source } from '../flow/index.ts'
import { type ConsumeOptions, Consumer } from './consumer.ts'
import {
  type Context,
  checkOrder,
  compose,
  type Handle,
  type Middleware,
  type MiddlewareLike,
  middlewareOf,
  type Outputs,
  RETURNED,
} from './middleware.ts'
import { answering, SAGA } from './replies.ts'

/**
 * What becomes of a message no handler knows: let it pass with a warning (the producer may be ahead of us), hand it
 * back, or put it aside for a person.
 */
export const UNKNOWN_POLICIES = ['ack-and-warn', 'nack', 'dead-letter'] as const
export type UnknownTypePolicy = (typeof UNKNOWN_POLICIES)[number]

/** What a router does with types it has no handler for. */
export interface RouterOptions {
  /** Default `ack-and-warn`. */
  unknown?: UnknownTypePolicy
}

/**
 * Handlers by event type, and the middleware around them: `use` in the order from outermost to innermost, `on` for each
 * event, then `consume`. Acking is outside of everything, so whatever a middleware commits is committed before the ack.
 * Handlers and middleware are frozen when it starts.
 */
export class Router<Ctx extends Context = Context> {
  readonly name: string
  readonly #unknown: UnknownTypePolicy
  readonly #middlewares: Middleware[] = []
  readonly #handlers = new Handlers()
  #chain: Handle | undefined
  /** A middleware opens a span for each message. */
  #tracesItself = false

  constructor(name: string, options: RouterOptions = {}) {
    if (typeof name !== 'string' || name === '') {
      throw new WaybillError(
        'INVALID_OPTION',
        'a router needs a name: its consumers, metrics and inbox entries carry it',
      )
    }
    checkOptions(`router ${name}`, options, { unknown: true })
    this.name = name
    this.#unknown = oneOf(`router ${name}: unknown`, options.unknown ?? 'ack-and-warn', UNKNOWN_POLICIES)
  }

  /** Adds a middleware inside those added before. What it adds to the context, handlers registered after see. */
  use<Adds extends object>(middleware: MiddlewareLike<Adds>): Router<Ctx & Adds> {
    this.#refuseWhenFrozen('use()')
    this.#middlewares.push(middlewareOf(middleware))
    return this as unknown as Router<Ctx & Adds>
  }

  /** The handler of an event, or of one version of it (`OrderPlaced.v(1)`). Messages it returns go on from here. */
  on<Data>(event: EventKey<Data>, handler: (message: Message<Data>, context: Ctx) => Outputs | Promise<Outputs>): this {
    this.#refuseWhenFrozen('on()')
    if (typeof event?.decode !== 'function') {
      const name = typeof event === 'string' ? event : 'order.placed'
      const text = `on: ${describe(event)} is not the definition of an event; give a definition: event('${name}')`
      throw new WaybillError('INVALID_OPTION', `router ${this.name}: ${text}`)
    }
    if (typeof handler !== 'function') {
      throw new WaybillError('INVALID_OPTION', `router ${this.name}: the handler for "${event.type}" is not a function`)
    }
    this.#handlers.add({ event: event as EventKey, handle: handler as unknown as Handle })
    return this
  }

  get types(): string[] {
    return this.#handlers.types
  }

  handles(message: Message): boolean {
    return this.#handlers.has(message.type)
  }

  /** Checks the middleware's order and closes registration. Called by whatever starts; harmless when repeated. */
  freeze(): this {
    if (this.#chain !== undefined) return this
    const where = `router ${this.name}`
    checkOrder(where, this.#middlewares)
    this.#tracesItself = this.#middlewares.some(({ gives }) => gives?.includes('trace'))
    this.#chain = compose(where, this.#middlewares, this.#innermost)
    return this
  }

  /**
   * Runs the message through the middleware, as it came, and to its handler, decoded; returns what the handler
   * returned. Decoding is innermost, so that what cannot be decoded meets the middleware too: a dead-letter place gets
   * it byte for byte.
   */
  handle(message: Message, context: Context): Outputs | Promise<Outputs> {
    const chain = this.#chain ?? this.freeze().#chain!
    if (!this.#handlers.has(message.type) && this.#passes(message)) return undefined
    const keeps = this.#tracesItself ? undefined : traces()
    return keeps === undefined
      ? chain(message, context)
      : keeps.handling(message, context, () => chain(message, context))
  }

  readonly #innermost: Handle = (message, context) => {
    const entry = this.#handlers.find(message)
    if (entry === undefined) throw this.#noHandler(message)
    const decoded = entry.event.decode(message, this.#onNewer)
    const outputs =
      decoded instanceof Promise
        ? decoded.then((typed) => entry.handle(typed, context))
        : entry.handle(decoded, context)
    const answers = message.extensions[SAGA.replies] === undefined ? outputs : answered(outputs, message)
    const returned = context[RETURNED]
    return returned === undefined ? answers : thenReturned(answers, returned)
  }

  /** A worker that feeds this router from `source`. */
  consume<D extends Delivery<Message>>(source: Source<D>, options: ConsumeOptions = {}): Consumer<D> {
    return new Consumer(this as unknown as Router, source, options)
  }

  readonly #onNewer = ({ type, id, version }: Message, newestKnown: number): void => {
    telemetry['router.newer_version'].publish({ router: this.name, type, id, version, newestKnown })
  }

  /** Whether a message no handler knows is let pass. One for a dead-letter place goes on, to be rejected innermost. */
  #passes(message: Message): boolean {
    const { type, id } = message
    telemetry['router.unknown_type'].publish({ router: this.name, type, id, policy: this.#unknown })
    if (this.#unknown === 'nack') throw this.#noHandler(message)
    return this.#unknown === 'ack-and-warn'
  }

  #noHandler({ type }: Message): WaybillError {
    const text = `router ${this.name} has no handler for "${type}"`
    return this.#unknown === 'nack' ? new WaybillError('NO_HANDLER', text) : new Reject(text)
  }

  #refuseWhenFrozen(what: string): void {
    if (this.#chain === undefined) return
    throw new WaybillError('FROZEN', `router ${this.name}: ${what} after it has started; register everything before`)
  }
}

/** One registered handler and the event version it understands. */
interface Registration {
  readonly event: EventKey
  readonly handle: Handle
}

/**
 * Handlers by exact type, and within a type by version: one for the definition itself, which gets every version
 * upcast to the newest, or one for each version of its own. `owner` is who has them: a router, a projection.
 */
export class Handlers<Entry extends { readonly event: EventKey } = Registration> {
  readonly #types = new Map<string, HandlersByVersion<Entry>>()
  readonly #owner: string

  constructor(owner = 'router') {
    this.#owner = owner
  }

  add(entry: Entry): void {
    const { type, target, exact } = entry.event
    const versions = this.#types.get(type) ?? { only: entry, all: new Map<number, Entry>() }
    this.#types.set(type, versions)
    if (versions.all.has(target)) {
      const which = exact ? ` (version ${target})` : ''
      throw new WaybillError(
        'DUPLICATE_HANDLER',
        `a handler for "${type}"${which} is registered already; one ${this.#owner} handles a type once, use another ${this.#owner} for a second handler`,
      )
    }
    versions.all.set(target, entry)
    if (versions.all.size > 1) versions.only = undefined
  }

  get types(): string[] {
    return [...this.#types.keys()]
  }

  has(type: string): boolean {
    return this.#types.has(type)
  }

  /** The handler of exactly this version, or else of the nearest newer one, or else of the newest there is. */
  find(message: Message): Entry | undefined {
    const versions = this.#types.get(message.type)
    return versions === undefined ? undefined : (versions.only ?? pick(versions.all, message.version))
  }
}

interface HandlersByVersion<Entry> {
  /** The one there is, when there is only one. */
  only: Entry | undefined
  readonly all: Map<number, Entry>
}

function pick<Entry>(versions: Map<number, Entry>, version: number): Entry | undefined {
  const exact = versions.get(version)
  if (exact !== undefined) return exact
  const known = [...versions.keys()].sort((a, b) => a - b)
  const newer = known.find((candidate) => candidate > version) ?? known.at(-1)
  return newer === undefined ? undefined : versions.get(newer)
}

async function answered(outputs: Outputs | Promise<Outputs>, request: Message): Promise<Outputs> {
  return answering(await outputs, request)
}

async function thenReturned(outputs: Outputs | Promise<Outputs>, returned: () => void): Promise<Outputs> {
  const given = await outputs
  returned()
  return given
}
