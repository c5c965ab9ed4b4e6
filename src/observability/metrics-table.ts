import type { Metric } from './metric.ts'
import { FLOW_METRICS } from './metrics-flow.ts'
import { GAUGE_METRICS } from './metrics-gauges.ts'
import { OUTBOX_METRICS } from './metrics-outbox.ts'
import { PROJECTION_METRICS } from './metrics-projection.ts'
import { SAGA_METRICS } from './metrics-saga.ts'
import { WORKER_METRICS } from './metrics-worker.ts'

/** Every metric, what it means and where it comes from. A new one is a new row. */
export const METRICS: readonly Metric[] = [
  ...OUTBOX_METRICS,
  ...GAUGE_METRICS,
  ...FLOW_METRICS,
  ...WORKER_METRICS,
  ...SAGA_METRICS,
  ...PROJECTION_METRICS,
]
