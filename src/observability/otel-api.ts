import { asError, WaybillError } from '../core/index.ts'
import type { TraceParent } from './traceparent.ts'

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

export interface SpanContext extends TraceParent {
  readonly traceState?: TraceState | undefined
  readonly isRemote?: boolean | undefined
}

export interface Span {
  spanContext(): SpanContext
  setStatus(status: { code: number; message?: string }): unknown
  setAttribute(name: string, value: string | number): unknown
  end(time?: number): void
}

interface SpanOptions {
  kind: number
  attributes: Record<string, string | number>
  startTime?: number
  links?: never[]
}

interface Tracer<C> {
  startSpan(name: string, options: SpanOptions, context: C): Span
}

interface TracerProvider<C> {
  getTracer(name: string): Tracer<C>
  /** Only the proxy that stands in for a global provider has it; without one it returns `undefined`. */
  getDelegateTracer?(name: string): Tracer<C> | undefined
}

/** SpanKind of the OpenTelemetry API. */
export const KIND = { internal: 0, producer: 3, consumer: 4 } as const
/** SpanStatusCode.ERROR. */
const ERROR = 2

const NAME = 'waybill'

/** Asked each time: a provider may be registered after the router was made. */
export function tracerOf<C>(api: OpenTelemetryApi<C>): Tracer<C> | undefined {
  const provider = api.trace.getTracerProvider()
  return provider.getDelegateTracer === undefined ? provider.getTracer(NAME) : provider.getDelegateTracer(NAME)
}

/** `summary`: what failed, in a line without data. Not recordException: a stack or a driver's message may quote it. */
export function failed(span: Span, error: unknown, summary?: string): void {
  span.setStatus(summary === undefined ? { code: ERROR } : { code: ERROR, message: summary })
  span.setAttribute('error.type', errorType(error))
}

function errorType(thrown: unknown): string {
  const error = asError(thrown)
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : error.name
}

export function checkApi<C>(where: string, api: OpenTelemetryApi<C>): OpenTelemetryApi<C> {
  if (typeof api?.trace?.getTracerProvider === 'function' && typeof api.context?.with === 'function') return api
  const text = `${where}: api must be the module @opentelemetry/api, as in import * as api from '@opentelemetry/api'`
  throw new WaybillError('INVALID_OPTION', text)
}
