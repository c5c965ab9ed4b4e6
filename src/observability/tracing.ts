import {
  asError,
  checkOptions,
  type Extensions,
  type ExtensionValue,
  errorSummary,
  type Message,
  WaybillError,
} from '../core/index.ts'
import type { Middleware, Outputs } from '../router/index.ts'
import { formatTraceparent, parseTraceparent, type TraceParent } from './traceparent.ts'

/** What we call of `@opentelemetry/api`. `C` is its Context, which we only hand around. */
export interface OpenTelemetryApi<C = unknown> {
  readonly trace: {
    getTracerProvider(): TracerProvider<C>
    getSpan(context: C): Span | undefined
    setSpan(context: C, span: never): C
    setSpanContext(context: C, spanContext: never): C
  }
  readonly context: {
    active(): C
    with<T>(context: C, fn: () => T): T
  }
  readonly ROOT_CONTEXT: C
  createTraceState(raw: string): TraceState
}

interface TraceState {
  serialize(): string
}

interface SpanContext extends TraceParent {
  readonly traceState?: TraceState | undefined
}

interface Span {
  spanContext(): SpanContext
  setStatus(status: { code: number; message?: string }): unknown
  setAttribute(name: string, value: string | number): unknown
  end(): void
}

interface Tracer<C> {
  startSpan(name: string, options: { kind: number; attributes: Record<string, string | number> }, context: C): Span
}

interface TracerProvider<C> {
  getTracer(name: string): Tracer<C>
  /** Only the proxy that stands in for a global provider has it; without one it answers `undefined`. */
  getDelegateTracer?(name: string): Tracer<C> | undefined
}

/** The OpenTelemetry API to use. */
export interface TracingOptions<C = unknown> {
  /** `import * as api from '@opentelemetry/api'` */
  api: OpenTelemetryApi<C>
}

/** SpanKind.CONSUMER and SpanStatusCode.ERROR of the OpenTelemetry API. */
const CONSUMER = 4
const ERROR = 2

/** Longer ones are dropped; the trace goes on without them. */
const MAX_TRACESTATE = 512

/**
 * One consumer span per message: a child of the span that sent it, active while the handler runs, and what the handler
 * returns carries it on. Outermost, it measures retries too. While no tracer is registered it opens no span and no
 * async context, and only hands the sender's trace on. Spans hold ids and summaries of errors, never payloads.
 */
export function tracing<C>(options: TracingOptions<C>): Middleware {
  checkOptions('tracing', options, { api: true })
  const api = checkApi('tracing', options?.api)
  return {
    name: 'tracing',
    wrap: (next) => (message, context) => {
      const tracer = tracerOf(api)
      if (tracer === undefined) return passOn(message, next(message, context))
      const parent = extractTrace(message, api)
      const attributes = {
        'messaging.system': 'waybill',
        'messaging.operation.name': 'process',
        'messaging.operation.type': 'process',
        'messaging.consumer.group.name': context.router,
        'messaging.destination.name': context.topic ?? message.type,
        'messaging.message.id': message.id,
        'cloudevents.event_id': message.id,
        'cloudevents.event_source': message.source,
        'cloudevents.event_type': message.type,
        'waybill.attempt': context.attempt,
      }
      const span = tracer.startSpan(`process ${message.type}`, { kind: CONSUMER, attributes }, parent)
      const inside = api.trace.setSpan(parent, span as never)
      return traced(message, span, () => api.context.with(inside, () => next(message, context)))
    },
  }
}

async function traced(message: Message, span: Span, handle: () => Outputs | Promise<Outputs>): Promise<Outputs> {
  try {
    return carry(await handle(), message, extensionsOf(span.spanContext()))
  } catch (error) {
    // Not recordException: a stack or a driver's message may quote the data.
    span.setStatus({ code: ERROR, message: errorSummary(error) })
    span.setAttribute('error.type', errorType(error))
    throw error
  } finally {
    span.end()
  }
}

/** The message as part of the trace that is active here; as it is when there is none. For producers. */
export function injectTrace<Data, C>(message: Message<Data>, api: OpenTelemetryApi<C>): Message<Data> {
  const span = checkApi('injectTrace', api).trace.getSpan(api.context.active())
  const extensions = span === undefined ? undefined : extensionsOf(span.spanContext())
  return extensions === undefined ? message : message.with({ extensions })
}

/** The context in which the sender's span is the parent; the root context when the message carries no trace. */
export function extractTrace<C>(message: Message, api: OpenTelemetryApi<C>): C {
  const parent = parseTraceparent(message.extensions['traceparent'])
  if (parent === undefined) return api.ROOT_CONTEXT
  const state = message.extensions['tracestate']
  const known = typeof state === 'string' && state !== '' && state.length <= MAX_TRACESTATE
  const traceState = known ? { traceState: api.createTraceState(state) } : {}
  return api.trace.setSpanContext(api.ROOT_CONTEXT, { ...parent, ...traceState, isRemote: true } as never)
}

/** `undefined` for the invalid context of a span that nobody records. */
function extensionsOf(spanContext: SpanContext): Extensions | undefined {
  const traceparent = formatTraceparent(spanContext)
  if (parseTraceparent(traceparent) === undefined) return undefined
  return traceExtensions(traceparent, spanContext.traceState?.serialize())
}

/** An absent state takes away the one of another trace: `with` removes what is undefined. */
function traceExtensions(traceparent: string, tracestate: ExtensionValue | undefined): Extensions {
  return { traceparent, tracestate: tracestate || undefined } as unknown as Extensions
}

/** Without a tracer the trace is not ours to extend, but neither is it ours to break. */
function passOn(message: Message, outputs: Outputs | Promise<Outputs>): Outputs | Promise<Outputs> {
  const { traceparent, tracestate } = message.extensions
  if (typeof traceparent !== 'string') return outputs
  const extensions = traceExtensions(traceparent, tracestate)
  if (outputs instanceof Promise) return outputs.then((settled) => carry(settled, message, extensions))
  return carry(outputs, message, extensions)
}

/** A trace that the handler gave an output itself stays, unless it is only that of the input handed on. */
function carry(outputs: Outputs, input: Message, extensions: Extensions | undefined): Outputs {
  if (outputs === undefined || extensions === undefined) return outputs
  const list = Array.isArray(outputs) ? (outputs as readonly Message[]) : [outputs as Message]
  return list.map((output) => {
    const own = output.extensions['traceparent']
    return own === undefined || own === input.extensions['traceparent'] ? output.with({ extensions }) : output
  })
}

/** Asked each time: a provider may be registered after the router was made. */
function tracerOf<C>(api: OpenTelemetryApi<C>): Tracer<C> | undefined {
  const provider = api.trace.getTracerProvider()
  return provider.getDelegateTracer === undefined ? provider.getTracer(NAME) : provider.getDelegateTracer(NAME)
}

const NAME = 'waybill'

function errorType(thrown: unknown): string {
  const error = asError(thrown)
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : error.name
}

function checkApi<C>(where: string, api: OpenTelemetryApi<C>): OpenTelemetryApi<C> {
  if (typeof api?.trace?.getTracerProvider === 'function' && typeof api.context?.with === 'function') return api
  const text = `${where}: api must be the module @opentelemetry/api, as in import * as api from '@opentelemetry/api'`
  throw new WaybillError('INVALID_OPTION', text)
}
