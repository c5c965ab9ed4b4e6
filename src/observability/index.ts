export {
  EVENT_LEVELS,
  type FieldsLogger,
  LOG_LEVELS,
  type LogFields,
  type LogFunction,
  type LogLevel,
  type LogOptions,
  logTo,
  type TextLogger,
} from './logging.ts'
export { type MetricsOptions, type PromClient, type PromRegistry, recordMetrics } from './metrics.ts'
export { METRICS, type Metric } from './metrics-table.ts'
export { formatTraceparent, parseTraceparent, type TraceParent } from './traceparent.ts'
export { extractTrace, injectTrace, type OpenTelemetryApi, type TracingOptions, tracing } from './tracing.ts'
