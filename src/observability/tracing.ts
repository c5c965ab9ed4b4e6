import {
  checkOptions,
  errorSummary,
  type HandledBy,
  type Message,
  oneOf,
  type SpanAbout,
  type TelemetryEvents,
  telemetry,
  traceBy,
  withoutData,
} from '../core/index.ts'
import type { Middleware, Outputs } from '../router/index.ts'
import { checkApi, failed, KIND, type OpenTelemetryApi, type Span, tracerOf } from './otel-api.ts'
import { activeTrace, carry, extensionsOf, passOn, remote, senderOf } from './trace-context.ts'

const MODES = ['parent', 'link'] as const

/** How the handling of a message and its sender belong together. */
export interface TraceOptions {
  /**
   * `parent`: one trace from the sender on (default). `link`: each message that is handled begins a trace of its own, which
   * is linked with the sender's; for flows in which one request makes thousands of messages.
   */
  trace?: (typeof MODES)[number]
}

/** The OpenTelemetry API to use. */
export interface TracingOptions<C = unknown> extends TraceOptions {
  /** `import * as api from '@opentelemetry/api'` */
  api: OpenTelemetryApi<C>
}

/**
 * One consumer span per message: a child of the span that sent it, active while the handler runs, and what the handler
 * returns carries it on. Outermost, it measures retries too. For routers that want it without `useOpenTelemetry`, or at
 * another place than outermost. While no tracer is registered it opens no span and no async context, and only hands the
 * sender's trace on. Spans hold ids and summaries of errors, never payloads.
 */
export function tracing<C>(options: TracingOptions<C>): Middleware {
  checkOptions('tracing', options, { api: true, trace: true })
  const api = checkApi('tracing', options?.api)
  const linked = isLinked('tracing', options)
  return {
    name: 'tracing',
    // The router opens no span of its own then.
    gives: ['trace'],
    wrap: (next) => (message, context) => handled(api, linked, message, context, () => next(message, context)),
  }
}

/**
 * Called once: from then on `enqueue` stores the active trace with each event, a relay adds two spans to it (how long the
 * event was in the outbox, on the clock of its store, and the call that published it), every router opens a span per message, which
 * its outputs carry on, sagas one per call of a step, and projections one per batch, linked with the traces of its events.
 * While no tracer is registered no span is opened; a relay looks for one when it starts. A later call takes the place of the one
 * before. Returns the way to stop.
 */
export function useOpenTelemetry<C>(api: OpenTelemetryApi<C>, options: TraceOptions = {}): () => void {
  checkApi('useOpenTelemetry', api)
  checkOptions('useOpenTelemetry', options, { trace: true })
  const linked = isLinked('useOpenTelemetry', options)
  // Two would make each span of a relay twice.
  stopUsing()
  const stops = [
    traceBy({
      current: () => activeTrace(api),
      handling: (message, by, handle) => handled(api, linked, message, by, handle as never) as never,
      within: (about, call) => within(api, about, call),
    }),
  ]
  let listening = false
  const listen = () => {
    // Each message is published only while somebody subscribes, which costs time: not without a tracer.
    if (listening || tracerOf(api) === undefined) return
    listening = true
    stops.push(telemetry['message.handled'].subscribe((event) => relaySpans(api, event)))
  }
  listen()
  stops.push(telemetry['worker.started'].subscribe(listen))
  const stop = () => {
    for (const one of stops) one()
  }
  stopUsing = stop
  return stop
}

let stopUsing = () => {}

function isLinked(where: string, { trace = 'parent' }: TraceOptions): boolean {
  return oneOf(`${where}: trace`, trace, MODES) === 'link'
}

type Handling = () => Outputs | Promise<Outputs>

