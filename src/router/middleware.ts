import { describe, type Message, WaybillError } from '../core/index.ts'

/** What middleware and handler are given beside the message. Middleware adds to it (a transaction, a span). */
export interface Context {
  /** Aborted when the handler should give up: a timeout, or a stop whose grace period is over. */
  readonly signal: AbortSignal
  /** 1 for the first try. */
  readonly attempt: number
  /** The topic, routing key or subject it came by. */
  readonly topic?: string
  /** The broker it came by, as OpenTelemetry names it: `rabbitmq`, `kafka`. */
  readonly system?: string | undefined
  /** The router's name: the subscriber an inbox knows it by. */
  readonly router: string
  /** With `ack: 'manual'` only: settles the message. Whichever comes first counts. */
  readonly ack: () => boolean
  readonly nack: (error: unknown) => boolean
  readonly [RETURNED]?: () => void
}

/** Called when a handler has returned: where it settles the message itself, nobody else does from then on. */
export const RETURNED: unique symbol = Symbol('returned')

/** Messages that go on from here. */
export type Outputs = undefined | void | Message | readonly Message[]

/** Handles one message; returns what is to be published because of it. */
export type Handle<Ctx = Context> = (message: Message, context: Ctx) => Outputs | Promise<Outputs>

/**
 * Wraps the next handler with something of its own, once, when the router starts. Middleware gets the message as it
 * came, mostly with its data still encoded; the handler gets it decoded.
 */
export type Wrap = (next: Handle) => Handle

/**
 * A named wrap that says what it gives to those inside it, what it needs from those outside it, and inside of what it
 * must not stand, so that a wrong order fails at start and not with the first message. `Adds` is what it adds to the
 * context.
 */
export interface Middleware<Adds extends object = object> {
  readonly name: string
  readonly gives?: readonly string[]
  readonly needs?: readonly string[]
  readonly refuses?: readonly string[]
  readonly wrap: Wrap
  /** Only for the compiler. */
  readonly adds?: Adds
}

/**
 * A middleware that does nothing but add to the context. What `add` returns is what those inside it see, and the compiler
 * infers it: `.use({ name: 'user', add: (message) => ({ user: message.extensions['user'] }) })`.
 */
export interface Addition<Adds extends object = object> extends Omit<Middleware<Adds>, 'wrap'> {
  readonly add: (message: Message, context: Context) => Adds | Promise<Adds>
}

export type MiddlewareLike<Adds extends object = object> = Middleware<Adds> | Addition<Adds> | Wrap

/** The first is outermost. */
export function compose(where: string, middlewares: readonly Middleware[], innermost: Handle): Handle {
  return middlewares.reduceRight(
    (next, middleware) => wrapped(where, middleware.name, middleware.wrap(next)),
    innermost,
  )
}

/** `.use(repeat)` instead of `.use(repeat())`: a factory is a function too. */
function wrapped(where: string, name: string, handle: Handle): Handle {
  if (typeof handle === 'function') return handle
  throw new WaybillError(
    'INVALID_OPTION',
    `${where}: middleware "${name}" returned ${describe(handle)} in place of a handler; if it makes a middleware, call it: .use(${name}(…))`,
  )
}

/** Throws unless every middleware finds outside of it what it needs, and nothing it refuses. */
export function checkOrder(where: string, middlewares: readonly Middleware[]): void {
  const outside = new Map<string, string>()
  for (const { name, needs = [], refuses = [], gives = [] } of middlewares) {
    for (const need of needs) if (!outside.has(need)) missing(where, middlewares, name, need)
    for (const refused of refuses) {
      const by = outside.get(refused)
      if (by !== undefined) {
        const wrong =
          by === name
            ? 'is registered twice; once is enough'
            : `must not stand inside "${by}"; register it before "${by}"`
        throw new WaybillError('MIDDLEWARE_ORDER', `${where}: middleware "${name}" ${wrong}`)
      }
    }
    for (const gift of gives) outside.set(gift, name)
  }
}

function missing(where: string, middlewares: readonly Middleware[], name: string, need: string): never {
  const later = middlewares.find((other) => other.gives?.includes(need))
  const mend =
    later === undefined
      ? `add one that gives a ${need} before it`
      : `register "${later.name}" before it (the first is outermost)`
  throw new WaybillError('MIDDLEWARE_ORDER', `${where}: middleware "${name}" needs a ${need}; ${mend}`)
}

export function middlewareOf(given: MiddlewareLike): Middleware {
  if (typeof given === 'function') return { name: given.name || 'function', wrap: given }
  const { wrap, add } = (given ?? {}) as Partial<Middleware & Addition>
  if (typeof wrap === 'function') return given as Middleware
  if (typeof add === 'function') return { ...(given as Addition), wrap: adding(add) }
  throw new WaybillError(
    'INVALID_OPTION',
    'a middleware is a function (next) => (message, context) => …, or an object with name and wrap, or name and add',
  )
}

function adding(add: Addition['add']): Wrap {
  return (next) => async (message, context) => next(message, { ...context, ...(await add(message, context)) })
}

/** Outputs as a list, whatever form they were returned in. */
export function outputList(outputs: Outputs): readonly Message[] {
  if (outputs === undefined || outputs === null) return NONE
  const list: readonly Message[] = Array.isArray(outputs) ? outputs : [outputs as Message]
  for (const output of list) if (typeof output?.attributes !== 'function') throw notAMessage(output)
  return list
}

const NONE: readonly Message[] = []

function notAMessage(output: unknown): WaybillError {
  const text = `a handler returned ${describe(output)} where a message was expected; return messages, a list of them, or nothing`
  return new WaybillError('INVALID_OUTPUT', text)
}
