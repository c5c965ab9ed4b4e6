import type { Extensions } from './attributes.ts'
import type { Message } from './message.ts'

/** What is known of a message that is handled, beside itself. */
export interface HandledBy {
  readonly router: string
  readonly attempt: number
  readonly topic?: string | undefined
  readonly system?: string | undefined
}

/** A span around a call that handles no message of its own. */
export interface SpanAbout {
  readonly name: string
  readonly attributes: Readonly<Record<string, string | number>>
  /** The `traceparent` it belongs to. Absent: it begins a trace. */
  readonly parent?: string | undefined
  /** Each `traceparent` it is only linked with. */
  readonly links?: readonly string[]
  /** What failed, without data. Absent: of an error only its code is kept. */
  readonly shown?: (error: unknown) => Error
}

/** Whoever keeps traces. There is at most one in a process. */
export interface Traces {
  /** The trace that is active now, as extensions of a message; `undefined` where there is none. */
  current(): Extensions | undefined
  /** Calls `handle` in a span of the message's; what it returns carries that on. */
  handling<Result>(message: Message, by: HandledBy, handle: () => Result): Result
  /** Calls it in a span. */
  within<Result>(about: SpanAbout, call: () => Result): Result
}

let current: Traces | undefined

/** Says who keeps traces, so that whatever is enqueued and handled belongs to one. Returns the way to take that back. */
export function traceBy(given: Traces): () => void {
  current = given
  return () => {
    if (current === given) current = undefined
  }
}

/** Who keeps traces now. */
export function traces(): Traces | undefined {
  return current
}

/** The message as part of the active trace, unless it has one of its own. */
export function traced<Data>(message: Message<Data>): Message<Data> {
  if (current === undefined || message.extensions['traceparent'] !== undefined) return message
  const extensions = current.current()
  return extensions === undefined ? message : message.with({ extensions })
}

/** The `traceparent` of the active trace, if there is one. */
export function activeTraceparent(): string | undefined {
  const traceparent = current?.current()?.['traceparent']
  return typeof traceparent === 'string' ? traceparent : undefined
}

/** Calls it in a span, where traces are kept. */
export function inSpan<Result>(about: () => SpanAbout, call: () => Result): Result {
  return current === undefined ? call() : current.within(about(), call)
}