function handled<C>(
  api: OpenTelemetryApi<C>,
  linked: boolean,
  message: Message,
  { router, topic, attempt, system = 'waybill' }: HandledBy,
  handle: Handling,
): Outputs | Promise<Outputs> {
  const tracer = tracerOf(api)
  if (tracer === undefined) return passOn(message, handle())
  const sender = senderOf(message, api)
  const child = sender !== undefined && !linked
  const parent = child ? api.trace.setSpanContext(api.ROOT_CONTEXT, sender as never) : api.ROOT_CONTEXT
  const links = sender === undefined || child ? {} : { links: [{ context: sender } as never] }
  const attributes = {
    'messaging.system': system,
    'messaging.operation.name': 'process',
    'messaging.operation.type': 'process',
    'messaging.consumer.group.name': router,
    'messaging.destination.name': topic ?? message.type,
    'messaging.message.id': message.id,
    'cloudevents.event_id': message.id,
    'cloudevents.event_source': message.source,
    'cloudevents.event_type': message.type,
    'waybill.attempt': attempt,
  }
  const span = tracer.startSpan(`process ${message.type}`, { kind: KIND.consumer, attributes, ...links }, parent)
  const inside = api.trace.setSpan(parent, span as never)
  return ended(message, span, () => api.context.with(inside, handle))
}

async function ended(message: Message, span: Span, handle: Handling): Promise<Outputs> {
  try {
    return carry(await handle(), message, extensionsOf(span.spanContext()))
  } catch (error) {
    failed(span, error, errorSummary(withoutData(error, message)))
    throw error
  } finally {
    span.end()
  }
}

/** Steps of sagas, batches of projections. */
function within<C, Result>(api: OpenTelemetryApi<C>, about: SpanAbout, call: () => Result): Result {
  const tracer = tracerOf(api)
  if (tracer === undefined) return call()
  const { name, attributes, shown, links = [] } = about
  const sender = remote(about.parent, api)
  const parent = sender === undefined ? api.ROOT_CONTEXT : api.trace.setSpanContext(api.ROOT_CONTEXT, sender as never)
  const linked = links.flatMap((traceparent) => {
    const context = remote(traceparent, api)
    return context === undefined ? [] : [{ context } as never]
  })
  const span = tracer.startSpan(name, { kind: KIND.internal, attributes: { ...attributes }, links: linked }, parent)
  const fail = (error: unknown): never => {
    failed(span, error, shown === undefined ? undefined : errorSummary(shown(error)))
    span.end()
    throw error
  }
  try {
    const result = api.context.with(api.trace.setSpan(parent, span as never), call)
    if (!(result instanceof Promise)) {
      span.end()
      return result
    }
    return result.then((value) => {
      span.end()
      return value
    }, fail) as Result
  } catch (error) {
    return fail(error)
  }
}

/** In the outbox, then on its way: both belong to the trace that the event was enqueued in. */
function relaySpans<C>(api: OpenTelemetryApi<C>, event: TelemetryEvents['message.handled']): void {
  const { table, created, storeTime, traceparent, took, result, topic, attempt, system = 'waybill' } = event
  const sender = remote(traceparent, api)
  const tracer = tracerOf(api)
  if (table === undefined || tracer === undefined || sender === undefined || result === 'release') return
  const parent = api.trace.setSpanContext(api.ROOT_CONTEXT, sender as never)
  const attributes = {
    'messaging.system': system,
    'messaging.destination.name': topic ?? event.type,
    'messaging.message.id': event.id,
    'cloudevents.event_type': event.type,
    'waybill.outbox': table,
    'waybill.attempt': attempt,
  }
  const end = storeTime !== undefined && storeTime > 0 ? storeTime : Date.now()
  if (created !== undefined && result === 'done') {
    const waits = { kind: KIND.internal, attributes, startTime: created }
    tracer.startSpan(`outbox ${table}`, waits, parent).end(Math.max(created, end - took))
  }
  const operation = { 'messaging.operation.name': 'send', 'messaging.operation.type': 'send' }
  const sends = { kind: KIND.producer, attributes: { ...attributes, ...operation }, startTime: end - took }
  const span = tracer.startSpan(`send ${topic ?? event.type}`, sends, parent)
  if (result !== 'done') failed(span, event.error, errorSummary(event.error))
  span.end(end)
}
