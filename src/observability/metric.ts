import type { GaugeName, TelemetryEvents, TelemetryName } from '../core/index.ts'

/** `topic`, `type` and `tenant` come with the messages: the recorder bounds them. */
export type Labels = Record<string, string>

/**
 * How a row writes. For a counter the value is added, for a histogram it is observed (`times` over), for a gauge it is
 * set.
 */
export type Write = (labels: Labels, value: number, times?: number) => void

/** What every process says of itself: how its workers are, and whether it could ask about tables. */
export type WorkerGauge = 'worker.last_success' | 'worker.unsettled' | 'table.leads' | 'projection.leads' | 'up'

/** One metric: its name, labels and help, and where it comes from. */
export interface Metric {
  readonly kind: 'counter' | 'histogram' | 'gauge'
  readonly name: string
  readonly help: string
  /** `tenant` is left out unless tenants are asked for. */
  readonly labels: readonly string[]
  readonly buckets?: readonly number[]
  /** Asked when somebody scrapes. */
  readonly asks?: GaugeName | WorkerGauge
  /** The events that move it. */
  readonly from: { readonly [Name in TelemetryName]?: (event: TelemetryEvents[Name], write: Write) => void }
}

/** Seconds: from what never leaves the process to what waits for somebody else. */
export const BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
