import type { Extensions, ExtensionValue, Message } from '../core/index.ts'
import type { Outputs } from '../router/index.ts'
import { checkApi, type OpenTelemetryApi, type SpanContext } from './otel-api.ts'
import { formatTraceparent, parseTraceparent } from './traceparent.ts'

/** Longer ones are dropped; the trace goes on without them. */
const MAX_TRACESTATE = 512

/** The message as part of the trace that is active here; as it is when there is none. For producers. */
export function injectTrace<Data, C>(message: Message<Data>, api: OpenTelemetryApi<C>): Message<Data> {
  const extensions = activeTrace(checkApi('injectTrace', api))
  return extensions === undefined ? message : message.with({ extensions })
}

/** The context in which the sender's span is the parent; the root context when the message carries no trace. */
export function extractTrace<C>(message: Message, api: OpenTelemetryApi<C>): C {
  const sender = senderOf(message, api)
  return sender === undefined ? api.ROOT_CONTEXT : api.trace.setSpanContext(api.ROOT_CONTEXT, sender as never)
}

/** The span that sent a message, if it says so. */
export function senderOf<C>(message: Message, api: OpenTelemetryApi<C>): SpanContext | undefined {
  const state = message.extensions['tracestate']
  return remote(message.extensions['traceparent'], api, state)
}

/** A `traceparent` as the span of another process. */
export function remote<C>(traceparent: unknown, api: OpenTelemetryApi<C>, state?: unknown): SpanContext | undefined {
  const parsed = parseTraceparent(traceparent)
  if (parsed === undefined) return undefined
  const known = typeof state === 'string' && state !== '' && state.length <= MAX_TRACESTATE
  return { ...parsed, ...(known ? { traceState: api.createTraceState(state) } : {}), isRemote: true }
}

/** The trace that is active here, as extensions of a message. */
export function activeTrace<C>(api: OpenTelemetryApi<C>): Extensions | undefined {
  const span = api.trace.getSpan(api.context.active())
  return span === undefined ? undefined : extensionsOf(span.spanContext())
}

/** `undefined` for the invalid context of a span that nobody records. */
export function extensionsOf(spanContext: SpanContext): Extensions | undefined {
  const traceparent = formatTraceparent(spanContext)
  if (parseTraceparent(traceparent) === undefined) return undefined
  return traceExtensions(traceparent, spanContext.traceState?.serialize())
}

/** An absent state takes away the one of another trace: `with` removes what is undefined. */
function traceExtensions(traceparent: string, tracestate: ExtensionValue | undefined): Extensions {
  return { traceparent, tracestate: tracestate || undefined } as unknown as Extensions
}

/** Without a tracer the trace is not ours to extend, but neither is it ours to break. */
export function passOn(message: Message, outputs: Outputs | Promise<Outputs>): Outputs | Promise<Outputs> {
  const { traceparent, tracestate } = message.extensions
  if (typeof traceparent !== 'string') return outputs
  const extensions = traceExtensions(traceparent, tracestate)
  if (outputs instanceof Promise) return outputs.then((settled) => carry(settled, message, extensions))
  return carry(outputs, message, extensions)
}

/** A trace that the handler gave an output itself stays, unless it is only that of the input handed on. */
export function carry(outputs: Outputs, input: Message, extensions: Extensions | undefined): Outputs {
  if (outputs === undefined || outputs === null || extensions === undefined) return outputs
  const list = Array.isArray(outputs) ? (outputs as readonly Message[]) : [outputs as Message]
  return list.map((output) => {
    // What is no message is refused later, in words.
    if (typeof output?.with !== 'function') return output
    const own = output.extensions['traceparent']
    return own === undefined || own === input.extensions['traceparent'] ? output.with({ extensions }) : output
  })
}
