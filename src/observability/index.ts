export type { LogFields } from '../core/index.ts'
export type { GaugeMode } from './gauges.ts'
export {
  EVENT_LEVELS,
  type FieldsLogger,
  LOG_LEVELS,
  type LogFunction,
  type LogLevel,
  type LogOptions,
  logTo,
  type TextLogger,
} from './logging.ts'
export type { Metric } from './metric.ts'
export { type MetricsOptions, type PromClient, type PromRegistry, recordMetrics } from './metrics.ts'
export { METRICS } from './metrics-table.ts'
export type { OpenTelemetryApi } from './otel-api.ts'
export { extractTrace, injectTrace } from './trace-context.ts'
export { formatTraceparent, parseTraceparent, type TraceParent } from './traceparent.ts'
export { type TraceOptions, type TracingOptions, tracing, useOpenTelemetry } from './tracing.ts'
